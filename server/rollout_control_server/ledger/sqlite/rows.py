"""How a row of a manifest is laid out in the table `call`, and found again."""

import sqlite3
import sys
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger.base import CheckedCommit
from rollout_control_server.ledger.sqlite.schema import SEQ_BITS
from rollout_control_server.records import ParentLookup

__all__ = [
    "SEQ_MASK",
    "KnownChain",
    "LongReadError",
    "StoredCall",
    "call_key",
    "chain_of",
    "find_calls",
    "lost_rows",
    "pack_lookup",
    "parent_key",
    "stored_commit",
]

SEQ_MASK: Final = (1 << SEQ_BITS) - 1

_GET_CALL: Final = (
    "SELECT call_rowid, CAST(json AS BLOB), failed, parent_seq, staging_chain, "
    "context_len, context_digest, fingerprint FROM call WHERE call_rowid = ?"
)
KnownChain = Callable[[int, str], tuple[int, tuple[str, ...]] | None]
"""Tells the seq and staging chain of a generation's call from memory, or None."""


class LongReadError(Exception):
    """A reading takes more rows than it may."""


def lost_rows(rollout_id: str) -> LedgerCorruptError:
    """Returns the error for a rollout whose rows are not all there: they are numbered from 0 on, without gaps."""
    return LedgerCorruptError(f"rollout {rollout_id!r} of the ledger has lost rows")


class RecordKeys(msgspec.Struct):
    """What is read out of a row's JSON rather than stored twice."""

    model_call_id: str
    parent_call_id: str | None = None
    staging_key: str = ""
    continuation_fingerprint: str | None = None
    fingerprint_version: int = 0


_KEYS_DECODER: Final = msgspec.json.Decoder(RecordKeys)
_CHAIN_DECODER: Final = msgspec.json.Decoder(tuple[str, ...])


class StoredCall(NamedTuple):
    """A row of the table `call`, of a record or a failure."""

    call_rowid: int
    json: bytes
    failed: int | None
    parent_seq: int | None
    staging_chain: str | None
    context_len: int | None
    context_digest: bytes | str | None
    fingerprint: bytes | str | None

    @property
    def seq(self) -> int:
        """The row's place in its rollout."""
        return self.call_rowid & SEQ_MASK

    def keys(self) -> RecordKeys:
        """Reads the row's JSON."""
        try:
            return _KEYS_DECODER.decode(self.json)
        except msgspec.MsgspecError as error:
            raise LedgerCorruptError(f"row {self.call_rowid} of the ledger holds no record: {error}") from error

    def lookup(self) -> ParentLookup | None:
        """Returns what `pack_lookup` packed."""
        if self.context_len is None or self.context_digest is None:
            return None
        fingerprint = self.keys().continuation_fingerprint if self.fingerprint is None else _unpack(self.fingerprint)
        if fingerprint is None:
            raise LedgerCorruptError(f"row {self.call_rowid} of the ledger has a lookup without a fingerprint")
        return ParentLookup(fingerprint, self.context_len, _unpack(self.context_digest))


def call_key(model_call_id: str) -> int:
    """Returns the finder's key of a call id."""
    return zlib.crc32(model_call_id.encode())


def parent_key(fingerprint: str, fingerprint_version: int) -> int:
    """Returns the finder's key of a fingerprint, apart from those of call ids."""
    return 1 << 32 | zlib.crc32(fingerprint.encode(), fingerprint_version & 0xFFFFFFFF)


def find_calls(connection: sqlite3.Connection, generation: int, key: int) -> list[StoredCall]:
    """Returns the rows of a rollout that a key of the finder leads to; the caller verifies that they are meant."""
    seqs = connection.execute("SELECT seq FROM finder WHERE generation = ? AND key = ?", (generation, key)).fetchall()
    return [_get_call(connection, generation, seq) for (seq,) in seqs]


def _get_call(connection: sqlite3.Connection, generation: int, seq: int) -> StoredCall:
    row = connection.execute(_GET_CALL, (generation << SEQ_BITS | seq,)).fetchone()
    if row is None:
        raise LedgerCorruptError(f"generation {generation} of the ledger has lost its row {seq}")
    return StoredCall(*row)


def chain_of(
    connection: sqlite3.Connection, call: StoredCall, known: KnownChain, at_most: int = sys.maxsize
) -> tuple[str, ...]:
    """Returns the staging chain of a record, from its ancestors up to the first whose chain is known or stored.

    Raises:
        LongReadError: There are more than `at_most` before that one.
    """
    generation = call.call_rowid >> SEQ_BITS
    below: list[str] = []
    while True:
        if call.staging_chain is not None:
            chain = _CHAIN_DECODER.decode(call.staging_chain)
            break
        keys = call.keys()
        remembered = known(generation, keys.model_call_id)
        if remembered is not None:
            chain = remembered[1]
            break
        below.append(keys.staging_key)
        if call.parent_seq is None:
            chain = ()
            break
        if len(below) > at_most:
            raise LongReadError
        if call.parent_seq >= call.seq:
            raise LedgerCorruptError(f"row {call.call_rowid} of the ledger comes before its parent")
        call = _get_call(connection, generation, call.parent_seq)
    return (*chain, *reversed(below))


def stored_commit(rollout_id: str, call: StoredCall, staging_chain: tuple[str, ...]) -> CheckedCommit:
    """Returns the commit that was recorded as this row."""
    keys = call.keys()
    return CheckedCommit(
        rollout_id,
        keys.model_call_id,
        keys.parent_call_id,
        keys.staging_key,
        call.json,
        staging_chain,
        keys.fingerprint_version,
        call.lookup(),
    )


def pack_lookup(commit: CheckedCommit) -> tuple[int | None, bytes | str | None, bytes | str | None]:
    """Returns a commit's lookup as the columns context_len, context_digest and fingerprint."""
    lookup = commit.lookup
    if lookup is None:
        return None, None, None
    # Where the fingerprint is the record's own, as it is in Gym, the JSON has it.
    own = b'"continuation_fingerprint":"%s"' % lookup.fingerprint.encode()
    fingerprint = None if own in commit.record_json else _pack(lookup.fingerprint)
    return lookup.context_len, _pack(lookup.context_digest), fingerprint


def _pack(text: str) -> bytes | str:
    """Returns 64 lower-case hex digits as their 32 bytes, and any other text as it is."""
    if len(text) == 64:
        try:
            packed = bytes.fromhex(text)
        except ValueError:
            return text
        if packed.hex() == text:
            return packed
    return text


def _unpack(stored: bytes | str) -> str:
    return stored.hex() if isinstance(stored, bytes) else stored
