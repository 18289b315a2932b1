"""Installs the control routes in an application of Litestar, Starlette or FastAPI.

The name of the module, and the names in it, are those of `nemo_gym.token_id_capture.control_routes`. The paths are in
`control_application`, what each operation does is in `operations`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollout_control_spec import CONTROL_ROUTE_PREFIX, MAX_LEDGER_BATCH

from rollout_control_server.control_application import ControlApplication
from rollout_control_server.hosts import mount
from rollout_control_server.manifests import DEFAULT_ANSWER_LIMIT
from rollout_control_server.operations import Operations, RefuseRemoval
from rollout_control_server.records import LedgerBatchRequest

if TYPE_CHECKING:
    from rollout_control_client import RolloutControlClient

__all__ = [
    "CONTROL_ROUTE_PREFIX",
    "MAX_LEDGER_BATCH",
    "LedgerBatchRequest",
    "RolloutControlClient",
    "install_rollout_control_routes",
]


def install_rollout_control_routes(
    app: Any,
    lineage_store: Any,
    auth_token: str,
    refuse_removal: RefuseRemoval | None = None,
    *,
    answer_limit: int = DEFAULT_ANSWER_LIMIT,
) -> None:
    """Installs the routes that read, retire and delete ledgers, below `CONTROL_ROUTE_PREFIX`, for bearers of a token.

    Everything below the prefix is answered here, errors included; the application's own routes, schema, exception
    handlers and logging stay as they are. No lifespan is needed.

    Args:
        app: A Litestar, Starlette or FastAPI application.
        lineage_store: The ledger: a CaptureLedger of ours, or an object of another make with a coroutine `manifest`,
            and perhaps `retire`, `delete`, `rollouts`, `summary` and `retire_idle`; an operation that it lacks is 501.
        auth_token: The secret that a request must carry.
        refuse_removal: Asked before each retire and delete. A reason refuses it for now, with 409, and the caller
            retries later.
        answer_limit: Bytes that the manifests of one bulk answer may have together; a single larger manifest is sent
            by itself.

    Raises:
        TypeError: `app` or `lineage_store` is of another kind, or `refuse_removal` cannot be called.
        ValueError: The token is empty or cannot be sent in a header, `answer_limit` is less than 1, or the application
            has routes already that would answer in their place.
    """
    if isinstance(lineage_store, type) or not callable(getattr(lineage_store, "manifest", None)):
        raise TypeError(f"lineage_store is a ledger with a coroutine 'manifest', not {lineage_store!r:.80}")
    control = ControlApplication(Operations(lineage_store, refuse_removal, answer_limit), auth_token)
    mount(app, CONTROL_ROUTE_PREFIX, f"{CONTROL_ROUTE_PREFIX}/rollouts/r/manifest", control)


def __getattr__(name: str) -> Any:
    """Imports the client when it is asked for: a server has no other need of it."""
    if name == "RolloutControlClient":
        return import_module("rollout_control_client").RolloutControlClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
