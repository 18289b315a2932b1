"""The one seam where SQLite's errors become errors of our tree."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rollout_control_server.errors import LedgerCorruptError, LedgerUnavailableError

__all__ = ["storage_faults"]

_CORRUPT: Final = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_ERROR,  # our statements are right, so a table or column is missing
        sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_CONSTRAINT,  # what a constraint forbids is checked before it is written
    }
)


@contextmanager
def storage_faults(path: Path) -> Iterator[None]:
    """Raises what SQLite raises within as an error of our tree.

    Raises:
        LedgerCorruptError: The file's content cannot be true.
        LedgerUnavailableError: Anything else that the storage has: locked, full, read-only, failing.
        ValueError: A value is larger than SQLite can store.
    """
    try:
        yield
    except OSError as error:
        raise LedgerUnavailableError(f"the ledger {path} cannot answer now: {error}") from error
    except sqlite3.DataError as error:
        raise ValueError(f"this cannot be recorded: {error}") from error
    except sqlite3.Error as error:
        # A misuse of the module has no code, and is our own mistake.
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            raise
        if code & 0xFF in _CORRUPT:
            raise LedgerCorruptError(f"the ledger {path} is damaged: {error}") from error
        raise LedgerUnavailableError(f"the ledger {path} cannot answer now: {error}") from error
