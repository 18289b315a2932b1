"""What a write does, within a transaction that holds the file's write lock."""

import sqlite3
import time
from array import array
from typing import Final, NamedTuple

import msgspec

from rollout_control_server.errors import LedgerConflictError, LedgerCorruptError, LedgerUnavailableError
from rollout_control_server.ledger.base import CheckedCommit, CheckedFailure
from rollout_control_server.ledger.sqlite.chains import ChainCache
from rollout_control_server.ledger.sqlite.rows import (
    NO_KEY,
    SEQ_MASK,
    StoredCall,
    call_key,
    chain_of,
    find_calls,
    find_in_blocks,
    keys_of,
    last_block,
    lost_rows,
    pack_lookup,
    parent_key,
)
from rollout_control_server.ledger.sqlite.schema import BLOCK_ROWS, SEQ_BITS
from rollout_control_server.records import RolloutRemoval

__all__ = ["FencesSeen", "RolloutStates", "WriteTransaction"]

_ENCODER: Final = msgspec.json.Encoder()

_MAX_KNOWN_ROLLOUTS: Final = 4096


class RolloutState:
    """Where a rollout with rows stands; never the same object for two generations.

    Attributes:
        generation: Its rows' generation.
        next_seq: The place of its next row.
        recent: The keys of its rows that no whole block holds yet, two for each.
    """

    __slots__ = ("generation", "next_seq", "recent")

    def __init__(self, generation: int, next_seq: int, recent: "array[int]") -> None:
        self.generation: Final = generation
        self.next_seq = next_seq
        self.recent: Final = recent


_FENCED: Final = RolloutState(-1, 0, array("q"))


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


class RolloutStates:
    """Where the rollouts stand that a writer has lately written to: generation and the seq of the next row.

    What is remembered holds as long as nobody else has changed the file, which SQLite tells by its data_version.
    """

    def __init__(self) -> None:
        self._data_version: int | None = None
        self.known: Final[dict[str, RolloutState]] = {}

    def begin(self, connection: sqlite3.Connection) -> None:
        """Forgets what may have become wrong, within the transaction that is about to use it."""
        data_version = connection.execute("PRAGMA data_version").fetchone()[0]
        if data_version != self._data_version or len(self.known) > _MAX_KNOWN_ROLLOUTS:
            self.known.clear()
        self._data_version = data_version


class WriteTransaction:
    """The writes that are committed together. Each checks before it changes anything, so a conflict changes nothing.

    New rows wait to be inserted together, which takes half the time, until the end or until a check needs to see them.

    Attributes:
        has_abandoned_rows: Whether there may be more to purge than before.
        new_bytes: Size of the rows that it inserted.
    """

    def __init__(self, connection: sqlite3.Connection, states: RolloutStates, chains: ChainCache) -> None:
        self._connection: Final = connection
        self._states: Final = states.known
        self._chains: Final = chains
        self._new_chains: Final[dict[tuple[int, str], tuple[int, tuple[str, ...]]]] = {}
        self._new_rollouts: Final[list[tuple[str, int]]] = []
        self._new_calls: Final[list[tuple[object, ...]]] = []
        self._new_finds: Final[list[tuple[int, int, int]]] = []
        self._new_keys: Final[set[tuple[int, int]]] = set()
        self._newest_generation: int | None = None
        self.has_abandoned_rows = False
        self.new_bytes = 0
        states.begin(connection)

    def flush(self) -> None:
        """Inserts what waits to be."""
        if self._new_rollouts:
            self._connection.executemany("INSERT INTO rollout VALUES (?, ?, NULL)", self._new_rollouts)
            self._connection.execute("UPDATE newest_generation SET generation = ?", (self._newest_generation,))
            self._new_rollouts.clear()
        if self._new_calls:
            self._connection.executemany("INSERT INTO call VALUES (?, ?, ?, ?, ?, ?, ?, ?)", self._new_calls)
            self._connection.executemany("INSERT INTO block_finder VALUES (?, ?, ?)", self._new_finds)
            self._new_calls.clear()
            self._new_finds.clear()
            self._new_keys.clear()

    def committed(self) -> None:
        """Remembers the chains of what was recorded, now that it is in the ledger."""
        for (generation, model_call_id), (seq, chain) in self._new_chains.items():
            self._chains.put(generation, model_call_id, seq, chain)

    def check_writable(self) -> None:
        """Does what a write does, on tables that are all there, and writes nothing.

        SQLite lets a transaction on a read-only file begin.
        """
        self._connection.execute("SELECT 1 FROM rollout, call, block_finder, purge LIMIT 0")
        self._connection.execute("UPDATE newest_generation SET generation = 0 WHERE generation < 0")

    def record(self, commit: CheckedCommit) -> bool:
        """Records a commit; False means that the rollout is fenced.

        Raises:
            LedgerConflictError: See `CaptureLedger.record`.
        """
        state = self._state(commit.rollout_id)
        if state is _FENCED:
            return False
        key = call_key(commit.model_call_id)
        if state is not None and self._is_recorded(commit, state, key):
            return True
        parent_seq, staging_chain = self._pack_chain(commit, state)
        self.new_bytes += len(commit.record_json) + len(staging_chain or "")
        row = (commit.record_json.decode(), None, parent_seq, staging_chain, *pack_lookup(commit))
        if state is None:
            state = self._new_generation(commit.rollout_id)
        lookup = commit.lookup
        as_parent = NO_KEY if lookup is None else parent_key(lookup.fingerprint, commit.fingerprint_version)
        seq = self._append(state, key, as_parent, row)
        self._new_chains[state.generation, commit.model_call_id] = seq, commit.staging_chain
        return True

    def record_failure(self, failure: CheckedFailure) -> bool:
        """Records a failure row; False means that the rollout is fenced."""
        state = self._state(failure.rollout_id)
        if state is _FENCED:
            return False
        key = call_key(failure.model_call_id)
        if state is None:
            state = self._new_generation(failure.rollout_id)
        elif any(call.json == failure.failure_json for call in self._find_calls(state, key)):
            return True
        self.new_bytes += len(failure.failure_json)
        self._append(state, key, NO_KEY, (failure.failure_json.decode(), 1, None, None, None, None, None))
        return True

    def retire(self, rollout_ids: list[str]) -> RolloutRemoval:
        """Fences the rollouts, and leaves their rows to the purge."""
        ids = _ENCODER.encode(rollout_ids).decode()
        removal = self._abandon_rows(rollout_ids, ids)
        self._connection.execute(
            "INSERT INTO rollout SELECT value, NULL, ? FROM json_each(?) WHERE true ON CONFLICT (rollout_id) "
            "DO UPDATE SET generation = NULL, fenced_at = excluded.fenced_at WHERE generation IS NOT NULL",
            (_now_ms(), ids),
        )
        return removal

    def delete(self, rollout_ids: list[str]) -> RolloutRemoval:
        """Forgets the rollouts, and leaves their rows to the purge."""
        ids = _ENCODER.encode(rollout_ids).decode()
        removal = self._abandon_rows(rollout_ids, ids)
        self._connection.execute("DELETE FROM rollout WHERE rollout_id IN (SELECT value FROM json_each(?))", (ids,))
        return removal

    def forget_fences(self, older_than_ms: int, after_id: str, limit: int) -> FencesSeen:
        """Forgets old fences among the next rollouts behind `after_id`, at most `limit` of them."""
        before = _now_ms() - older_than_ms
        seen = self._connection.execute(
            "SELECT rollout_id, fenced_at FROM rollout WHERE rollout_id > ? ORDER BY rollout_id LIMIT ?",
            (after_id, limit),
        ).fetchall()
        old = [rollout_id for rollout_id, fenced_at in seen if fenced_at is not None and fenced_at <= before]
        kept = [rollout_id for rollout_id, fenced_at in seen if fenced_at is not None and fenced_at > before]
        self._connection.executemany("DELETE FROM rollout WHERE rollout_id = ?", ((rollout_id,) for rollout_id in old))
        return FencesSeen(len(old), len(kept), sum(map(len, kept)), seen[-1][0] if len(seen) == limit else None)

    def _state(self, rollout_id: str) -> RolloutState | None:
        """Returns where the rollout stands: `_FENCED`, or None if it has no rows."""
        state = self._states.get(rollout_id)
        if state is not None:
            return state
        found = self._connection.execute(
            "SELECT generation FROM rollout WHERE rollout_id = ?", (rollout_id,)
        ).fetchone()
        if found is None:
            return None
        if found[0] is None:
            return _FENCED
        calls = last_block(self._connection, found[0])
        if not calls or [call.seq % BLOCK_ROWS for call in calls] != [*range(len(calls))]:
            raise lost_rows(rollout_id)
        recent = keys_of(calls if len(calls) < BLOCK_ROWS else ())
        state = self._states[rollout_id] = RolloutState(found[0], calls[-1].seq + 1, recent)
        return state

    def _new_generation(self, rollout_id: str) -> RolloutState:
        if self._newest_generation is None:
            newest = self._connection.execute("SELECT generation FROM newest_generation").fetchone()
            if newest is None:
                raise LedgerCorruptError("the ledger has lost its newest generation")
            self._newest_generation = newest[0]
        self._newest_generation += 1
        self._new_rollouts.append((rollout_id, self._newest_generation))
        state = self._states[rollout_id] = RolloutState(self._newest_generation, 0, array("q"))
        return state

    def _is_recorded(self, commit: CheckedCommit, state: RolloutState, key: int) -> bool:
        """Tells whether this commit is recorded already.

        Raises:
            LedgerConflictError: Something else is.
        """
        failed = False
        for call in self._find_calls(state, key):
            if call.json == commit.record_json:
                if call.lookup() == commit.lookup and (
                    chain_of(self._connection, call, self._known_chain) == commit.staging_chain
                ):
                    return True
                raise _conflict(commit, "holds another commit")
            if call.keys().model_call_id == commit.model_call_id:
                if not call.failed:
                    raise _conflict(commit, "holds another commit")
                failed = True
        if failed:
            raise _conflict(commit, "has a failure row")
        return False

    def _append(self, state: RolloutState, key: int, as_parent: int, columns: tuple[object, ...]) -> int:
        seq = state.next_seq
        if seq > SEQ_MASK:
            raise LedgerUnavailableError(f"a rollout holds at most {SEQ_MASK + 1} rows in a SqliteLedger")
        state.next_seq += 1
        self._new_calls.append((state.generation << SEQ_BITS | seq, *columns))
        self._new_keys.add((state.generation, key))
        state.recent.append(key)
        state.recent.append(as_parent)
        if state.next_seq % BLOCK_ROWS == 0:
            first = state.next_seq - BLOCK_ROWS
            for index, each in enumerate(state.recent):
                if each != NO_KEY:
                    self._new_finds.append((state.generation, each, first + index // 2))
                    # From here on only the finder leads to this row, once it is flushed.
                    self._new_keys.add((state.generation, each))
            del state.recent[:]
        return seq

    def _find_calls(self, state: RolloutState, key: int) -> list[StoredCall]:
        if (state.generation, key) in self._new_keys:
            self.flush()
        first = state.next_seq - state.next_seq % BLOCK_ROWS
        seqs = find_in_blocks(self._connection, state.generation, key) if first else []
        if key in state.recent:
            seqs += (first + index // 2 for index, each in enumerate(state.recent) if each == key)
        return find_calls(self._connection, state.generation, seqs)

    def _pack_chain(self, commit: CheckedCommit, state: RolloutState | None) -> tuple[int | None, str | None]:
        """Returns the columns parent_seq and staging_chain."""
        chain = commit.staging_chain
        if chain == (commit.staging_key,):
            return None, None
        parent_id = commit.parent_call_id
        if state is not None and parent_id is not None and chain and chain[-1] == commit.staging_key:
            parent = self._recorded_chain(state, parent_id)
            if parent is not None and (parent[1] is commit.continued_chain or parent[1] == chain[:-1]):
                return parent[0], None
        return None, _ENCODER.encode(chain).decode()

    def _recorded_chain(self, state: RolloutState, model_call_id: str) -> tuple[int, tuple[str, ...]] | None:
        known = self._known_chain(state.generation, model_call_id)
        if known is not None:
            return known
        for call in self._find_calls(state, call_key(model_call_id)):
            if not call.failed and call.keys().model_call_id == model_call_id:
                return call.seq, chain_of(self._connection, call, self._known_chain)
        return None

    def _known_chain(self, generation: int, model_call_id: str) -> tuple[int, tuple[str, ...]] | None:
        return self._new_chains.get((generation, model_call_id)) or self._chains.get(generation, model_call_id)

    def _abandon_rows(self, rollout_ids: list[str], ids: str) -> RolloutRemoval:
        """Queues the rows of the rollouts for the purge, and tells which had any: those with a generation."""
        self.has_abandoned_rows = True
        self.flush()
        for rollout_id in rollout_ids:
            self._states.pop(rollout_id, None)
        # Those without rows are few, and each row that comes to Python takes as long as several that stay in SQLite.
        absent = {
            rollout_id
            for (rollout_id,) in self._connection.execute(
                "SELECT value FROM json_each(?) LEFT JOIN rollout ON rollout_id = value WHERE generation IS NULL",
                (ids,),
            )
        }
        self._connection.execute(
            "INSERT INTO purge SELECT generation FROM json_each(?) JOIN rollout ON rollout_id = value "
            "WHERE generation IS NOT NULL",
            (ids,),
        )
        return RolloutRemoval(
            removed=[rollout_id for rollout_id in rollout_ids if rollout_id not in absent],
            absent=[rollout_id for rollout_id in rollout_ids if rollout_id in absent],
        )


def _conflict(commit: CheckedCommit, reason: str) -> LedgerConflictError:
    return LedgerConflictError(f"call {commit.model_call_id!r} of rollout {commit.rollout_id!r} {reason}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
