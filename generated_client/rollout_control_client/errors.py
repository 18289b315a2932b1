"""What the client raises.

    RolloutControlError (RuntimeError)        the root, shared with the server
    └── RequestFailedError                    a request that was not done, for whatever reason
        ├── RemovalRefusedError               409: the server removes nothing for now; try again later, or give wait_s
        ├── ServiceUnavailableError           429, 502, 503, 504: the server cannot answer now, after every retry
        ├── ServerUnreachableError            no connection, or one that broke, after every retry
        ├── RequestTimedOutError              no whole answer within the time
        ├── OperationNotOfferedError          404, 405 or 501: the server lacks an optional operation
        └── ContractBrokenError (ValueError)  an answer, but not one that the contract allows

    RolloutRetiredError (LookupError)         410: the rollout is retired, and its calls are removed. An empty manifest
                                              would mean that it made none

Bad arguments are plain ValueError and TypeError, raised before anything is sent. Every error can be pickled, and so
crosses a process boundary whole.
"""

import msgspec
from rollout_control_spec import RolloutControlError, RolloutRetiredError

from rollout_control_client._generated.models import IdleRemoval, RolloutRemoval

__all__ = [
    "ContractBrokenError",
    "OperationNotOfferedError",
    "PartialRemoval",
    "RemovalRefusedError",
    "RequestFailedError",
    "RequestTimedOutError",
    "RolloutControlError",
    "RolloutRetiredError",
    "ServerUnreachableError",
    "ServiceUnavailableError",
]


class PartialRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """How far a removal came before it failed. Repeating it with all ids, or with those left, is safe.

    Attributes:
        finished: What the requests before the failed one did; an IdleRemoval for `retire_idle`.
        unconfirmed: The ids of the failed request, which may or may not have been removed.
        unsent: The ids that no request named.
    """

    finished: RolloutRemoval | IdleRemoval
    unconfirmed: list[str]
    unsent: list[str]


class RequestFailedError(RolloutControlError):
    """A request that was not done.

    Attributes:
        method: The request's HTTP method.
        path: The request's path, the prefix of `base_url` included.
        status: The status of the answer; None if there was no whole answer.
        detail: The reason: the `detail` of the answer's body where it has one, at most 1000 characters of it.
        partial_removal: For a retire, a retire_idle or a delete, how far it came; None for other operations.
        request_id: What the server's log calls the request by: the answer's `X-Request-Id`, or the one that was sent.
    """

    partial_removal: PartialRemoval | None = None
    request_id: str | None = None

    def __init__(self, method: str, path: str, status: int | None, detail: str) -> None:
        super().__init__(method, path, status, detail)
        self.method = method
        self.path = path
        self.status = status
        self.detail = detail

    def __str__(self) -> str:
        answer = "" if self.status is None else f" was answered with status {self.status}"
        name = "" if self.request_id is None else f" (request {self.request_id})"
        return f"{self.method} {self.path}{answer}: {self.detail}{name}"


class RemovalRefusedError(RequestFailedError):
    """The server refuses to remove ledgers for now; `detail` says why. Try again later, or have the call wait.

    Attributes:
        retry_after_s: Seconds for which the server expects to refuse; None if it didn't say.
    """

    retry_after_s: float | None = None


class ServiceUnavailableError(RequestFailedError):
    """The server cannot answer now: its storage (503), a limit (429) or a proxy before it (502, 504) says so.

    Repeating the operation is safe.

    Attributes:
        retry_after_s: Seconds after which the server wants to be asked again; None if it didn't say.
    """

    retry_after_s: float | None = None


class ServerUnreachableError(RequestFailedError):
    """The server could not be connected to, or the connection broke before the answer was complete."""


class RequestTimedOutError(RequestFailedError):
    """The request, with all its retries, did not get a whole answer within the client's `request_timeout_s`."""


class OperationNotOfferedError(RequestFailedError):
    """The server does not have the operation, which is optional for servers. `detail` names the operation."""


class ContractBrokenError(RequestFailedError, ValueError):
    """The answer is not what the contract promises: no JSON, another shape, another rollout, ids left out."""
