"""How a row of a manifest is laid out in the table `call`, and found again."""

import sqlite3
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger.base import CheckedCommit
from rollout_control_server.ledger.sqlite.schema import BLOCK_ROWS, SEQ_BITS
from rollout_control_server.records import ParentLookup

__all__ = [
    "NO_KEY",
    "SEQ_MASK",
    "KnownChain",
    "LongReadError",
    "StoredCall",
    "call_key",
    "chain_of",
    "find_calls",
    "find_in_blocks",
    "find_parents",
    "keys_of",
    "last_block",
    "lost_rows",
    "pack_lookup",
    "parent_key",
    "stored_commit",
]

SEQ_MASK: Final = (1 << SEQ_BITS) - 1

NO_KEY: Final = -1
"""Stands for the parent key of a row that is no parent; no key is equal to it."""

_SELECT_CALL: Final = (
    "SELECT call_rowid, CAST(json AS BLOB), failed, parent_seq, staging_chain, "
    "context_len, context_digest, fingerprint FROM call "
)
_GET_CALL: Final = f"{_SELECT_CALL} WHERE call_rowid = ?"

_IN_LAST_BLOCK: Final = """
  call_rowid BETWEEN
    (SELECT max(call_rowid) FROM call WHERE call_rowid BETWEEN :first AND :last) / :block * :block AND :last
"""
_GET_LAST_BLOCK: Final = f"{_SELECT_CALL} WHERE {_IN_LAST_BLOCK}"
_SELECT_LOOKUP: Final = "SELECT call_rowid, fingerprint, CAST(json AS BLOB) FROM call"
_LAST_LOOKUPS: Final = f"{_SELECT_LOOKUP} WHERE context_len IS NOT NULL AND {_IN_LAST_BLOCK}"

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


def last_block(connection: sqlite3.Connection, generation: int) -> list[StoredCall]:
    """Returns the rows of the block that a rollout's last row is in; nothing if it has lost all of them."""
    base = generation << SEQ_BITS
    block = {"first": base, "last": base | SEQ_MASK, "block": BLOCK_ROWS}
    return [StoredCall(*row) for row in connection.execute(_GET_LAST_BLOCK, block)]


def keys_of(calls: Iterable[StoredCall]) -> "array[int]":
    """Returns the finder's keys of rows: two for each, the second of which may be NO_KEY."""
    keys = array("q")
    for call in calls:
        lookup = call.lookup()
        record = call.keys()
        keys.append(call_key(record.model_call_id))
        keys.append(NO_KEY if lookup is None else parent_key(lookup.fingerprint, record.fingerprint_version))
    return keys


def find_parents(
    connection: sqlite3.Connection, generation: int, fingerprint: str, fingerprint_version: int
) -> list[StoredCall]:
    """Returns the records of a rollout whose lookup this is."""
    seqs = set(find_in_blocks(connection, generation, parent_key(fingerprint, fingerprint_version)))
    # The finder may not have the last block yet.
    base = generation << SEQ_BITS
    own, packed = _own_fingerprint(fingerprint), _pack(fingerprint)
    block = {"first": base, "last": base | SEQ_MASK, "block": BLOCK_ROWS}
    for call_rowid, stored, json in connection.execute(_LAST_LOOKUPS, block):
        if own in json if stored is None else stored == packed:
            seqs.add(call_rowid & SEQ_MASK)
    found = []
    for call in find_calls(connection, generation, sorted(seqs)):
        lookup = call.lookup()
        if (
            lookup is not None
            and lookup.fingerprint == fingerprint
            and call.keys().fingerprint_version == fingerprint_version
        ):
            found.append(call)
    return found


def find_in_blocks(connection: sqlite3.Connection, generation: int, key: int) -> list[int]:
    """Returns the places of those rows in whole blocks that a key leads to; the caller verifies that they are meant."""
    found = connection.execute(
        "SELECT seq FROM block_finder WHERE generation = ? AND key = ?", (generation, key)
    ).fetchall()
    return [seq for (seq,) in found]


def find_calls(connection: sqlite3.Connection, generation: int, seqs: Iterable[int]) -> list[StoredCall]:
    """Returns the rows of a rollout at these places."""
    return [_get_call(connection, generation, seq) for seq in seqs]


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
    own = _own_fingerprint(lookup.fingerprint) in commit.record_json
    return lookup.context_len, _pack(lookup.context_digest), None if own else _pack(lookup.fingerprint)


def _own_fingerprint(fingerprint: str) -> bytes:
    """Returns how a record's JSON has this fingerprint, if it is the record's own."""
    return msgspec.json.encode({"continuation_fingerprint": fingerprint})[1:-1]


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
