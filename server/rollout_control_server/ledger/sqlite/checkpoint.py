"""Copying the WAL into the database, so that the next commit can begin the WAL anew."""

import contextlib
import logging
from typing import Final

import apsw

from rollout_control_server.ledger.sqlite.file import LedgerFile

__all__ = ["Checkpoints"]

logger = logging.getLogger("rollout_control_server.ledger")

_DUE_PAGES: Final = 1000
"""SQLite's own default: 8 MB of pages, which are copied in a few milliseconds."""
_LONG_PAGES: Final = 4000
"""The WAL gets longer than this only while readers never leave it alone; then a checkpoint waits for them."""
READING_S: Final = 1.0
"""How long a reading may take without the WAL growing for it; the writers wait so long for readers to end."""


class Checkpoints:
    """The checkpoints of one connection that writes.

    SQLite begins the WAL anew by itself when a checkpoint has copied all of it and no reader is left that began before.
    Where readers overlap all the time, that moment never comes. So a WAL that has grown long is checkpointed in the
    mode that makes new readers read the database alone, and waits for the old ones.

    Args:
        connection: The connection; its commits say how long the WAL is.
        file: The ledger's file, for what is logged.
    """

    def __init__(self, connection: apsw.Connection, file: LedgerFile) -> None:
        self._connection: Final = connection
        self._file: Final = file
        self._pages = 0
        self._due_at = _DUE_PAGES
        connection.set_wal_hook(self._note_length)

    def run_if_due(self) -> None:
        """Copies the WAL into the database, if it has grown by a part that is worth it."""
        if self._pages < self._due_at:
            return
        self._due_at = self._pages + _DUE_PAGES
        if self._pages < _LONG_PAGES:
            # Busy: another handle makes one just now.
            with contextlib.suppress(apsw.BusyError):
                self._connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)
        else:
            self._wait_for_readers()

    def _wait_for_readers(self) -> None:
        self._connection.set_busy_timeout(round(READING_S * 1000))
        try:
            self._connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_RESTART)
        except apsw.BusyError:
            logger.warning(
                "the WAL of ledger %s has %d pages and cannot begin anew: a reading, or another program's transaction, "
                "has been going on for more than %g s",
                self._file.path,
                self._pages,
                READING_S,
            )
        finally:
            self._connection.set_busy_timeout(0)

    def _note_length(self, _connection: apsw.Connection, _schema: str, pages: int) -> int:
        if pages < self._pages:
            # It has begun anew.
            self._due_at = _DUE_PAGES
        self._pages = pages
        return apsw.SQLITE_OK
