"""The id by which a trainer and this server name one request in their logs (spec, "Requests")."""

import re
import uuid
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

from rollout_control_spec import REQUEST_ID_HEADER

__all__ = ["current_request", "request_id_of"]

_FIELD: Final = REQUEST_ID_HEADER.lower().encode()
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")

_current: ContextVar[str | None] = ContextVar("rollout_control_request_id", default=None)


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns the id that the request's one X-Request-Id header has, or a new one; log lines name it from then on.

    A header that is absent, comes more than once, or could not be put into a log line or an answer as it is (the spec
    allows 1 to 128 ASCII letters, digits, `.`, `_` and `-`) has a new id made in its place.
    """
    sent = [value for name, value in headers if name == _FIELD]
    is_usable = len(sent) == 1 and _REQUEST_ID.fullmatch(sent[0])
    request_id = sent[0].decode() if is_usable else uuid.uuid4().hex
    _current.set(request_id)
    return request_id


def current_request() -> str:
    """Returns how a log line names the request that is being answered; `no request` outside of any."""
    request_id = _current.get()
    return "no request" if request_id is None else f"request {request_id}"
