"""What a write does, within a transaction that holds the file's write lock."""

import sqlite3
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from rollout_control_server.errors import LedgerConflictError, LedgerUnavailableError
from rollout_control_server.ledger.base import CheckedCommit, CheckedFailure
from rollout_control_server.ledger.sqlite.chains import ChainCache
from rollout_control_server.ledger.sqlite.rows import (
    SEQ_MASK,
    call_key,
    chain_of,
    find_calls,
    pack_lookup,
    parent_key,
)
from rollout_control_server.ledger.sqlite.schema import SEQ_BITS
from rollout_control_server.records import RolloutRemoval

__all__ = ["FencesSeen", "WriteTransaction"]

_ENCODER: Final = msgspec.json.Encoder()

_FENCED: Final = None


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


class WriteTransaction:
    """The writes that are committed together. Each checks before it changes anything, so a conflict changes nothing."""

    def __init__(self, connection: sqlite3.Connection, chains: ChainCache) -> None:
        self._connection: Final = connection
        self._chains: Final = chains
        self._new_chains: Final[dict[tuple[int, str], tuple[int, tuple[str, ...]]]] = {}

    def committed(self) -> None:
        """Remembers the chains of what was recorded, now that it is in the ledger."""
        for (generation, model_call_id), (seq, chain) in self._new_chains.items():
            self._chains.put(generation, model_call_id, seq, chain)

    def record(self, commit: CheckedCommit) -> bool:
        """Records a commit; False means that the rollout is fenced.

        Raises:
            LedgerConflictError: See `CaptureLedger.record`.
        """
        known, generation = self._generation(commit.rollout_id)
        if known and generation is _FENCED:
            return False
        key = call_key(commit.model_call_id)
        failed = False
        if generation is not None:
            for call in find_calls(self._connection, generation, key):
                if call.failed:
                    failed = failed or call.keys().model_call_id == commit.model_call_id
                elif call.json == commit.record_json:
                    same = call.lookup() == commit.lookup and (
                        chain_of(self._connection, call, self._known_chain) == commit.staging_chain
                    )
                    if same:
                        return True
                    raise _holds_another(commit)
                elif call.keys().model_call_id == commit.model_call_id:
                    raise _holds_another(commit)
        if failed:
            raise LedgerConflictError(
                f"call {commit.model_call_id!r} of rollout {commit.rollout_id!r} has a failure row"
            )
        if generation is None:
            generation = self._new_generation(commit.rollout_id)
        parent_seq, staging_chain = self._pack_chain(commit, generation)
        lookup = commit.lookup
        keys = [key] if lookup is None else [key, parent_key(lookup.fingerprint, commit.fingerprint_version)]
        seq = self._append(
            generation, keys, (commit.record_json.decode(), None, parent_seq, staging_chain, *pack_lookup(commit))
        )
        self._new_chains[generation, commit.model_call_id] = seq, commit.staging_chain
        return True

    def record_failure(self, failure: CheckedFailure) -> bool:
        """Records a failure row; False means that the rollout is fenced."""
        known, generation = self._generation(failure.rollout_id)
        if known and generation is _FENCED:
            return False
        key = call_key(failure.model_call_id)
        if generation is None:
            generation = self._new_generation(failure.rollout_id)
        elif any(call.json == failure.failure_json for call in find_calls(self._connection, generation, key)):
            return True
        self._append(generation, [key], (failure.failure_json.decode(), 1, None, None, None, None, None))
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

    def _generation(self, rollout_id: str) -> tuple[bool, int | None]:
        """Returns whether the rollout is known, and its generation; a fence is known and has none."""
        found = self._connection.execute(
            "SELECT generation FROM rollout WHERE rollout_id = ?", (rollout_id,)
        ).fetchone()
        return (False, None) if found is None else (True, found[0])

    def _new_generation(self, rollout_id: str) -> int:
        self._connection.execute("UPDATE newest_generation SET generation = generation + 1")
        generation: int = self._connection.execute("SELECT generation FROM newest_generation").fetchone()[0]
        self._connection.execute("INSERT INTO rollout VALUES (?, ?, NULL)", (rollout_id, generation))
        return generation

    def _append(self, generation: int, keys: Iterable[int], columns: tuple[object, ...]) -> int:
        base = generation << SEQ_BITS
        last = self._connection.execute(
            "SELECT call_rowid FROM call WHERE call_rowid BETWEEN ? AND ? ORDER BY call_rowid DESC LIMIT 1",
            (base, base | SEQ_MASK),
        ).fetchone()
        seq: int = 0 if last is None else (last[0] & SEQ_MASK) + 1
        if seq > SEQ_MASK:
            raise LedgerUnavailableError(f"a rollout holds at most {SEQ_MASK + 1} rows in a SqliteLedger")
        self._connection.execute("INSERT INTO call VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (base | seq, *columns))
        for key in keys:
            self._connection.execute("INSERT INTO finder VALUES (?, ?, ?)", (generation, key, seq))
        return seq

    def _pack_chain(self, commit: CheckedCommit, generation: int) -> tuple[int | None, str | None]:
        """Returns the columns parent_seq and staging_chain."""
        chain = commit.staging_chain
        if chain == (commit.staging_key,):
            return None, None
        if commit.parent_call_id is not None and chain and chain[-1] == commit.staging_key:
            parent = self._recorded_chain(generation, commit.parent_call_id)
            if parent is not None and len(parent[1]) == len(chain) - 1 and parent[1] == chain[:-1]:
                return parent[0], None
        return None, _ENCODER.encode(chain).decode()

    def _recorded_chain(self, generation: int, model_call_id: str) -> tuple[int, tuple[str, ...]] | None:
        known = self._known_chain(generation, model_call_id)
        if known is not None:
            return known
        for call in find_calls(self._connection, generation, call_key(model_call_id)):
            if not call.failed and call.keys().model_call_id == model_call_id:
                return call.seq, chain_of(self._connection, call, self._known_chain)
        return None

    def _known_chain(self, generation: int, model_call_id: str) -> tuple[int, tuple[str, ...]] | None:
        return self._new_chains.get((generation, model_call_id)) or self._chains.get(generation, model_call_id)

    def _abandon_rows(self, rollout_ids: list[str], ids: str) -> RolloutRemoval:
        """Queues the rows of the rollouts for the purge, and tells which had any: those with a generation."""
        with_rows = {
            rollout_id
            for (rollout_id,) in self._connection.execute(
                "SELECT rollout_id FROM json_each(?) JOIN rollout ON rollout_id = value WHERE generation IS NOT NULL",
                (ids,),
            )
        }
        self._connection.execute(
            "INSERT INTO purge SELECT generation FROM json_each(?) JOIN rollout ON rollout_id = value "
            "WHERE generation IS NOT NULL",
            (ids,),
        )
        removal = RolloutRemoval(removed=[], absent=[])
        for rollout_id in rollout_ids:
            (removal.removed if rollout_id in with_rows else removal.absent).append(rollout_id)
        return removal


def _holds_another(commit: CheckedCommit) -> LedgerConflictError:
    return LedgerConflictError(f"call {commit.model_call_id!r} of rollout {commit.rollout_id!r} holds another commit")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
