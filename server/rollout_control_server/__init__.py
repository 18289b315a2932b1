"""A server for the rollout-control protocol, and the capture ledgers that it serves."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollout_control_server.errors import (
    LedgerConflictError,
    LedgerCorruptError,
    LedgerError,
    LedgerRefusedError,
    LedgerUnavailableError,
    RolloutControlError,
    RolloutRetiredError,
)
from rollout_control_server.ledger import CaptureLedger, MemoryLedger, open_ledger
from rollout_control_server.records import (
    CallFailure,
    CallRecord,
    CaptureCommit,
    ParentLookup,
    RolloutManifest,
    RolloutRemoval,
)

if TYPE_CHECKING:
    from rollout_control_server.app import create_app
    from rollout_control_server.control_routes import install_rollout_control_routes

__all__ = [
    "CallFailure",
    "CallRecord",
    "CaptureCommit",
    "CaptureLedger",
    "LedgerConflictError",
    "LedgerCorruptError",
    "LedgerError",
    "LedgerRefusedError",
    "LedgerUnavailableError",
    "MemoryLedger",
    "ParentLookup",
    "RolloutControlError",
    "RolloutManifest",
    "RolloutRemoval",
    "RolloutRetiredError",
    "create_app",
    "install_rollout_control_routes",
    "open_ledger",
]

_SERVING = {"create_app": "app", "install_rollout_control_routes": "control_routes"}


def __getattr__(name: str) -> Any:
    """Imports what serves HTTP when it is asked for: a process that only writes ledgers needs no web framework."""
    if name not in _SERVING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_SERVING[name]}"), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{name} needs the server extra: pip install 'rollout-control[server]' (there is no module {error.name!r})",
            name=error.name,
        ) from error
