"""The rows in which Gym's checkpoints keep a capture ledger, from and to what a ledger of ours keeps.

The layout is that of the rows in Gym's own store, so that a checkpoint taken on either ledger restores on the other. A
row is a JSON object: of a call its lookup, its staging chain and its record, whose `digest` is named `staging_digest`
and whose `cumulative_hash` also stands in `digest`; of a failed call `model_call_id` and `failure_reason`.

An exported row has the keys and values with which it was imported. What a commit of ours has no place for is in the
commit's unserved fields: each key with its value, and under `rollout_control.absent` the names of keys that the row of
such a commit would have and the imported one had not.
"""

from collections.abc import Collection
from typing import Any, Final

import msgspec

from rollout_control_server.ledger.checked_rows import (
    CheckedCommit,
    CheckedFailure,
    check_commit,
    check_failure,
    decode_commit,
    decode_failure,
)
from rollout_control_server.ledger.results import LedgerRow, RolloutExport
from rollout_control_server.ledger.staging_chains import StagingChains
from rollout_control_server.records import CallRecord, CaptureCommit, ParentLookup

__all__ = ["ABSENT_KEYS", "export_of_rows", "rows_of_export"]

ABSENT_KEYS: Final = "rollout_control.absent"
"""The name of an unserved field; no field of a Python class can have it, and so no key of Gym's rows."""

_VERSIONS: Final = ("schema_version", "digest_version", "extras_digest_version")
_LOOKUP: Final = ("fingerprint", "context_len", "context_digest")
_OPTIONAL: Final = ("parent_call_id", "admitted_at", "output_fingerprint", "continuation_fingerprint")
_RECORD_FIELDS: Final = tuple(
    name
    for name in CallRecord.__struct_fields__
    if name not in {*_VERSIONS, "digest", "fingerprint_version", "capture_key"}
)


def rows_of_export(export: RolloutExport) -> list[dict[str, Any]]:
    """Returns the rows of an exported rollout in the order of their writing."""
    return [_row_of(row.row) if isinstance(row.row, CheckedCommit) else _failure_row_of(row.row) for row in export.rows]


def export_of_rows(
    rollout_id: str, rows: list[dict[str, Any]], recorded_at: float, served_fields: Collection[str]
) -> RolloutExport:
    """Returns what a ledger imports for rows of a checkpoint.

    Args:
        rollout_id: The rollout that gets the rows.
        rows: The rows.
        recorded_at: When they count as recorded, in Unix seconds: rows of a checkpoint have no times.
        served_fields: The fields that Gym's CallRecord declares, which a manifest may serve.

    Raises:
        ValueError: A row makes no record and no failure, or the rollout id is none.
    """
    if not isinstance(rows, list):
        raise ValueError(f"the rows of rollout {rollout_id!r} are no list, but {type(rows).__name__}")
    checked = []
    chains = StagingChains()
    for number, row in enumerate(rows):
        try:
            checked.append(LedgerRow(_checked(rollout_id, row, served_fields, chains), recorded_at))
        except (TypeError, ValueError, KeyError, msgspec.ValidationError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"row {number} of rollout {rollout_id!r} cannot be restored: {reason}") from error
    return RolloutExport(rollout_id, None, checked)


def _checked(
    rollout_id: str, row: Any, served_fields: Collection[str], chains: StagingChains
) -> CheckedCommit | CheckedFailure:
    if not isinstance(row, dict):
        raise ValueError(f"it is no object, but {type(row).__name__}")
    if row.get("failure_reason") is not None:
        unserved = {name: value for name, value in row.items() if name not in {"model_call_id", "failure_reason"}}
        return check_failure(rollout_id, row["model_call_id"], row["failure_reason"], unserved)
    return check_commit(_commit_of(rollout_id, row, served_fields), chains)


def _commit_of(rollout_id: str, row: dict[str, Any], served_fields: Collection[str]) -> CaptureCommit:
    fields = {name: row.get(name) if name in _OPTIONAL else row[name] for name in _RECORD_FIELDS}
    # Gym reads an empty fingerprint as none, and an absent version as 0.
    for name in ("output_fingerprint", "continuation_fingerprint"):
        fields[name] = fields[name] or None
    fields |= {name: row[name] for name in _VERSIONS if name in row}
    fields |= {"digest": row["staging_digest"], "fingerprint_version": row.get("fingerprint_version") or 0}
    further = {
        name: value
        for name, value in row.items()
        if name in served_fields and name not in CallRecord.__struct_fields__ and value is not None
    }
    if "capture_key" in served_fields and row.get("capture_key") is not None:
        fields["capture_key"] = row["capture_key"]
    # Gym resolves no parent from a row without one of these.
    lookup = {name: row[name] for name in _LOOKUP} if row.get("fingerprint") and set(_LOOKUP) <= row.keys() else None
    chain = row.get("staging_chain") or []
    if not isinstance(chain, list):
        raise ValueError(f"staging_chain is no list, but {type(chain).__name__}")
    commit = CaptureCommit(
        rollout_id,
        msgspec.convert(fields, CallRecord),
        tuple(chain),
        msgspec.convert(lookup, ParentLookup | None),
        further,
    )
    plain = _plain_row_of(commit)
    unserved = {name: value for name, value in row.items() if name not in plain or plain[name] != value}
    if absent := [name for name in plain if name not in row]:
        unserved[ABSENT_KEYS] = absent
    return msgspec.structs.replace(commit, unserved_fields=unserved)


def _row_of(stored: CheckedCommit) -> dict[str, Any]:
    commit = decode_commit(stored)
    unserved = dict(commit.unserved_fields)
    absent = unserved.pop(ABSENT_KEYS, ())
    return {name: value for name, value in (_plain_row_of(commit) | unserved).items() if name not in absent}


def _plain_row_of(commit: CaptureCommit) -> dict[str, Any]:
    """Returns the row in which Gym's own store would keep the commit."""
    record = commit.record
    row: dict[str, Any] = {name: getattr(record, name) for name in _RECORD_FIELDS}
    row |= {
        "staging_digest": record.digest,
        "fingerprint_version": record.fingerprint_version,
        "digest": record.cumulative_hash,
        "staging_chain": list(commit.staging_chain),
        "fingerprint": "",
    }
    if commit.lookup is not None:
        row |= msgspec.structs.asdict(commit.lookup)
    if record.capture_key is not msgspec.UNSET:
        row["capture_key"] = record.capture_key
    return row | commit.further_fields


def _failure_row_of(stored: CheckedFailure) -> dict[str, Any]:
    failure, unserved = decode_failure(stored)
    return {"model_call_id": failure.model_call_id, "failure_reason": failure.reason} | unserved
