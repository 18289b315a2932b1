"""Removing the rows of generations that no rollout has any more, a millisecond or so at a time."""

import logging
import time
from typing import Any, Final

import apsw

from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger.sqlite.connections import transaction
from rollout_control_server.ledger.sqlite.faults import storage_faults
from rollout_control_server.ledger.sqlite.file import LedgerFile
from rollout_control_server.ledger.sqlite.schema import MAX_ROWS, SEQ_BITS

__all__ = ["Purge", "purge_is_due"]

logger = logging.getLogger("rollout_control_server.ledger")

_STEP_ROWS: Final = 64
"""Rows of one generation that are removed between two looks at the clock, well under a millisecond's worth."""


def purge_is_due(connection: apsw.Connection) -> bool:
    """Tells whether any rows are waiting to be removed."""
    return connection.execute("SELECT 1 FROM purge_queue LIMIT 1").fetchone() is not None


class Purge:
    """The purge of one handle, which passes over generations that are damaged until the ledger is opened again.

    Args:
        file: The ledger's file, for what is logged.
    """

    def __init__(self, file: LedgerFile) -> None:
        self._file: Final = file
        self._damaged: Final[set[int]] = set()

    def run(self, connection: apsw.Connection, budget_s: float, busy_timeout_s: float) -> bool:
        """Removes rows for about `budget_s` seconds, in transactions of their own.

        Each step removes the first rows that it finds, so a purge goes on from wherever another, or a crash, has left
        it, and always makes progress.

        Returns:
            Whether there may be more to remove.
        """
        end = time.perf_counter() + budget_s
        generation = None
        try:
            with storage_faults(self._file.path), transaction(connection, busy_timeout_s):
                while time.perf_counter() < end:
                    oldest: list[Any] = connection.execute(
                        "SELECT generation FROM purge_queue ORDER BY generation LIMIT ?", (len(self._damaged) + 1,)
                    ).fetchall()
                    generation = next((one for (one,) in oldest if one not in self._damaged), None)
                    if generation is None:
                        return False
                    _remove_some(connection, generation)
        except LedgerCorruptError as error:
            if generation is None:
                raise
            self._damaged.add(generation)
            logger.error("cannot purge generation %d of ledger %s: %s", generation, self._file.path, error)
        return True


def _remove_some(connection: apsw.Connection, generation: int) -> None:
    base = generation << SEQ_BITS
    first = connection.execute(
        "SELECT min(call_rowid) FROM call WHERE call_rowid BETWEEN ? AND ?", (base, base + MAX_ROWS - 1)
    ).get
    if first is None:
        connection.execute("DELETE FROM purge_queue WHERE generation = ?", (generation,))
    else:
        last = min(first + _STEP_ROWS, base + MAX_ROWS) - 1
        connection.execute("DELETE FROM call WHERE call_rowid BETWEEN ? AND ?", (first, last))
