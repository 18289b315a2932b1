"""Capture ledgers: the interface, the backends, and how a URL names one."""

from urllib.parse import unquote, urlsplit

from rollout_control_server.ledger.base import CaptureLedger, FenceCount
from rollout_control_server.ledger.memory import MemoryLedger
from rollout_control_server.ledger.sqlite import SqliteLedger

__all__ = ["CaptureLedger", "FenceCount", "MemoryLedger", "SqliteLedger", "open_ledger"]


def open_ledger(url: str) -> CaptureLedger:
    """Opens the ledger that a URL names.

    - `memory://`: in this process, gone with it.
    - `sqlite:///PATH`: in a file that the processes of one machine share. PATH is relative to the working directory,
      and absolute with a fourth slash: `sqlite:////var/lib/ledger.sqlite`.

    Raises:
        LedgerRefusedError: What the URL names cannot be a ledger.
        ValueError: The URL names no kind of ledger.
    """
    scheme = urlsplit(url).scheme
    if url == "memory://":
        return MemoryLedger()
    if scheme == "sqlite":
        return _open_sqlite(url)
    raise ValueError(f"no ledger has the URL scheme {scheme!r}; use memory:// or sqlite:///PATH")


def _open_sqlite(url: str) -> SqliteLedger:
    start, path = url[: len("sqlite:///")], url[len("sqlite:///") :]
    if start != "sqlite:///" or path in ("", "/") or "?" in path or "#" in path:
        raise ValueError(f"{url!r} names no file: write sqlite:///ledger.sqlite, or sqlite:////var/lib/ledger.sqlite")
    return SqliteLedger(unquote(path))
