"""Checks of all that a ledger has of one rollout: before it is imported, and when a ledger is verified."""

import math

from rollout_control_spec import validate_rollout_id

from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger.checked_rows import (
    CheckedCommit,
    CheckedFailure,
    check_commit,
    check_failure,
    decode_commit,
    decode_failure,
)
from rollout_control_server.ledger.results import LedgerRow, RolloutEntry, RolloutExport
from rollout_control_server.ledger.staging_chains import StagingChains

__all__ = ["check_entry", "check_export", "check_stored"]


def check_export(export: RolloutExport) -> RolloutExport:
    """Returns a rollout as it can be stored, each row checked as `record` checks it.

    Raises:
        LedgerCorruptError: The bytes of a row are no row.
        TypeError: It is no RolloutExport.
        ValueError: It cannot stand in a ledger, see `CaptureLedger.import_`.
    """
    if not isinstance(export, RolloutExport):
        raise TypeError(f"import_ takes RolloutExports, not {type(export).__name__}")
    validate_rollout_id(export.rollout_id)
    if export.retired_at is not None and export.rows:
        raise ValueError(f"rollout {export.rollout_id!r} is retired, and so has no rows")
    if not all(time is None or math.isfinite(time) for time in (export.retired_at, *(at for _, at in export.rows))):
        raise ValueError(f"rollout {export.rollout_id!r} has a time that is not finite")
    chains = StagingChains()
    calls: set[str] = set()
    failed: set[str] = set()
    reasons: set[tuple[str, str]] = set()
    rows = []
    for row, recorded_at in export.rows:
        if row.rollout_id != export.rollout_id:
            raise ValueError(f"rollout {export.rollout_id!r} has a row of rollout {row.rollout_id!r:.80}")
        checked: CheckedCommit | CheckedFailure
        if isinstance(row, CheckedCommit):
            checked = check_commit(decode_commit(row), chains)
            if checked.model_call_id in calls:
                raise ValueError(f"rollout {export.rollout_id!r} has call {checked.model_call_id!r} twice")
            if checked.model_call_id in failed:
                raise ValueError(
                    f"rollout {export.rollout_id!r} has a record of call {checked.model_call_id!r}, which had failed"
                )
            calls.add(checked.model_call_id)
        else:
            failure, unserved = decode_failure(row)
            checked = check_failure(export.rollout_id, failure.model_call_id, failure.reason, unserved)
            if (failure.model_call_id, failure.reason) in reasons:
                raise ValueError(
                    f"rollout {export.rollout_id!r} has a failure row of call {failure.model_call_id!r} twice"
                )
            failed.add(failure.model_call_id)
            reasons.add((failure.model_call_id, failure.reason))
        rows.append(LedgerRow(checked, recorded_at))
    return RolloutExport(export.rollout_id, export.retired_at, rows)


def check_stored(export: RolloutExport) -> None:
    """Returns if a stored rollout can stand in a ledger, and the JSON of its rows agrees with what is stored beside it.

    Raises:
        LedgerCorruptError: It is not so.
    """
    try:
        checked = check_export(export)
    except ValueError as error:
        raise LedgerCorruptError(f"rollout {export.rollout_id!r} of the ledger is damaged: {error}") from error
    for (row, _), (again, _) in zip(export.rows, checked.rows, strict=True):
        if isinstance(row, CheckedCommit) and isinstance(again, CheckedCommit):
            agrees = row == again._replace(record_json=row.record_json, unserved_json=row.unserved_json)
        else:
            agrees = row[:3] == again[:3]
        if not agrees:
            raise LedgerCorruptError(
                f"rollout {export.rollout_id!r} of the ledger has a row of call {again.model_call_id!r} that does not "
                "agree with its own JSON"
            )


def check_entry(export: RolloutExport, entry: RolloutEntry) -> None:
    """Returns if a stored rollout can stand in a ledger, and its entry in the listing says of it what is true.

    Raises:
        LedgerCorruptError: One of the two is not so.
    """
    check_stored(export)
    failures = sum(isinstance(row, CheckedFailure) for row, _ in export.rows)
    live = export.retired_at is None
    times = [recorded_at for _, recorded_at in export.rows]
    expected = entry._replace(
        state="live" if live else "retired",
        calls=len(export.rows) - failures if live else None,
        failures=failures if live else None,
        first_recorded_at=times[0] if times else None,
        last_recorded_at=times[-1] if times else None,
        retired_at=export.retired_at,
    )
    if entry != expected or (live and not export.rows):
        raise LedgerCorruptError(
            f"rollout {export.rollout_id!r} of the ledger is listed as {entry}, and its rows say {expected}"
        )
