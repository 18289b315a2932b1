"""What is read of a rollout, in one statement or one transaction, so that it is one consistent reading."""

import sqlite3
from itertools import groupby
from operator import itemgetter
from typing import Final

import msgspec
from rollout_control_spec import RolloutRetiredError

from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger.base import CheckedCommit, ManifestsRead, join_manifest
from rollout_control_server.ledger.sqlite.chains import ChainCache
from rollout_control_server.ledger.sqlite.rows import (
    SEQ_MASK,
    LongReadError,
    chain_of,
    find_parents,
    lost_rows,
    stored_commit,
)
from rollout_control_server.ledger.sqlite.schema import SEQ_BITS

__all__ = ["find_parent", "has_rows", "manifest", "manifests"]

_EMPTY_MANIFEST_BYTES: Final = len(join_manifest("", (), ()))

# SQLite joins the rows, which come in the order of their ids because the join walks the table's own tree: a third of
# the time that it takes to hand each row to Python. Rows are numbered without gaps, so one look tells whether there are
# more than so many; then none is read.
_ROWS: Final = """
  FROM rollout LEFT JOIN call ON call_rowid BETWEEN generation << 24 AND iif(
    EXISTS (SELECT 1 FROM call WHERE call_rowid = (generation << 24) + ?), -1, generation << 24 | 16777215
  )
  WHERE rollout_id = ?
"""
_SELECT: Final = "SELECT count(*), generation, sum(call_rowid & 16777215)"
_JOINED: Final = "CAST(group_concat(json, ',') AS BLOB), CAST('' AS BLOB), count(failed)"
_JOINED_APART: Final = """
  CAST(group_concat(json, ',') FILTER (WHERE failed IS NULL) AS BLOB),
  CAST(group_concat(json, ',') FILTER (WHERE failed IS NOT NULL) AS BLOB),
  0
"""
# To tell failures from records row by row takes a quarter of the time, and most rollouts have none.
_MANIFEST: Final = f"{_SELECT}, {_JOINED} {_ROWS}"
_MANIFEST_WITH_FAILURES: Final = f"{_SELECT}, {_JOINED_APART} {_ROWS}"

# An outer join is never reordered, so that the rows of each id come together, in the ids' order and then in their own.
# Sorting them would need all of them in memory.
_MANIFESTS: Final = """
  SELECT
    wanted.value, rollout.rollout_id IS NOT NULL, rollout.generation,
    call.call_rowid, call.failed, CAST(call.json AS BLOB)
  FROM json_each(?) AS wanted LEFT JOIN rollout ON rollout.rollout_id = wanted.value
  LEFT JOIN call ON call.call_rowid BETWEEN rollout.generation << 24 AND rollout.generation << 24 | 16777215
"""


def manifest(connection: sqlite3.Connection, rollout_id: str, at_most: int) -> bytes:
    """Returns the manifest of a rollout of at most so many rows.

    Raises:
        LedgerCorruptError: Some of its rows are lost.
        LongReadError: It has more rows.
        RolloutRetiredError: The rollout is fenced.
    """
    for statement in (_MANIFEST, _MANIFEST_WITH_FAILURES):
        rows, generation, sum_of_seqs, records, failures, mixed = connection.execute(
            statement, (at_most if at_most <= SEQ_MASK else None, rollout_id)
        ).fetchone()
        if not mixed:
            break
    if rows and generation is None:
        raise RolloutRetiredError(rollout_id)
    if rows and sum_of_seqs is None and at_most <= SEQ_MASK:
        raise LongReadError
    # By the sum, a row that stands twice in the place of another is found too.
    if rows and sum_of_seqs != rows * (rows - 1) // 2:
        raise lost_rows(rollout_id)
    joined = join_manifest(rollout_id, [records] if records else [], [failures] if failures else [])
    _check_whole(rollout_id, joined)
    return joined


def _check_whole(rollout_id: str, json: bytes) -> None:
    """Refuses the trace of a page that was written in part: JSON has no byte 0."""
    if b"\0" in json:
        raise LedgerCorruptError(
            f"the rows of rollout {rollout_id!r} are damaged: a page holds zeros where text belongs"
        )


def manifests(connection: sqlite3.Connection, rollout_ids: list[str], max_bytes: int) -> ManifestsRead:
    """Returns the manifests of rollouts, as `CaptureLedger.manifests` promises them, by one statement.

    Raises:
        LedgerCorruptError: Some rows of a rollout are lost.
    """
    read = ManifestsRead([], [], [])
    size = 0
    cursor = connection.execute(_MANIFESTS, (msgspec.json.encode(rollout_ids).decode(),))
    for index, (rollout_id, rows) in enumerate(groupby(cursor, key=itemgetter(0))):
        records: list[bytes] = []
        failures: list[bytes] = []
        for seq, (_, known, generation, call_rowid, failed, json) in enumerate(rows):
            if known and generation is None:
                read.retired.append(rollout_id)
                break
            if generation is not None:
                if call_rowid != generation << SEQ_BITS | seq:
                    raise lost_rows(rollout_id)
                _check_whole(rollout_id, json)
                rows_of_kind = failures if failed else records
                size += len(json) + bool(rows_of_kind)  # a comma
                rows_of_kind.append(json)
            if size + _EMPTY_MANIFEST_BYTES + len(rollout_id) > max_bytes and index > 0:
                cursor.close()
                read.remaining.extend(rollout_ids[index:])
                return read
        else:
            read.manifests.append(join_manifest(rollout_id, records, failures))
            size += _EMPTY_MANIFEST_BYTES + len(rollout_id)
    return read


def has_rows(connection: sqlite3.Connection, rollout_id: str) -> bool:
    """Returns whether the rollout has rows: it has, exactly when it has a generation.

    Raises:
        RolloutRetiredError: The rollout is fenced.
    """
    return _generation(connection, rollout_id) is not None


def find_parent(
    connection: sqlite3.Connection,
    rollout_id: str,
    fingerprint: str,
    fingerprint_version: int,
    chains: ChainCache,
    *,
    at_most: int,
) -> CheckedCommit | None:
    """Returns the one commit whose lookup this is, if its chain is had from at most so many rows.

    Raises:
        LongReadError: It takes more rows.
        RolloutRetiredError: The rollout is fenced.
    """
    connection.execute("BEGIN")
    try:
        generation = _generation(connection, rollout_id)
        if generation is None:
            return None
        found = find_parents(connection, generation, fingerprint, fingerprint_version)
        if len(found) != 1:
            return None
        chain = chain_of(connection, found[0], chains.get, at_most)
        commit = stored_commit(rollout_id, found[0], chain)
        chains.put(generation, commit.model_call_id, found[0].seq, chain)
        return commit
    finally:
        connection.execute("COMMIT")


def _generation(connection: sqlite3.Connection, rollout_id: str) -> int | None:
    """Returns the generation of the rollout's rows, or None if it has none.

    Raises:
        RolloutRetiredError: The rollout is fenced.
    """
    found = connection.execute("SELECT generation FROM rollout WHERE rollout_id = ?", (rollout_id,)).fetchone()
    if found is None:
        return None
    if found[0] is None:
        raise RolloutRetiredError(rollout_id)
    generation: int = found[0]
    return generation
