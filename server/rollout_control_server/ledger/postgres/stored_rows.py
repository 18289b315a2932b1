"""Rows as they are read from the database, which may have damaged them.

A cluster without data checksums hands out a damaged page as if it were whole. So nothing that is read is trusted: a
row's JSON is held against the CRC-32 that was stored with it, and all else must decode.
"""

import zlib
from typing import Any, Final

import msgspec

from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger.base import CheckedCommit, CheckedFailure
from rollout_control_server.ledger.postgres.rows import digest_of_chain
from rollout_control_server.ledger.results import LedgerRow, RolloutExport
from rollout_control_server.ledger.staging_chains import chain_digest
from rollout_control_server.records import CallFailure, CallRecord, ParentLookup

_RECORD_DECODER: Final = msgspec.json.Decoder(CallRecord)
_FAILURE_DECODER: Final = msgspec.json.Decoder(CallFailure)
_CHAIN_DECODER: Final = msgspec.json.Decoder(tuple[str, ...])
_LOOKUP_DECODER: Final = msgspec.json.Decoder(ParentLookup)
_DAMAGE: Final = (msgspec.MsgspecError, ValueError, TypeError, AttributeError, KeyError, RecursionError)
"""What reading damaged fields raises: they may be null, or hold other bytes."""


def check_json(rollout_id: str, failed: bool, row_json: bytes, json_crc: int | None) -> bytes:
    """Returns a row's JSON if it is what was written.

    Raises:
        LedgerCorruptError: It is not. Rows of schema version 1 have no CRC; they are at least a record or a failure.
    """
    try:
        if json_crc is None:
            (_FAILURE_DECODER if failed else _RECORD_DECODER).decode(row_json)
        elif zlib.crc32(row_json) != json_crc:
            raise ValueError("its bytes are not those that were written")
    except _DAMAGE as error:
        raise _damaged(rollout_id, error) from error
    return row_json


def commit_of_parent(rollout_id: str, fingerprint: str, row: Any) -> CheckedCommit:
    """Returns the commit that `find_parent` has found.

    Raises:
        LedgerCorruptError: It is damaged.
    """
    try:
        head = () if row["chain_head"] is None else _CHAIN_DECODER.decode(row["chain_head"])
        chain = (*head, *(key.decode() for key in row["chain_tail"] or ()))
        return _commit(rollout_id, row["record_json"], row, chain, fingerprint)
    except _DAMAGE as error:
        raise _damaged(rollout_id, error) from error


def export_of(rollout_id: str, rows: list[Any]) -> RolloutExport:
    """Returns the answer of `export_rows` as an export.

    Raises:
        LedgerCorruptError: A row is damaged.
    """
    export = RolloutExport(rollout_id, rows[0]["retired_at"] if rows else None, [])
    chains: dict[int, tuple[str, ...]] = {0: ()}
    try:
        for row in rows[1:]:
            checked: CheckedCommit | CheckedFailure
            if row["failed"]:
                check_json(rollout_id, True, row["row_json"], row["json_crc"])
                checked = CheckedFailure(
                    rollout_id,
                    row["model_call_id"].decode(),
                    row["reason"].decode(),
                    row["row_json"],
                    row["unserved_json"] or b"",
                )
            else:
                if row["parent_seq"] is None:
                    chain = _CHAIN_DECODER.decode(row["staging_chain"])
                else:
                    key = row["staging_key"]
                    own_key = f"{rollout_id}/{row['model_call_id'].decode()}" if key is None else key.decode()
                    chain = (*chains[row["parent_seq"]], own_key)
                fingerprint = row["fingerprint"]
                checked = _commit(
                    rollout_id, row["row_json"], row, chain, None if fingerprint is None else fingerprint.decode()
                )
                chains[row["seq"]] = chain
            export.rows.append(LedgerRow(checked, row["recorded_at"]))
    except _DAMAGE as error:
        raise _damaged(rollout_id, error) from error
    return export


def _commit(
    rollout_id: str, record_json: bytes, row: Any, chain: tuple[str, ...], fingerprint: str | None
) -> CheckedCommit:
    check_json(rollout_id, False, record_json, row["json_crc"])
    if digest_of_chain(chain) != row["chain_digest"]:
        raise ValueError("its staging chain is not the one that was written")
    record = _RECORD_DECODER.decode(record_json)
    lookup = None
    if fingerprint is not None:
        lookup = ParentLookup(fingerprint, row["context_len"], row["context_digest"].decode())
        _LOOKUP_DECODER.decode(msgspec.json.encode(lookup))
    return CheckedCommit(
        rollout_id,
        record.model_call_id,
        record.parent_call_id,
        record.staging_key,
        record_json,
        chain,
        record.fingerprint_version,
        lookup,
        row["unserved_json"] or b"",
        chain_digest(chain),
        chain_digest(chain[:-1]),
    )


def _damaged(rollout_id: str, error: Exception) -> LedgerCorruptError:
    return LedgerCorruptError(f"a row of rollout {rollout_id!r} is damaged in the database: {error}")
