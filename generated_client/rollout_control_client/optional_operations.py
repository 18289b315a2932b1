"""Servers that lack an operation which the protocol leaves to them."""

from typing import Final

from rollout_control_client.errors import OperationNotOfferedError, RequestFailedError

__all__ = ["NO_SUCH_OPERATION", "not_offered"]

NO_SUCH_OPERATION: Final = frozenset({404, 405, 501})
"""The statuses of a server without an operation: no such path, no such method of it, or a ledger that cannot do it."""


def not_offered(error: RequestFailedError, operation: str) -> RequestFailedError:
    """Returns an error that names the operation if the server lacks it, else the error itself.

    Args:
        error: The failure of a request for the operation.
        operation: What the server does not do, such as `list rollouts`.
    """
    if error.status not in NO_SUCH_OPERATION:
        return error
    detail = f"the server that base_url leads to does not {operation}: {error.detail}"
    lacking = OperationNotOfferedError(error.method, error.path, error.status, detail)
    lacking.partial_removal = error.partial_removal
    return lacking
