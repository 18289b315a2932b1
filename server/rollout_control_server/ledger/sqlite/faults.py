"""The one place where SQLite's errors become errors of our tree."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from rollout_control_server.errors import LedgerCorruptError, LedgerUnavailableError

__all__ = ["WRONG_CHECKSUM", "storage_faults"]

_DAMAGE: Final = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.FormatError,
    apsw.SQLError,  # our statements are right, so a table or a column is missing
    apsw.SchemaChangeError,
    apsw.MismatchError,
    apsw.ConstraintError,  # what a constraint forbids is checked before it is written
    UnicodeDecodeError,  # a stored text is no UTF-8
    OverflowError,  # a stored generation is one that is never given
)
WRONG_CHECKSUM: Final = apsw.SQLITE_IOERR_DATA


@contextmanager
def storage_faults(path: Path) -> Iterator[None]:
    """Raises what SQLite and the file system raise within as an error of our tree.

    Raises:
        LedgerCorruptError: The file's content cannot be true.
        LedgerUnavailableError: Anything else that the storage has: locked, full, read-only, failing.
        ValueError: A value is larger than SQLite can store.
    """
    try:
        yield
    except _DAMAGE as error:
        raise LedgerCorruptError(f"the ledger {path} is damaged: {error}") from error
    except OSError as error:
        raise LedgerUnavailableError(f"the ledger {path} cannot answer now: {error}") from error
    except apsw.TooBigError as error:
        raise ValueError(f"this cannot be recorded: {error}") from error
    except apsw.Error as error:
        if getattr(error, "extendedresult", None) == WRONG_CHECKSUM:
            raise LedgerCorruptError(
                f"the ledger {path} is damaged: the checksum of a page is wrong. The disk has changed it, or a program "
                "has written it that does not know the ledger's checksums; docs/sqlite.md says how to go on"
            ) from error
        raise LedgerUnavailableError(f"the ledger {path} cannot answer now: {error}") from error
