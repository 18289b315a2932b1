"""The errors of the server's side, and the kinds of problem document that answer them over HTTP.

One tree, below the base class that both sides share:

    RolloutControlError (RuntimeError)
    ├── LedgerError                     a ledger could not do what it was asked
    │   ├── LedgerConflictError         (and ValueError) the call id holds something else already
    │   ├── LedgerUnavailableError      the storage cannot answer now; the same call may work later
    │   │   └── LedgerClosedError       this handle is closed
    │   ├── LedgerCorruptError          the storage holds what no ledger of ours writes
    │   └── LedgerRefusedError          the storage is not, or cannot be, a ledger of ours
    └── RequestRefusedError             a request that the control plane answers with a problem document

    RolloutRetiredError (LookupError)   the rollout is retired; shared with the client, from the spec package

Bad arguments are plain ValueError and TypeError.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec
from rollout_control_spec import RolloutControlError, RolloutRetiredError

__all__ = [
    "LedgerClosedError",
    "LedgerConflictError",
    "LedgerCorruptError",
    "LedgerError",
    "LedgerRefusedError",
    "LedgerUnavailableError",
    "Problem",
    "ProblemKind",
    "RequestRefusedError",
    "RolloutControlError",
    "RolloutRetiredError",
]


class LedgerError(RolloutControlError):
    """A ledger could not do what it was asked. What it acknowledged before is unchanged."""


class LedgerConflictError(LedgerError, ValueError):
    """The call id already holds another commit, or a failure row. Nothing was changed."""


class LedgerUnavailableError(LedgerError):
    """The ledger's storage cannot answer now: it is locked, full, read-only, gone or down. Nothing is half done.

    Attributes:
        retry_after_s: Whole seconds after which another attempt is reasonable.
    """

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LedgerClosedError(LedgerUnavailableError):
    """The ledger's handle is closed. Open another."""


class LedgerCorruptError(LedgerError):
    """The storage holds what no ledger of ours writes. Another attempt meets the same."""


class LedgerRefusedError(LedgerError):
    """The storage is no ledger of ours, cannot be one, or is newer than this program. The message says what to do."""


class ProblemKind(Enum):
    """The kinds of problem document, as status, name in the document's `type`, and title.

    Titles are written out: the reason phrases of `http.HTTPStatus` differ between Python versions.
    """

    INVALID_ROLLOUT_ID = (400, "invalid-rollout-id", "Invalid rollout id")
    MALFORMED_BODY = (400, "malformed-body", "Malformed body")
    UNAUTHORIZED = (401, "unauthorized", "Unauthorized")
    NOT_FOUND = (404, "not-found", "Not found")
    METHOD_NOT_ALLOWED = (405, "method-not-allowed", "Method not allowed")
    REMOVAL_REFUSED = (409, "removal-refused", "Removal refused")
    ROLLOUT_RETIRED = (410, "rollout-retired", "Rollout retired")
    BODY_TOO_LARGE = (413, "body-too-large", "Body too large")
    UNSUPPORTED_MEDIA_TYPE = (415, "unsupported-media-type", "Unsupported media type")
    INVALID_BODY = (422, "invalid-body", "Invalid body")
    INVALID_QUERY = (422, "invalid-query", "Invalid query")
    INTERNAL = (500, "internal", "Internal error")
    NOT_IMPLEMENTED = (501, "not-implemented", "Not implemented")
    UNAVAILABLE = (503, "unavailable", "Ledger unavailable")

    def __init__(self, status: int, slug: str, title: str) -> None:
        self.status: Final = status
        self.type: Final = f"urn:rollout-control:problem:{slug}"
        self.title: Final = title


class Problem(msgspec.Struct, frozen=True):
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


@dataclass(eq=False)
class RequestRefusedError(RolloutControlError):
    """A request that the control plane answers with a problem document.

    Attributes:
        kind: Which kind of problem it is.
        detail: What went wrong, and what to do about it. The caller reads it, so it has no internals and no token.
        headers: Further headers of the answer.
    """

    kind: ProblemKind
    detail: str
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind.status} {self.kind.title}: {self.detail}"

    def document(self) -> bytes:
        """Returns the problem document as JSON."""
        return msgspec.json.encode(Problem(self.kind.type, self.kind.title, self.kind.status, self.detail))
