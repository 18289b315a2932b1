"""Reads the body of a request: its media type, size, JSON and schema, in the order in which the spec decides."""

import json
from collections.abc import Iterable
from typing import TypeVar

import msgspec
from rollout_control_spec import BODY_LIMIT

from rollout_control_server.asgi import Receive, Scope
from rollout_control_server.errors import ProblemKind, RequestRefusedError

__all__ = ["read_body"]

T = TypeVar("T")


async def read_body(scope: Scope, receive: Receive, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns the request's body, decoded.

    Args:
        scope: The request.
        receive: What gives the body's chunks. It is not called for a body that the headers rule out, so a client that
            waits for `100 Continue` never sends such a body.
        decoder: The decoder of the body's schema.

    Raises:
        RequestRefusedError: 415, 413, 400 or 422, the first that applies.
    """
    _check_media_type(scope["headers"])
    return _decode(await _receive_body(scope["headers"], receive), decoder)


def _check_media_type(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuses a body that is not plain `application/json`."""
    media_type, *parameters = (part.strip().lower() for part in _header(headers, b"content-type").split(";"))
    charsets = [part.partition("=")[2].strip('"') for part in parameters if part.startswith("charset=")]
    if media_type != "application/json" or any(charset != "utf-8" for charset in charsets):
        raise RequestRefusedError(
            ProblemKind.UNSUPPORTED_MEDIA_TYPE, "send the body as 'Content-Type: application/json', in UTF-8"
        )
    codings = _header(headers, b"content-encoding").split(",")
    if any(coding.strip().lower() not in {"", "identity"} for coding in codings):
        raise RequestRefusedError(
            ProblemKind.UNSUPPORTED_MEDIA_TYPE, "send the body as it is, without a Content-Encoding"
        )


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """Returns a header's value; one that stands more than once is one list (RFC 9110, section 5.3)."""
    return ",".join(value.decode("latin-1") for header, value in headers if header == name)


async def _receive_body(headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> bytes:
    announced = _header(headers, b"content-length")
    if announced.isdecimal() and int(announced) > BODY_LIMIT:
        raise _too_large()
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            # Nobody reads this answer: the client has gone.
            raise RequestRefusedError(ProblemKind.MALFORMED_BODY, "the body ended before it was whole")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > BODY_LIMIT:
            raise _too_large()
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


def _too_large() -> RequestRefusedError:
    return RequestRefusedError(
        ProblemKind.BODY_TOO_LARGE, f"a body may have {BODY_LIMIT} bytes; send fewer rollout ids at once"
    )


def _decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        # The decoder stops at the first broken rule of the schema. What comes after it may be no JSON, which is 400.
        _check_json(body)
        raise RequestRefusedError(ProblemKind.INVALID_BODY, str(error)) from error
    # msgspec 0.22 and older raise UnicodeDecodeError for a string that is not UTF-8; newer versions, DecodeError.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(error) from error


def _check_json(body: bytes) -> None:
    """Refuses what is not JSON from its first byte to its last. Numbers are not converted, so none is too large."""
    try:
        json.loads(body.decode(), parse_int=str, parse_float=str, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _malformed(error) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _malformed(error: Exception) -> RequestRefusedError:
    return RequestRefusedError(ProblemKind.MALFORMED_BODY, f"the body is not JSON in UTF-8: {error}")
