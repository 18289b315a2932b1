"""The rollout-control protocol: the OpenAPI document, and in Python what servers and clients must agree on.

It needs the standard library only. The server, the client and the contract check import it, and none of them imports
another.
"""

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Final

__all__ = [
    "AUTH_TOKEN_VARIABLE",
    "BODY_LIMIT",
    "CONTROL_ROUTE_PREFIX",
    "LEDGER_VARIABLE",
    "MANIFEST_SCHEMA_VERSION",
    "MAX_INT",
    "MAX_LEDGER_BATCH",
    "MAX_PAGE",
    "MAX_ROLLOUT_ID_LENGTH",
    "REQUEST_ID_HEADER",
    "URL_VARIABLE",
    "RolloutControlError",
    "RolloutRetiredError",
    "openapi_yaml",
    "unique_rollout_ids",
    "validate_auth_token",
    "validate_rollout_id",
    "validate_rollout_id_prefix",
]

CONTROL_ROUTE_PREFIX: Final = "/training-token-capture/control"
"""What the path of every operation begins with."""

MAX_LEDGER_BATCH: Final = 4096
"""How many rollout ids one request may carry."""

MAX_PAGE: Final = 1000
"""How many rollouts one page of a listing may have."""

MANIFEST_SCHEMA_VERSION: Final = 2
"""The `schema_version` of a manifest; the protocol has no other."""

MAX_INT: Final = 2**63 - 1
"""The largest integer of a record. Servers and clients keep all of them exactly, up to this one."""

MAX_ROLLOUT_ID_LENGTH: Final = 255
"""Characters of the longest rollout id."""

BODY_LIMIT: Final = 8 * 2**20
"""Bytes that a request's body may have: 4096 of the longest ids take 6.3 MB with each character as an escape."""

REQUEST_ID_HEADER: Final = "X-Request-Id"
"""The header by which both sides name a request in their logs."""

AUTH_TOKEN_VARIABLE: Final = "ROLLOUT_CONTROL_AUTH_TOKEN"
"""The environment variable that the commands read the bearer token from. A command line would show the token."""

URL_VARIABLE: Final = "ROLLOUT_CONTROL_URL"
"""The environment variable that names the server which a command asks, unless an option does."""

LEDGER_VARIABLE: Final = "ROLLOUT_CONTROL_LEDGER"
"""The environment variable that names the ledger which a command opens, unless an option does."""

_ROLLOUT_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_ROLLOUT_ID_LENGTH}}}")
_DOT_SEGMENTS: Final = frozenset({".", ".."})


class RolloutControlError(RuntimeError):
    """The base class of all errors of this project, on either side, but for bad arguments and RolloutRetiredError."""


class RolloutRetiredError(LookupError):
    """The rollout is retired: its calls were removed. An empty manifest would mean that it made none.

    It is a LookupError and no RolloutControlError, as in NeMo Gym, so that code written for Gym's class works with it.

    Attributes:
        rollout_id: The retired rollout.
    """

    def __init__(self, rollout_id: str) -> None:
        super().__init__(rollout_id)
        self.rollout_id = rollout_id

    def __str__(self) -> str:
        return f"rollout {self.rollout_id!r} is retired"


def openapi_yaml() -> bytes:
    """Returns the bytes of the OpenAPI document's file."""
    return files(__name__).joinpath("openapi.yaml").read_bytes()


def validate_auth_token(auth_token: str) -> str:
    """Returns the bearer token if a header can carry it (RFC 9110, section 5.5).

    The errors never show the token.

    Raises:
        TypeError: It is not a string.
        ValueError: It is empty, or has another character than printable ASCII without the space.
    """
    if not isinstance(auth_token, str):
        raise TypeError(f"auth_token is a string, not {type(auth_token).__name__}")
    if not auth_token:
        raise ValueError("auth_token must not be empty: whoever holds it can remove ledgers")
    if not auth_token.isascii() or not auth_token.isprintable() or " " in auth_token:
        raise ValueError("auth_token must be printable ASCII without spaces, or no header can carry it")
    return auth_token


def validate_rollout_id(rollout_id: str) -> str:
    """Returns the rollout id if it is valid.

    A rollout id has 1 to 255 ASCII letters, digits, `.`, `_` and `-`. It is neither `.` nor `..`: URL normalisation
    removes these from a path (RFC 3986, section 5.2.4), so such a rollout's manifest could not be asked for.

    Raises:
        TypeError: It is not a string.
        ValueError: It is not valid.
    """
    if not isinstance(rollout_id, str):
        raise TypeError(f"a rollout id is a string, not {type(rollout_id).__name__}")
    if _ROLLOUT_ID.fullmatch(rollout_id) is None or rollout_id in _DOT_SEGMENTS:
        shown = rollout_id if len(rollout_id) <= 80 else rollout_id[:80] + "..."
        raise ValueError(
            f"invalid rollout id {shown!a} of {len(rollout_id)} characters: "
            "use 1 to 255 ASCII letters, digits, '.', '_' and '-', and neither '.' nor '..'"
        )
    return rollout_id


def validate_rollout_id_prefix(prefix: str) -> str:
    """Returns the prefix if a rollout id can begin with it.

    Raises:
        TypeError: It is not a string.
        ValueError: It is empty, too long, or has a character that no rollout id has.
    """
    # `.` and `..` are no ids, but ids begin with them.
    validate_rollout_id(prefix.replace(".", "_") if isinstance(prefix, str) else prefix)
    return prefix


def unique_rollout_ids(rollout_ids: Sequence[str]) -> list[str]:
    """Returns the ids of a batch, each once, in the order of their first appearance.

    All of them are checked before this returns, so that a caller changes nothing for a batch with an invalid id.

    Raises:
        TypeError: It is a single string, which would be a sequence of one-character ids, or no iterable of strings.
        ValueError: An id is not valid.
    """
    if isinstance(rollout_ids, str | bytes):
        raise TypeError(f"rollout_ids is a sequence of ids; wrap a single one in a list: [{rollout_ids!r:.80}]")
    if not isinstance(rollout_ids, Iterable):
        raise TypeError(f"rollout_ids is a sequence of ids, not {type(rollout_ids).__name__}")
    ids = list(rollout_ids)
    if not _are_rollout_ids(ids):
        for rollout_id in ids:
            validate_rollout_id(rollout_id)
    return list(dict.fromkeys(ids))


def _are_rollout_ids(ids: list[str]) -> bool:
    """Returns whether all ids are valid. It takes half the time of calling `validate_rollout_id` for each."""
    try:
        return all(map(_ROLLOUT_ID.fullmatch, ids)) and _DOT_SEGMENTS.isdisjoint(ids)
    except TypeError:
        return False
