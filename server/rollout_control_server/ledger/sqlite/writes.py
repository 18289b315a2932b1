"""What is written: each function runs within the transaction that commits it with others.

Each checks before it changes anything, so that one that raises has changed nothing.
"""

import time
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from rollout_control_server.errors import LedgerConflictError, LedgerCorruptError, LedgerUnavailableError
from rollout_control_server.ledger.checked_rows import CheckedCommit, CheckedFailure
from rollout_control_server.ledger.results import IdleRemoval, RolloutExport
from rollout_control_server.ledger.sqlite.rows import INSERT_CALL, SELECT_CALL, StoredCall, columns_of, seq_of
from rollout_control_server.ledger.sqlite.schema import MAX_ROWS, SEQ_BITS
from rollout_control_server.records import RolloutRemoval

__all__ = [
    "FencesSeen",
    "check_writable",
    "delete",
    "forget_fences",
    "import_rollouts",
    "record",
    "record_failure",
    "retire",
    "retire_idle",
]

_ENCODER: Final = msgspec.json.Encoder()

LAST_ROWID: Final = f"""
  (SELECT max(call_rowid) FROM call
   WHERE call_rowid BETWEEN rollout.generation << {SEQ_BITS} AND (rollout.generation << {SEQ_BITS}) + {MAX_ROWS - 1})
"""
"""The id of the last row of `rollout`, in SQL."""

# All that recording a call has to know, in one statement: whether the rollout is fenced or new, its last row, what the
# ledger has of this call, and whether the staging chain continues that of the parent.
_BEFORE_RECORD: Final = f"""
  SELECT
    rollout.generation,
    {LAST_ROWID},
    (SELECT call_rowid FROM call
     WHERE generation = rollout.generation AND model_call_id = :call AND reason IS NULL),
    (SELECT 1 FROM call
     WHERE generation = rollout.generation AND model_call_id = :call AND reason IS NOT NULL LIMIT 1),
    (SELECT call_rowid FROM call
     WHERE generation = rollout.generation AND model_call_id = :parent AND reason IS NULL AND chain_digest = :chain)
  FROM rollout WHERE rollout_id = :rollout
"""
_BEFORE_FAILURE: Final = f"""
  SELECT
    rollout.generation,
    {LAST_ROWID},
    (SELECT 1 FROM call WHERE generation = rollout.generation AND model_call_id = :call AND reason = :reason)
  FROM rollout WHERE rollout_id = :rollout
"""


class FencesSeen(NamedTuple):
    """What one step through the fences did.

    Attributes:
        forgotten: Fences forgotten.
        kept: Fences kept.
        kept_id_bytes: How long the ids of those are together.
        last_id: Where the next step begins; None after the last one.
    """

    forgotten: int
    kept: int
    kept_id_bytes: int
    last_id: str | None


def check_writable(connection: apsw.Connection) -> None:
    """Does what a write does, on tables that are all there, and writes nothing.

    SQLite lets a transaction on a read-only file begin.
    """
    connection.execute("SELECT 1 FROM rollout, call, purge_queue LIMIT 0")
    connection.execute("UPDATE newest_generation SET generation = 0 WHERE generation < 0")


def record(connection: apsw.Connection, commit: CheckedCommit) -> bool:
    """Records a commit; False means that the rollout is fenced.

    Raises:
        LedgerConflictError: See `CaptureLedger.record`.
    """
    found = connection.execute(
        _BEFORE_RECORD,
        {
            "rollout": commit.rollout_id,
            "call": commit.model_call_id,
            "parent": commit.parent_call_id if commit.staging_chain[-1:] == (commit.staging_key,) else None,
            "chain": commit.parent_chain_digest,
        },
    ).fetchone()
    if found is None:
        generation, call_rowid, parent_rowid = *_begin_rollout(connection, commit.rollout_id), None
    else:
        generation, last_rowid, recorded_rowid, failed, parent_rowid = found
        if generation is None:
            return False
        if recorded_rowid is not None:
            _check_same(connection, recorded_rowid, commit)
            return True
        if failed:
            raise _conflict(commit, "has a failure row")
        call_rowid = _next_rowid(commit.rollout_id, last_rowid)
    parent_seq = None if parent_rowid is None else seq_of(parent_rowid)
    connection.execute(INSERT_CALL, columns_of(commit, call_rowid, time.time(), parent_seq))
    return True


def record_failure(connection: apsw.Connection, failure: CheckedFailure) -> bool:
    """Records a failure row; False means that the rollout is fenced."""
    found = connection.execute(
        _BEFORE_FAILURE,
        {"rollout": failure.rollout_id, "call": failure.model_call_id, "reason": failure.reason},
    ).fetchone()
    if found is None:
        _, call_rowid = _begin_rollout(connection, failure.rollout_id)
    else:
        generation, last_rowid, recorded = found
        if generation is None:
            return False
        if recorded:
            return True
        call_rowid = _next_rowid(failure.rollout_id, last_rowid)
    connection.execute(INSERT_CALL, columns_of(failure, call_rowid, time.time(), None))
    connection.execute(
        "UPDATE rollout SET failures = coalesce(failures, 0) + 1 WHERE rollout_id = ?", (failure.rollout_id,)
    )
    return True


def retire(connection: apsw.Connection, rollout_ids: list[str]) -> RolloutRemoval:
    """Fences the rollouts, and leaves their rows to the purge."""
    ids = _ENCODER.encode(rollout_ids).decode()
    removal = _abandon_rows(connection, rollout_ids, ids)
    connection.execute(
        "INSERT INTO rollout (rollout_id, retired_at) SELECT value, ? FROM json_each(?) WHERE true "
        "ON CONFLICT (rollout_id) DO UPDATE SET generation = NULL, retired_at = excluded.retired_at, "
        "imported_at = NULL, imported_rows = NULL, failures = NULL WHERE generation IS NOT NULL",
        (time.time(), ids),
    )
    return removal


def delete(connection: apsw.Connection, rollout_ids: list[str]) -> RolloutRemoval:
    """Forgets the rollouts, and leaves their rows to the purge."""
    ids = _ENCODER.encode(rollout_ids).decode()
    removal = _abandon_rows(connection, rollout_ids, ids)
    connection.execute("DELETE FROM rollout WHERE rollout_id IN (SELECT value FROM json_each(?))", (ids,))
    return removal


def retire_idle(connection: apsw.Connection, rollout_ids: list[str], idle_for_s: float) -> IdleRemoval:
    """Retires those of the rollouts whose last row is so old."""
    moment = time.time() - idle_for_s
    removal = IdleRemoval([], [], [])
    for rollout_id in rollout_ids:
        found = connection.execute(
            f"SELECT last.recorded_at FROM rollout LEFT JOIN call AS last ON last.call_rowid = {LAST_ROWID} "
            "WHERE rollout_id = ? AND rollout.generation IS NOT NULL",
            (rollout_id,),
        ).fetchone()
        if found is None:
            removal.absent.append(rollout_id)
        elif found[0] is not None and found[0] <= moment:
            removal.removed.append(rollout_id)
        else:
            removal.active.append(rollout_id)
    retire(connection, removal.removed)
    return removal


def forget_fences(connection: apsw.Connection, older_than_s: float, after_id: str, limit: int) -> FencesSeen:
    """Forgets old fences among the next rollouts behind `after_id`, at most `limit` of them."""
    before = time.time() - older_than_s
    seen: list[Any] = connection.execute(
        "SELECT rollout_id, retired_at FROM rollout WHERE rollout_id > ? ORDER BY rollout_id LIMIT ?",
        (after_id, limit),
    ).fetchall()
    old = [rollout_id for rollout_id, retired_at in seen if retired_at is not None and retired_at <= before]
    kept = [rollout_id for rollout_id, retired_at in seen if retired_at is not None and retired_at > before]
    connection.executemany("DELETE FROM rollout WHERE rollout_id = ?", ((rollout_id,) for rollout_id in old))
    return FencesSeen(len(old), len(kept), sum(map(len, kept)), seen[-1][0] if len(seen) == limit else None)


def import_rollouts(connection: apsw.Connection, rollouts: list[RolloutExport]) -> None:
    """Puts the rollouts in the place of what is there under their ids."""
    delete(connection, [export.rollout_id for export in rollouts])
    now = time.time()
    for export in rollouts:
        if export.retired_at is not None:
            connection.execute(
                "INSERT INTO rollout (rollout_id, retired_at, imported_at) VALUES (?, ?, ?)",
                (export.rollout_id, export.retired_at, now),
            )
        elif export.rows:
            _import_rows(connection, export, now)


def _import_rows(connection: apsw.Connection, export: RolloutExport, now: float) -> None:
    if len(export.rows) > MAX_ROWS:
        raise _too_many_rows(export.rollout_id)
    _, first_rowid = _begin_rollout(connection, export.rollout_id)
    failures = sum(isinstance(row, CheckedFailure) for row, _ in export.rows)
    connection.execute(
        "UPDATE rollout SET imported_at = ?, imported_rows = ?, failures = ? WHERE rollout_id = ?",
        (now, len(export.rows), failures or None, export.rollout_id),
    )
    # The places of the records so far, by call id and chain.
    places: dict[tuple[str | None, bytes], int] = {}
    for seq, (row, recorded_at) in enumerate(export.rows):
        parent_seq = None
        if isinstance(row, CheckedCommit):
            if row.staging_chain[-1:] == (row.staging_key,):
                parent_seq = places.get((row.parent_call_id, row.parent_chain_digest))
            places[row.model_call_id, row.chain_digest] = seq
        connection.execute(INSERT_CALL, columns_of(row, first_rowid + seq, recorded_at, parent_seq))


def _begin_rollout(connection: apsw.Connection, rollout_id: str) -> tuple[int, int]:
    """Returns a new rollout's generation, and the id of its first row."""
    found = connection.execute(
        "UPDATE newest_generation SET generation = generation + 1 RETURNING generation"
    ).fetchone()
    if found is None:
        raise LedgerCorruptError("the ledger has lost its newest generation")
    generation: int = found[0]
    connection.execute("INSERT INTO rollout (rollout_id, generation) VALUES (?, ?)", (rollout_id, generation))
    return generation, generation << SEQ_BITS


def _next_rowid(rollout_id: str, last_rowid: int | None) -> int:
    if last_rowid is None:
        raise LedgerCorruptError(f"rollout {rollout_id!r} of the ledger has lost rows")
    if seq_of(last_rowid) == MAX_ROWS - 1:
        raise _too_many_rows(rollout_id)
    return last_rowid + 1


def _too_many_rows(rollout_id: str) -> LedgerUnavailableError:
    return LedgerUnavailableError(
        f"rollout {rollout_id!r} has {MAX_ROWS} rows, and a SqliteLedger holds no more of one"
    )


def _check_same(connection: apsw.Connection, call_rowid: int, commit: CheckedCommit) -> None:
    """Sees that the recorded commit is this one.

    Raises:
        LedgerConflictError: It is another.
    """
    row: Any = connection.execute(f"{SELECT_CALL} WHERE call_rowid = ?", (call_rowid,)).fetchone()
    stored = StoredCall._make(row)
    # Chains of one digest are one chain.
    if stored.chain_digest == commit.chain_digest and stored.commit(commit.rollout_id, commit.staging_chain).same(
        commit
    ):
        return
    raise _conflict(commit, "holds another commit")


def _abandon_rows(connection: apsw.Connection, rollout_ids: list[str], ids: str) -> RolloutRemoval:
    """Queues the rows of the rollouts for the purge, and tells which had any: those with a generation."""
    # Those without rows are few, and each row that comes to Python takes as long as several that stay in SQLite.
    absent = {
        rollout_id
        for (rollout_id,) in connection.execute(
            "SELECT value FROM json_each(?) LEFT JOIN rollout ON rollout_id = value WHERE generation IS NULL", (ids,)
        )
    }
    connection.execute(
        "INSERT INTO purge_queue SELECT generation FROM json_each(?) JOIN rollout ON rollout_id = value "
        "WHERE generation IS NOT NULL",
        (ids,),
    )
    return RolloutRemoval(
        removed=[rollout_id for rollout_id in rollout_ids if rollout_id not in absent],
        absent=[rollout_id for rollout_id in rollout_ids if rollout_id in absent],
    )


def _conflict(commit: CheckedCommit, reason: str) -> LedgerConflictError:
    return LedgerConflictError(f"call {commit.model_call_id!r} of rollout {commit.rollout_id!r} {reason}")
