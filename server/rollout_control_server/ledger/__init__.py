"""Capture ledgers: the interface, the backends, and how a URL names one."""

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from rollout_control_server.ledger.base import CaptureLedger, FenceCount
from rollout_control_server.ledger.memory import MemoryLedger

if TYPE_CHECKING:
    from rollout_control_server.ledger.sqlite import SqliteLedger

__all__ = ["CaptureLedger", "FenceCount", "MemoryLedger", "SqliteLedger", "open_ledger", "shown_ledger_url"]


def open_ledger(url: str, *, create: bool = True) -> CaptureLedger:
    """Opens the ledger that a URL names.

    - `memory://`: in this process, gone with it.
    - `sqlite:///PATH`: in a file that the processes of one machine share. PATH is relative to the working directory,
      and absolute with a fourth slash: `sqlite:////var/lib/ledger.sqlite`. With `?any_file_system=yes` it may lie on a
      file system that is not known to be fit.
    - `postgresql://USER:PASSWORD@HOST/DATABASE`: in a PostgreSQL database; the query takes what libpq's takes, and the
      options of PostgresLedger.

    Args:
        url: Which ledger.
        create: Whether a SQLite file that is not there is made.

    Raises:
        LedgerRefusedError: What the URL names cannot be a ledger.
        ModuleNotFoundError: The URL's kind of ledger needs an extra that is not installed.
        ValueError: The URL names no kind of ledger, or has an option that cannot be.
    """
    if url.startswith(("postgresql://", "postgres://")):
        # Its driver is an extra of its own.
        from rollout_control_server.ledger.postgres import PostgresLedger
        from rollout_control_server.ledger.postgres.hosts import ALLOWED_OPTIONS

        try:
            return PostgresLedger.from_url(url)
        except ValueError as error:
            raise ValueError(f"{error}. {ALLOWED_OPTIONS}") from None
    scheme = urlsplit(url).scheme
    if url == "memory://":
        return MemoryLedger()
    if scheme == "memory":
        raise ValueError("the URL of a ledger in memory is memory:// alone: it has no name and no options")
    if scheme == "sqlite":
        return _open_sqlite(url, create=create)
    raise ValueError(
        f"no ledger has the URL scheme {scheme!r}; use memory://, sqlite:///PATH or postgresql://... "
        "(the file of a copy is file:///PATH, with three slashes)"
    )


def shown_ledger_url(url: str) -> str:
    """Returns a ledger's URL as it may be shown and logged: without the password that it may hold."""
    if not url.startswith(("postgresql://", "postgres://")):
        return url
    # A password that somebody has not percent-encoded may hold anything: it ends at the last @.
    without = re.sub(r"//([^:/?@]*):.*@", r"//\1:***@", url)
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1***", without)


def _open_sqlite(url: str, *, create: bool) -> CaptureLedger:
    location, question_mark, options = url.partition("?")
    start, path = location[: len("sqlite:///")], location[len("sqlite:///") :]
    if start != "sqlite:///" or path in ("", "/"):
        raise ValueError(f"{url!r} names no file: write sqlite:///ledger.sqlite, or sqlite:////var/lib/ledger.sqlite")
    if "#" in url or (question_mark and options != "any_file_system=yes"):
        raise ValueError(
            f"a sqlite:///FILE has no options but any_file_system=yes, and {url!r} has others: in a file's name "
            "write ? as %3F, # as %23"
        )
    from rollout_control_server.ledger.sqlite import SqliteLedger

    return SqliteLedger(unquote(path), create=create, any_file_system=bool(question_mark))


def __getattr__(name: str) -> Any:
    """Imports SqliteLedger when it is asked for: its driver is not there where only the client is installed."""
    if name == "SqliteLedger":
        from rollout_control_server.ledger.sqlite import SqliteLedger

        return SqliteLedger
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
