"""Capture ledgers: the interface, the backends, and how a URL names one."""

from urllib.parse import urlsplit

from rollout_control_server.ledger.base import CaptureLedger, FenceCount
from rollout_control_server.ledger.memory import MemoryLedger

__all__ = ["CaptureLedger", "FenceCount", "MemoryLedger", "open_ledger"]


def open_ledger(url: str) -> CaptureLedger:
    """Opens the ledger that a URL names.

    - `memory://`: in this process, gone with it.

    Raises:
        LedgerRefusedError: What the URL names cannot be a ledger.
        ValueError: The URL names no kind of ledger.
    """
    scheme = urlsplit(url).scheme
    if url == "memory://":
        return MemoryLedger()
    raise ValueError(f"no ledger has the URL scheme {scheme!r}; use memory://")
