"""Copying the WAL into the database, safely on every SQLite."""

import os
import sqlite3
import time
from typing import Final

from rollout_control_server.ledger.sqlite.file import LedgerFile
from rollout_control_server.ledger.sqlite.locking import begin_immediate

__all__ = ["Checkpointer"]

_WAL_BYTES: Final = 16 * 2**20
_FIRST_LINGER_S: Final = 0.001
_LONGEST_LINGER_S: Final = 0.25


class Checkpointer:
    """Copies the WAL into the database when it has grown large, so that the next commit begins it anew.

    SQLite 3.7.0 to 3.51.2 can corrupt a database when a commit begins the WAL anew while another connection checkpoints
    (https://sqlite.org/wal.html#walresetbug). So no connection of ours checkpoints by itself, and here a second
    connection holds the write lock meanwhile: nobody can commit. PASSIVE is the one mode that does not want that lock
    for itself.

    With a journal_size_limit of 0 the commit that begins the WAL anew truncates it, so its size tells how much is in
    it. It begins anew only when no reader is left that began before the checkpoint was complete. Hence the lingering:
    readers that come meanwhile read the database alone. As long as that does not succeed, it gets longer.
    """

    def __init__(self, file: LedgerFile, busy_timeout_s: float) -> None:
        self._file: Final = file
        self._busy_timeout_s: Final = busy_timeout_s
        self._due_at = _WAL_BYTES
        self._linger_s = _FIRST_LINGER_S

    def run_if_due(self, connection: sqlite3.Connection, lock_holder: sqlite3.Connection) -> None:
        """Checkpoints if the WAL is large; `lock_holder` is another connection to the same file."""
        size = os.stat(self._file.wal).st_size
        if size < _WAL_BYTES:
            self._due_at, self._linger_s = _WAL_BYTES, _FIRST_LINGER_S
        elif size >= self._due_at:
            begin_immediate(lock_holder, self._busy_timeout_s)
            try:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                time.sleep(self._linger_s)
            finally:
                lock_holder.execute("ROLLBACK")
            self._due_at = size + _WAL_BYTES // 4
            self._linger_s = min(2 * self._linger_s, _LONGEST_LINGER_S)
