"""How a row of a ledger is laid out in the table `call`, and read back."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import apsw
import msgspec

from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger.checked_rows import CheckedCommit, CheckedFailure
from rollout_control_server.ledger.sqlite.schema import MAX_ROWS, SEQ_BITS
from rollout_control_server.ledger.staging_chains import StagingChains, chain_digest
from rollout_control_server.records import ParentLookup

__all__ = [
    "INSERT_CALL",
    "SELECT_CALL",
    "StoredCall",
    "columns_of",
    "pack_digest",
    "read_chain",
    "seq_of",
    "with_chains",
]

INSERT_CALL: Final = "INSERT INTO call VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
SELECT_CALL: Final = """
  SELECT call_rowid, CAST(json AS BLOB), recorded_at, model_call_id, reason, parent_seq, staging_chain, chain_digest,
    fingerprint, fingerprint_version, context_len, context_digest, unserved
  FROM call
"""

_ANCESTORS: Final = f"""
  WITH RECURSIVE ancestor (call_rowid, parent_seq, staging_chain, json) AS (
    SELECT call_rowid, parent_seq, staging_chain, json FROM call WHERE call_rowid = ?
    UNION ALL
    SELECT call.call_rowid, call.parent_seq, call.staging_chain, call.json
    FROM ancestor
    JOIN call ON call.call_rowid = (ancestor.call_rowid >> {SEQ_BITS} << {SEQ_BITS}) + ancestor.parent_seq
    WHERE ancestor.staging_chain IS NULL AND call.call_rowid < ancestor.call_rowid
  )
  SELECT parent_seq, staging_chain, CAST(json AS BLOB) FROM ancestor LIMIT ?
"""


_T = TypeVar("_T")


class _Keys(msgspec.Struct):
    """What is read out of a record's JSON rather than stored twice."""

    model_call_id: str
    staging_key: str
    parent_call_id: str | None = None


_KEYS_DECODER: Final = msgspec.json.Decoder(_Keys)
_CHAIN_DECODER: Final = msgspec.json.Decoder(tuple[str, ...])
_ENCODER: Final = msgspec.json.Encoder()


class StoredCall(NamedTuple):
    """A row of the table `call`, as SELECT_CALL reads it."""

    call_rowid: int
    json: bytes
    recorded_at: float | None
    model_call_id: str
    reason: str | None
    parent_seq: int | None
    staging_chain: str | None
    chain_digest: bytes | None
    fingerprint: bytes | str | None
    fingerprint_version: int | None
    context_len: int | None
    context_digest: bytes | str | None
    unserved: str | None

    def failure(self, rollout_id: str) -> CheckedFailure:
        """Returns the failure row that was recorded."""
        return CheckedFailure(
            rollout_id, self.model_call_id, self.reason or "", self.json, (self.unserved or "").encode()
        )

    def commit(self, rollout_id: str, staging_chain: tuple[str, ...]) -> CheckedCommit:
        """Returns the commit that was recorded.

        Raises:
            LedgerCorruptError: Its columns are no commit, or the chain is another.
        """
        keys = _decode(_KEYS_DECODER, self.json, self.call_rowid)
        if chain_digest(staging_chain) != self.chain_digest or keys.model_call_id != self.model_call_id:
            raise LedgerCorruptError(f"row {self.call_rowid} of the ledger does not agree with its staging chain")
        lookup = None
        if self.fingerprint is not None:
            try:
                lookup = msgspec.convert(
                    {
                        "fingerprint": _unpack(self.fingerprint),
                        "context_len": self.context_len,
                        "context_digest": _unpack(self.context_digest),
                    },
                    ParentLookup,
                )
            except msgspec.ValidationError as error:
                raise LedgerCorruptError(f"row {self.call_rowid} of the ledger has no whole lookup: {error}") from error
        return CheckedCommit(
            rollout_id,
            self.model_call_id,
            keys.parent_call_id,
            keys.staging_key,
            self.json,
            staging_chain,
            self.fingerprint_version or 0,
            lookup,
            (self.unserved or "").encode(),
            self.chain_digest,
            chain_digest(staging_chain[:-1]),
        )


def seq_of(call_rowid: int) -> int:
    """Returns a row's place in its rollout."""
    return call_rowid & (MAX_ROWS - 1)


def columns_of(
    row: CheckedCommit | CheckedFailure, call_rowid: int, recorded_at: float | None, parent_seq: int | None
) -> tuple[Any, ...]:
    """Returns what INSERT_CALL takes for a row.

    Args:
        row: The row.
        call_rowid: Its id.
        recorded_at: When it was recorded.
        parent_seq: The place of the row whose staging chain the row's own continues by its staging key, if there is
            one; then the chain itself is not stored.
    """
    unserved = row.unserved_json.decode() or None
    if isinstance(row, CheckedFailure):
        return (
            call_rowid, row.failure_json.decode(), recorded_at, row.model_call_id, row.reason,
            None, None, None, None, None, None, None, unserved,
        )  # fmt: skip
    continues = parent_seq is not None or row.staging_chain == (row.staging_key,)
    lookup = row.lookup
    return (
        call_rowid,
        row.record_json.decode(),
        recorded_at,
        row.model_call_id,
        None,
        parent_seq,
        None if continues else _ENCODER.encode(row.staging_chain).decode(),
        row.chain_digest,
        None if lookup is None else pack_digest(lookup.fingerprint),
        row.fingerprint_version,
        None if lookup is None else lookup.context_len,
        None if lookup is None else pack_digest(lookup.context_digest),
        unserved,
    )


def read_chain(
    connection: apsw.Connection, call: StoredCall, chains: StagingChains, at_most: int
) -> tuple[str, ...] | None:
    """Returns the staging chain of a record, from memory or from its ancestors, or None if there are more than so many.

    Raises:
        LedgerCorruptError: An ancestor is lost or damaged.
    """
    if call.staging_chain is None and call.chain_digest is not None:
        key = _decode(_KEYS_DECODER, call.json, call.call_rowid).staging_key
        remembered = chains.find(key, call.chain_digest)
        if remembered is not None:
            return remembered
    ancestors: list[Any] = connection.execute(_ANCESTORS, (call.call_rowid, min(at_most, MAX_ROWS) + 1)).fetchall()
    if len(ancestors) > at_most:
        return None
    return _chain_of(ancestors, call.call_rowid)


def with_chains(calls: Iterable[StoredCall]) -> Iterator[tuple[StoredCall, tuple[str, ...]]]:
    """Yields all rows of a rollout, in their order, each record with its staging chain; a failure has none.

    Raises:
        LedgerCorruptError: A row is damaged.
    """
    chains: dict[int, tuple[str, ...]] = {}
    for call in calls:
        if call.reason is not None:
            yield call, ()
            continue
        above: Sequence[str] = ()
        if call.parent_seq is not None:
            if call.parent_seq not in chains:
                raise LedgerCorruptError(f"row {call.call_rowid} of the ledger has lost its parent")
            above = chains[call.parent_seq]
        chain = _own_chain(call.staging_chain, call.json, call.call_rowid, above)
        chains[seq_of(call.call_rowid)] = chain
        yield call, chain


def pack_digest(text: str) -> bytes | str:
    """Returns 64 lower-case hex digits as their 32 bytes, and any other text as it is."""
    if len(text) == 64:
        try:
            packed = bytes.fromhex(text)
        except ValueError:
            return text
        if packed.hex() == text:
            return packed
    return text


def _chain_of(ancestors: list[tuple[int | None, str | None, bytes]], call_rowid: int) -> tuple[str, ...]:
    if not ancestors or (ancestors[-1][0] is not None and ancestors[-1][1] is None):
        raise LedgerCorruptError(f"row {call_rowid} of the ledger has lost an ancestor")
    _, staging_chain, json = ancestors[-1]
    chain = _own_chain(staging_chain, json, call_rowid, ())
    return (*chain, *(_decode(_KEYS_DECODER, json, call_rowid).staging_key for _, _, json in reversed(ancestors[:-1])))


def _own_chain(staging_chain: str | None, json: bytes, call_rowid: int, above: Sequence[str]) -> tuple[str, ...]:
    if staging_chain is not None:
        return _decode(_CHAIN_DECODER, staging_chain, call_rowid)
    return (*above, _decode(_KEYS_DECODER, json, call_rowid).staging_key)


def _decode(decoder: "msgspec.json.Decoder[_T]", stored: bytes | str, call_rowid: int) -> _T:
    try:
        return decoder.decode(stored)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LedgerCorruptError(f"row {call_rowid} of the ledger is damaged: {error}") from error


def _unpack(stored: Any) -> Any:
    return stored.hex() if isinstance(stored, bytes) else stored
