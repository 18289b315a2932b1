"""Removing the rows of generations that no rollout has any more, a millisecond or so at a time."""

import sqlite3
import time
from typing import Final

from rollout_control_server.ledger.sqlite.locking import begin_immediate
from rollout_control_server.ledger.sqlite.rows import SEQ_MASK
from rollout_control_server.ledger.sqlite.schema import SEQ_BITS

__all__ = ["purge_is_due", "purge_some"]

_STEP_ROWS: Final = 128
"""Rows of one generation that are removed between two looks at the clock, well under a millisecond's worth."""


def purge_is_due(connection: sqlite3.Connection) -> bool:
    """Tells whether any rows are waiting to be removed."""
    return connection.execute("SELECT 1 FROM purge LIMIT 1").fetchone() is not None


def purge_some(connection: sqlite3.Connection, budget_s: float, busy_timeout_s: float) -> None:
    """Removes rows for about `budget_s` seconds, in a transaction of its own.

    Each step removes what it finds first, so a purge goes on from wherever another, or a crash, has left it.
    """
    begin_immediate(connection, busy_timeout_s)
    try:
        end = time.perf_counter() + budget_s
        while time.perf_counter() < end:
            oldest = connection.execute("SELECT generation FROM purge ORDER BY generation LIMIT 1").fetchone()
            if oldest is None:
                break
            _purge_step(connection, oldest[0])
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _purge_step(connection: sqlite3.Connection, generation: int) -> None:
    base = generation << SEQ_BITS
    first = connection.execute(
        "SELECT call_rowid FROM call WHERE call_rowid BETWEEN ? AND ? ORDER BY call_rowid LIMIT 1",
        (base, base | SEQ_MASK),
    ).fetchone()
    if first is not None:
        end = min(first[0] + _STEP_ROWS, (base | SEQ_MASK) + 1)
        connection.execute("DELETE FROM call WHERE call_rowid >= ? AND call_rowid < ?", (first[0], end))
    # A row has at most two keys.
    last_key = connection.execute(
        "SELECT key FROM block_finder WHERE generation = ? ORDER BY key LIMIT 1 OFFSET ?", (generation, 2 * _STEP_ROWS)
    ).fetchone()
    if last_key is not None:
        connection.execute("DELETE FROM block_finder WHERE generation = ? AND key < ?", (generation, last_key[0]))
    else:
        connection.execute("DELETE FROM block_finder WHERE generation = ?", (generation,))
    rows_left = connection.execute(
        "SELECT 1 FROM call WHERE call_rowid BETWEEN ? AND ? LIMIT 1", (base, base | SEQ_MASK)
    ).fetchone()
    if rows_left is None and last_key is None:
        connection.execute("DELETE FROM purge WHERE generation = ?", (generation,))
