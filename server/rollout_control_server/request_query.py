"""Reads the query of a request, strictly: a filter that is misspelt must not widen an answer."""

import re
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from rollout_control_spec import MAX_PAGE

from rollout_control_server.asgi import Scope
from rollout_control_server.errors import ProblemKind, RequestRefusedError
from rollout_control_server.records import ListingQuery

__all__ = ["read_listing_query"]

_TAKES: Final = {
    "state": "'live' or 'retired'",
    "prefix": "what a rollout id can begin with",
    "idle_for_s": "a number of seconds, 0 or more",
    "changed_since": "a Unix time in seconds, 0 or more",
    "has_failures": "true or false",
    "limit": f"a whole number from 1 to {MAX_PAGE}",
    "after": "a rollout id",
}
"""What the value of each query parameter is (spec, listRollouts)."""
_TEXTS: Final = frozenset({"state", "prefix", "after"})
"""The parameters whose values are strings; those of the others are written as JSON writes them."""

_NUMBER_OR_BOOLEAN: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false")
"""As JSON writes them (RFC 8259, sections 3 and 6)."""

_DECODER: Final = msgspec.json.Decoder(ListingQuery)


def read_listing_query(scope: Scope) -> ListingQuery:
    """Returns the query parameters of a listing.

    Raises:
        RequestRefusedError: 422, for a parameter that is unknown, comes twice or breaks its schema.
    """
    try:
        pairs = parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise _invalid("the query is not percent-encoded UTF-8") from error
    members: dict[str, msgspec.Raw] = {}
    for name, value in pairs:
        if name not in _TAKES:
            raise _invalid(f"this path has no query parameter {name[:80]!r}")
        if name in members:
            raise _invalid(f"the query parameter {name!r} comes twice")
        if name in _TEXTS:
            members[name] = msgspec.Raw(msgspec.json.encode(value))
        elif _NUMBER_OR_BOOLEAN.fullmatch(value):
            members[name] = msgspec.Raw(value.encode())
        else:
            raise _wrong_value(name, value)
    try:
        # `null`, which the struct takes for a parameter that is not given, is neither a number nor a boolean above.
        return _DECODER.decode(msgspec.json.encode(members))
    except msgspec.DecodeError as error:
        # msgspec names the member: "... - at `$.limit`".
        name = str(error).rpartition("$.")[2].rstrip("`")
        refusal = _wrong_value(name, dict(pairs)[name]) if name in members else _invalid(str(error))
        raise refusal from error


def _wrong_value(name: str, value: str) -> RequestRefusedError:
    return _invalid(f"the query parameter {name!r} takes {_TAKES[name]}, and not {value[:80]!r}")


def _invalid(detail: str) -> RequestRefusedError:
    return RequestRefusedError(ProblemKind.INVALID_QUERY, detail)
