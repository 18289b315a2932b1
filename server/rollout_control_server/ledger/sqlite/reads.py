"""What is read. Each function is one statement or one transaction, so that it is one consistent reading."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import apsw
import msgspec
from rollout_control_spec import RolloutRetiredError

from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger.base import join_manifest
from rollout_control_server.ledger.bulk_answer import BulkAnswer
from rollout_control_server.ledger.checked_rows import CheckedCommit
from rollout_control_server.ledger.results import (
    LedgerRow,
    ManifestsRead,
    RolloutEntry,
    RolloutExport,
    RolloutFilter,
    RolloutPage,
    RolloutSummary,
)
from rollout_control_server.ledger.sqlite.rows import (
    SELECT_CALL,
    StoredCall,
    pack_digest,
    read_chain,
    seq_of,
    with_chains,
)
from rollout_control_server.ledger.sqlite.schema import MAX_ROWS, SEQ_BITS
from rollout_control_server.ledger.sqlite.writes import LAST_ROWID
from rollout_control_server.ledger.staging_chains import StagingChains

__all__ = [
    "LongReadError", "export", "find_parent", "has_rows", "manifest", "manifests", "read_export", "reading",
    "rollouts", "summary",
]  # fmt: skip

_EMPTY_MANIFEST_BYTES: Final = len(join_manifest("", (), ()))

_ROWS_OF_ROLLOUT: Final = (
    f"call_rowid BETWEEN rollout.generation << {SEQ_BITS} AND (rollout.generation << {SEQ_BITS}) + {MAX_ROWS - 1}"
)

# SQLite joins the rows, which come in the order of their ids because the join walks the table's own tree: a third of
# the time that it takes to hand each row to Python. Rows are numbered without gaps, so one look tells whether there are
# more than so many; then none is read.
_MANIFEST: Final = f"""
  SELECT
    count(*), rollout.generation, count(call_rowid), sum(call_rowid & {MAX_ROWS - 1}),
    CAST(group_concat(json, ',') FILTER (WHERE reason IS NULL) AS BLOB),
    CAST(group_concat(json, ',') FILTER (WHERE reason IS NOT NULL) AS BLOB)
  FROM rollout LEFT JOIN call ON call_rowid BETWEEN rollout.generation << {SEQ_BITS} AND iif(
    EXISTS (SELECT 1 FROM call WHERE call_rowid = (rollout.generation << {SEQ_BITS}) + ?), -1,
    (rollout.generation << {SEQ_BITS}) + {MAX_ROWS - 1}
  )
  WHERE rollout_id = ?
"""

# An outer join is never reordered, so that the rows of each id come together, in the ids' order and then in their own.
# Sorting them would need all of them in memory.
_MANIFESTS: Final = f"""
  SELECT wanted.value, rollout.rollout_id IS NOT NULL, rollout.generation, call_rowid, reason, CAST(call.json AS BLOB)
  FROM json_each(?) AS wanted
  LEFT JOIN rollout ON rollout.rollout_id = wanted.value
  LEFT JOIN call ON {_ROWS_OF_ROLLOUT}
"""

# Two are enough to know that there is not one.
_PARENTS: Final = f"""
  {SELECT_CALL}
  WHERE generation = ? AND fingerprint IS NOT NULL AND fingerprint = ? AND fingerprint_version = ? LIMIT 2
"""

_CHANGED_AT: Final = f"""
  CASE
    WHEN rollout.generation IS NULL THEN coalesce(imported_at, retired_at)
    WHEN imported_rows > (last.call_rowid & {MAX_ROWS - 1}) THEN imported_at
    ELSE last.recorded_at
  END
"""
_LISTED: Final = f"""
  SELECT
    rollout_id, rollout.generation, (last.call_rowid & {MAX_ROWS - 1}) + 1, coalesce(failures, 0),
    (SELECT recorded_at FROM call WHERE call_rowid = rollout.generation << {SEQ_BITS}),
    last.recorded_at, retired_at, {_CHANGED_AT} AS changed_at
  FROM rollout LEFT JOIN call AS last ON last.call_rowid = {LAST_ROWID}
"""


class LongReadError(Exception):
    """A reading takes more rows than it may."""


def manifest(connection: apsw.Connection, rollout_id: str, at_most: int) -> bytes:
    """Returns the manifest of a rollout of at most so many rows.

    Raises:
        LedgerCorruptError: Some of its rows are lost.
        LongReadError: It has more rows.
        RolloutRetiredError: The rollout is fenced.
    """
    # Row ids behind those of this rollout are another's.
    limit = at_most if at_most < MAX_ROWS else None
    found: Any = connection.execute(_MANIFEST, (limit, rollout_id)).fetchone()
    known, generation, rows, sum_of_seqs, records, failures = found
    if not known:
        return join_manifest(rollout_id, (), ())
    if generation is None:
        raise RolloutRetiredError(rollout_id)
    if not rows and limit is not None:
        raise LongReadError
    # By the sum, a row that stands twice in the place of another is found too.
    if not rows or sum_of_seqs != rows * (rows - 1) // 2:
        raise _lost_rows(rollout_id)
    return join_manifest(rollout_id, [records] if records else [], [failures] if failures else [])


def manifests(connection: apsw.Connection, rollout_ids: list[str], max_bytes: int) -> ManifestsRead:
    """Returns the manifests of rollouts, as `CaptureLedger.manifests` promises them, by one statement.

    Raises:
        LedgerCorruptError: Some rows of a rollout are lost.
    """
    answer = BulkAnswer(rollout_ids, max_bytes)
    cursor = connection.execute(_MANIFESTS, (msgspec.json.encode(rollout_ids).decode(),))
    for rollout_id, rows in groupby(cursor, key=itemgetter(0)):
        records: list[bytes] = []
        failures: list[bytes] = []
        room = answer.room
        size = _EMPTY_MANIFEST_BYTES + len(rollout_id)
        for seq, (_, known, generation, call_rowid, reason, json) in enumerate(rows):
            if known and generation is None:
                answer.add_retired(rollout_id)
                break
            if generation is not None:
                if call_rowid != generation << SEQ_BITS | seq:
                    raise _lost_rows(rollout_id)
                rows_of_kind = records if reason is None else failures
                size += len(json) + bool(rows_of_kind)  # a comma
                rows_of_kind.append(json)
            if size > room:
                cursor.close(True)
                return answer.read()
        else:
            answer.add_manifest(join_manifest(rollout_id, records, failures))
    return answer.read()


def has_rows(connection: apsw.Connection, rollout_id: str) -> bool:
    """Returns whether the rollout has rows: it has, exactly when it has a generation.

    Raises:
        RolloutRetiredError: The rollout is fenced.
    """
    return _generation(connection, rollout_id) is not None


def find_parent(
    connection: apsw.Connection,
    rollout_id: str,
    fingerprint: str,
    fingerprint_version: int,
    chains: StagingChains,
    *,
    at_most: int,
) -> CheckedCommit | None:
    """Returns the one commit whose lookup this is, if its chain is had from at most so many rows.

    Raises:
        LongReadError: It takes more rows.
        RolloutRetiredError: The rollout is fenced.
    """
    with reading(connection):
        generation = _generation(connection, rollout_id)
        if generation is None:
            return None
        found = connection.execute(_PARENTS, (generation, pack_digest(fingerprint), fingerprint_version)).fetchall()
        if len(found) != 1:
            return None
        call = StoredCall._make(found[0])
        chain = read_chain(connection, call, chains, at_most)
    if chain is None:
        raise LongReadError
    return call.commit(rollout_id, chain)


def export(connection: apsw.Connection, rollout_id: str) -> RolloutExport:
    """Returns all that is known of a rollout.

    Raises:
        LedgerCorruptError: Some of its rows are lost or damaged.
    """
    with reading(connection):
        return read_export(connection, rollout_id)


def read_export(connection: apsw.Connection, rollout_id: str) -> RolloutExport:
    """Does what `export` does, within a reading that has begun."""
    found = connection.execute(
        "SELECT generation, retired_at FROM rollout WHERE rollout_id = ?", (rollout_id,)
    ).fetchone()
    if found is None or found[0] is None:
        return RolloutExport(rollout_id, None if found is None else found[1], [])
    base = found[0] << SEQ_BITS
    calls = [
        StoredCall._make(row)
        for row in connection.execute(
            f"{SELECT_CALL} WHERE call_rowid BETWEEN ? AND ? ORDER BY call_rowid", (base, base + MAX_ROWS - 1)
        )
    ]
    if not calls or [seq_of(call.call_rowid) for call in calls] != [*range(len(calls))]:
        raise _lost_rows(rollout_id)
    return RolloutExport(
        rollout_id,
        None,
        [
            LedgerRow(
                call.commit(rollout_id, chain) if call.reason is None else call.failure(rollout_id), call.recorded_at
            )
            for call, chain in with_chains(calls)
        ],
    )


def rollouts(connection: apsw.Connection, matching: RolloutFilter, limit: int, after: str | None) -> RolloutPage:
    """Returns a page of the listing, as `CaptureLedger.rollouts` promises it."""
    # One lower bound: with two, SQLite would begin at the lower one and look at each rollout up to the other.
    behind = matching.prefix if after is None or after < matching.prefix else after
    conditions = ["rollout_id > :behind" if behind == after else "rollout_id >= :behind", "rollout_id < :prefix_end"]
    if matching.state == "retired":
        conditions.append("rollout.generation IS NULL")
    if matching.state == "live" or matching.has_failures is not None:
        conditions.append("rollout.generation IS NOT NULL")
    if matching.idle_for_s is not None:
        conditions.append("last.recorded_at <= :idle_since")
    if matching.has_failures is not None:
        conditions.append("failures > 0" if matching.has_failures else "failures IS NULL")
    if matching.changed_since is not None:
        conditions.append("(changed_at IS NULL OR changed_at >= :changed_since)")
    found = connection.execute(
        f"{_LISTED} WHERE {' AND '.join(conditions)} ORDER BY rollout_id LIMIT :limit",
        {
            "behind": behind,
            # Ids are of ASCII letters, digits, ".", "_" and "-", which are all less than "{".
            "prefix_end": matching.prefix + "{",
            "idle_since": time.time() - (matching.idle_for_s or 0),
            "changed_since": matching.changed_since,
            "limit": limit + 1,
        },
    ).fetchall()
    page = [_entry(row) for row in found[:limit]]
    return RolloutPage(page, page[-1].rollout_id if len(found) > limit else None)


def summary(connection: apsw.Connection) -> RolloutSummary:
    """Returns how much the ledger holds."""
    with reading(connection):
        states: Any = connection.execute(
            "SELECT count(generation), count(retired_at), count(failures) FROM rollout"
        ).fetchone()
        rows: Any = connection.execute(
            f"SELECT sum(({LAST_ROWID} & {MAX_ROWS - 1}) + 1), "
            f"min((SELECT recorded_at FROM call WHERE call_rowid = rollout.generation << {SEQ_BITS})) "
            "FROM rollout WHERE generation IS NOT NULL"
        ).fetchone()
        waiting: Any = connection.execute(
            f"SELECT sum({LAST_ROWID} - (SELECT min(call_rowid) FROM call WHERE {_ROWS_OF_ROLLOUT}) + 1) "
            "FROM purge_queue AS rollout"
        ).fetchone()
    live, retired, with_failures = states
    return RolloutSummary(live, retired, with_failures, rows[0] or 0, waiting[0] or 0, rows[1])


def _entry(row: Any) -> RolloutEntry:
    rollout_id, generation, rows, failures, first, last, retired_at, changed_at = row
    if generation is None:
        return RolloutEntry(rollout_id, "retired", None, None, None, None, retired_at, changed_at)
    if rows is None:
        raise _lost_rows(rollout_id)
    return RolloutEntry(rollout_id, "live", rows - failures, failures, first, last, None, changed_at)


def _generation(connection: apsw.Connection, rollout_id: str) -> int | None:
    """Returns the generation of the rollout's rows, or None if it has none.

    Raises:
        RolloutRetiredError: The rollout is fenced.
    """
    found: Any = connection.execute("SELECT generation FROM rollout WHERE rollout_id = ?", (rollout_id,)).fetchone()
    if found is None:
        return None
    if found[0] is None:
        raise RolloutRetiredError(rollout_id)
    generation: int = found[0]
    return generation


def _lost_rows(rollout_id: str) -> LedgerCorruptError:
    """Returns the error for a rollout whose rows are not all there: they are numbered from 0 on, without gaps."""
    return LedgerCorruptError(f"rollout {rollout_id!r} of the ledger has lost rows")


@contextmanager
def reading(connection: apsw.Connection) -> Iterator[None]:
    """Makes one consistent reading of several statements."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        # An error of the disk may have ended the transaction already; a second error would hide the first.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
