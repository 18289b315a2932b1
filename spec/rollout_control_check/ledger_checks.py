"""Checks of what the operations do to the ledgers: reading, retiring, deleting."""

from typing import Any, Final

from rollout_control_spec import MAX_INT
from rollout_control_spec.samples import sample_call, sample_calls

from rollout_control_check.examination import (
    Examination,
    NotCheckedError,
    ShortfallError,
    check,
    document_of,
)
from rollout_control_check.recorder import RecordingError, Row, failure_row
from rollout_control_check.wire import Exchange

ODD_TEXT: Final = 'é\u0000\u0001 \u2028"\\</ \U0001f3b2 \u0430\u0301'
CALLS: Final = 12


def _expect(condition: bool, expected: str, exchange: Exchange) -> None:
    if not condition:
        raise ShortfallError(expected, exchange)


def _manifest(server: Examination, rollout_id: str, because: str = "") -> tuple[dict[str, Any], Exchange]:
    exchange = server.manifest(rollout_id, because=because)
    document = document_of(exchange)
    if not isinstance(document, dict):
        raise ShortfallError("a manifest as JSON", exchange)
    return document, exchange


def _rows(document: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    rows = document.get(kind)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _expect_empty(server: Examination, rollout_id: str, because: str) -> None:
    document, exchange = _manifest(server, rollout_id, because)
    _expect(not document.get("records") and not document.get("failures"), f"an empty manifest: {because}", exchange)


def _names(exchange: Exchange, kind: str) -> list[Any]:
    document = document_of(exchange)
    named = document.get(kind) if isinstance(document, dict) else None
    return named if isinstance(named, list) else []


def _expect_named(exchange: Exchange, kind: str, rollout_ids: list[str], because: str) -> None:
    _expect(set(rollout_ids) <= set(map(str, _names(exchange, kind))), f"{kind}: {because}", exchange)


def _recorded(server: Examination, name: str, calls: int = 3) -> str:
    """Records a conversation, and returns its rollout."""
    rollout_id = server.new_id(name)
    server.record(rollout_id, sample_calls(rollout_id, calls))
    return rollout_id


def _expect_record(server: Examination, rollout_id: str, rows: list[Row]) -> None:
    """Records rows, and expects the same ones back, in whatever order."""
    server.record(rollout_id, rows)
    document, exchange = _manifest(server, rollout_id)
    found = {record.get("model_call_id"): record for record in _rows(document, "records")}
    for row in rows:
        wanted = row["record"]
        came = found.get(wanted["model_call_id"])
        _expect(came is not None, f"a record of call {wanted['model_call_id']!r}", exchange)
        for name, value in wanted.items():
            _expect(
                came is not None and (name not in came or came[name] == value),
                f"{name} of call {wanted['model_call_id']!r} to be {value!r}, as it was recorded",
                exchange,
            )


# Reading


@check("manifest.never-recorded")
def manifest_never_recorded(server: Examination) -> None:
    _expect_empty(server, server.new_id(), "the rollout never recorded a call")


@check("manifest.changes-nothing")
def manifest_changes_nothing(server: Examination) -> None:
    rollout_id = server.recorded_id or (_recorded(server, "read") if server.recorder else server.new_id())
    first = server.manifest(rollout_id)
    for _attempt in range(2):
        again = server.manifest(rollout_id, because="it was read before, and reading changes nothing")
        _expect(document_of(again) == document_of(first), "the same manifest as a moment before", again)


@check("manifest.not-empty")
def manifest_not_empty(server: Examination) -> None:
    rollout_id = server.recorded_id or _recorded(server, "rows")
    document, exchange = _manifest(server, rollout_id, "the rollout has rows")
    _expect(bool(document.get("records") or document.get("failures")), "rows: the rollout has some", exchange)


@check("manifest.records")
def manifest_records(server: Examination) -> None:
    rollout_id = server.new_id("records")
    rows = sample_calls(rollout_id, CALLS, branch_at=5)
    _expect_record(server, rollout_id, rows)
    document, exchange = _manifest(server, rollout_id)
    _expect(len(_rows(document, "records")) <= CALLS, f"no more than the {CALLS} records that were written", exchange)


@check("manifest.commit-order")
def manifest_commit_order(server: Examination) -> None:
    rollout_id = server.new_id("order")
    # Their ids, lengths and times sort in another order than that of their commits.
    rows = [
        sample_call(rollout_id, name, delta_len=length, fields={"admitted_at": 1764450000.0 + length})
        for name, length in (("m", 30), ("z", 10), ("a", 50), ("q", 20), ("b", 40))
    ]
    server.record(rollout_id, rows)
    document, exchange = _manifest(server, rollout_id)
    came = [record.get("model_call_id") for record in _rows(document, "records")]
    wanted = [row["record"]["model_call_id"] for row in rows if row["record"]["model_call_id"] in came]
    _expect(came == wanted, f"the records in commit order: {', '.join(wanted)}", exchange)


@check("manifest.failures")
def manifest_failures(server: Examination) -> None:
    rollout_id = server.new_id("failures")
    wanted = [("failed", "worker_capture_failed"), ("failed", "unresolved_parent"), ("whole", "worker_capture_failed")]
    rows = [sample_call(rollout_id, "whole"), *(failure_row(*failure) for failure in wanted)]
    server.record(rollout_id, rows)
    document, exchange = _manifest(server, rollout_id)
    came = [(row.get("model_call_id"), row.get("reason")) for row in _rows(document, "failures")]
    _expect(sorted(map(str, came)) == sorted(map(str, wanted)), f"the failures {wanted}", exchange)
    _expect(len(_rows(document, "records")) == 1, "the record of call 'whole' beside its failure", exchange)


@check("manifest.failures-order")
def manifest_failures_order(server: Examination) -> None:
    rollout_id = server.new_id("failures")
    wanted = [("m", "z"), ("z", "a"), ("a", "m"), ("m", "b")]
    server.record(rollout_id, [failure_row(*failure) for failure in wanted])
    document, exchange = _manifest(server, rollout_id)
    came = [(row.get("model_call_id"), row.get("reason")) for row in _rows(document, "failures")]
    if sorted(map(str, came)) != sorted(map(str, wanted)):
        raise NotCheckedError("the failures are not those that were recorded: see manifest.failures")
    _expect(came == wanted, f"the failures in the order in which they were written: {wanted}", exchange)


@check("records.further-fields")
def records_further_fields(server: Examination) -> None:
    rollout_id = server.new_id("further")
    further: dict[str, Any] = {
        "capture_key": f"{rollout_id}-a1",
        "later_field": {"list": [1, None, "é"], "number": 0.5},
    }
    row = sample_call(rollout_id, "call", fields={**further, "later_null": None})
    try:
        server.record(rollout_id, [row])
    except RecordingError as error:
        raise NotCheckedError(f"records with further fields cannot be recorded here: {error}") from error
    document, exchange = _manifest(server, rollout_id)
    for record in _rows(document, "records"):
        for name, value in further.items():
            _expect(record.get(name) == value, f"{name} to be {value!r}, as it was recorded", exchange)
        _expect("later_null" not in record, "no field later_null, which was recorded as null", exchange)


@check("manifest.nulls")
def manifest_nulls(server: Examination) -> None:
    rollout_id = server.new_id("nulls")
    bare = {"admitted_at": None, "output_fingerprint": None, "continuation_fingerprint": None}
    server.record(rollout_id, [sample_call(rollout_id, "c", fields={**bare, "fingerprint_version": 0})])
    document, exchange = _manifest(server, rollout_id)
    for record in _rows(document, "records"):
        for name in (*bare, "parent_call_id"):
            _expect(name in record and record[name] is None, f"{name}: null, as it was recorded", exchange)


@check("manifest.text")
def manifest_text(server: Examination) -> None:
    rollout_id = server.new_id("text")
    staging_key = f"{ODD_TEXT}{'k' * 5000}"
    row = sample_call(rollout_id, f"call {ODD_TEXT}", fields={"response_id": ODD_TEXT, "staging_key": staging_key})
    _expect_record(server, rollout_id, [row])
    server.record(rollout_id, [failure_row("failed", ODD_TEXT)])
    document, exchange = _manifest(server, rollout_id)
    for row in _rows(document, "failures"):
        _expect(row.get("reason", ODD_TEXT) == ODD_TEXT, f"the reason {ODD_TEXT!r}, as it was recorded", exchange)


@check("manifest.integers")
def manifest_integers(server: Examination) -> None:
    rollout_id = server.new_id("integers")
    rows = [
        sample_call(rollout_id, f"call-{number}", delta_len=number, weight_version=number)
        for number in (2**53 + 1, MAX_INT)
    ]
    _expect_record(server, rollout_id, rows)


# Retiring


@check("retire.gone")
def retire_gone(server: Examination) -> None:
    kinds = {server.new_id("retired"): "though it never recorded a call"}
    if server.recorder is not None:
        kinds[_recorded(server, "retired")] = "and its rows are gone"
    server.send_batch("retire", list(kinds))
    for rollout_id, kind in kinds.items():
        for _attempt in range(2):
            server.manifest(rollout_id, 410, because=f"the rollout is retired, {kind}")


@check("retire.absent")
def retire_absent(server: Examination) -> None:
    rollout_id = server.new_id("retired")
    exchange = server.send_batch("retire", [rollout_id])
    _expect_named(exchange, "absent", [rollout_id], "the rollout never recorded a call")


@check("retire.repeated")
def retire_repeated(server: Examination) -> None:
    rollout_id = server.new_id("retired")
    server.send_batch("retire", [rollout_id])
    exchange = server.send_batch("retire", [rollout_id], because="repeating the request is safe")
    _expect_named(exchange, "absent", [rollout_id], "the rollout is fenced already")


@check("retire.whole-batch")
def retire_whole_batch(server: Examination) -> None:
    batch = [server.new_id("batch") for _ in range(5)]
    server.send_batch("retire", batch)
    came = {}
    for rollout_id in batch:
        came[rollout_id] = server.manifest(rollout_id, 200, 410)
    if all(exchange.answer is not None and exchange.answer.status == 200 for exchange in came.values()):
        raise NotCheckedError("retire fences no rollout of a batch: see retire.gone")
    for exchange in came.values():
        _expect(exchange.answer is not None and exchange.answer.status == 410, "status 410: all are retired", exchange)


@check("retire.nothing-else")
def retire_nothing_else(server: Examination) -> None:
    rollout_id = server.new_id("retired")
    in_capitals = rollout_id.removesuffix("retired") + "RETIRED"
    others = [f"{rollout_id}0", rollout_id[:-1], in_capitals, f"{rollout_id}.", server.new_id()]
    server.send_batch("retire", [rollout_id])
    for other in others:
        server.manifest(other, because=f"another rollout, {rollout_id}, was retired")


def _change_nothing(server: Examination, operation: str, batch: list[str]) -> None:
    """Sends a batch with an invalid id, which is to be refused whole."""
    exchange = server.send_batch(operation, batch, 200, 400, 422, 500)
    if exchange.answer is not None and exchange.answer.status == 200:
        raise NotCheckedError("the server takes an invalid id: see ids.anywhere-in-batch")


@check("retire.bad-batch")
def retire_bad_batch(server: Examination) -> None:
    before, after = server.new_id("batch"), server.new_id("batch")
    _change_nothing(server, "retire", [before, "a b", after])
    for rollout_id in (before, after):
        server.manifest(rollout_id, because="the batch had an invalid id, so nothing of it was done")


@check("delete.bad-batch")
def delete_bad_batch(server: Examination) -> None:
    before, after = server.new_id("batch"), server.new_id("batch")
    server.send_batch("retire", [before, after])
    fenced = [server.manifest(rollout_id, 200, 410) for rollout_id in (before, after)]
    if any(exchange.answer is None or exchange.answer.status != 410 for exchange in fenced):
        raise NotCheckedError("retire leaves no fence that a delete could lift: see retire.gone")
    _change_nothing(server, "delete", [before, "a b", after])
    for rollout_id in (before, after):
        server.manifest(rollout_id, 410, because="the batch had an invalid id, so nothing of it was done")


@check("retire.removed")
def retire_removed(server: Examination) -> None:
    rollout_id = _recorded(server, "rows")
    never = server.new_id("never")
    exchange = server.send_batch("retire", [never, rollout_id])
    _expect_named(exchange, "removed", [rollout_id], "the rollout had rows")


@check("retire.removed-once")
def retire_removed_once(server: Examination) -> None:
    rollout_id = _recorded(server, "rows")
    server.send_batch("retire", [rollout_id])
    exchange = server.send_batch("retire", [rollout_id])
    _expect_named(exchange, "absent", [rollout_id], "the rollout is fenced, its rows were removed before")


@check("retire.late-write")
def retire_late_write(server: Examination) -> None:
    rollout_id = server.new_id("late")
    rows = sample_calls(rollout_id, 3)
    server.record(rollout_id, rows[:2])
    server.send_batch("retire", [rollout_id])
    server.record(rollout_id, rows)
    server.record(rollout_id, [failure_row("late", "worker_capture_failed")])
    server.manifest(rollout_id, 410, because="the rollout is retired, and a late write is discarded")
    exchange = server.send_batch("retire", [rollout_id])
    _expect_named(exchange, "absent", [rollout_id], "late writes to a retired rollout are discarded")


@check("removal.failure-rows-count")
def removal_failure_rows_count(server: Examination) -> None:
    rollout_id = server.new_id("failed")
    server.record(rollout_id, [failure_row("failed", "worker_capture_failed")])
    exchange = server.send_batch("retire", [rollout_id])
    _expect_named(exchange, "removed", [rollout_id], "the rollout had a failure row")


@check("removal.duplicates")
def removal_duplicates(server: Examination) -> None:
    one, two, three = (server.new_id("twice") for _ in range(3))
    exchange = server.send_batch("delete", [two, one, two, three, one, two])
    named = _names(exchange, "removed") + _names(exchange, "absent")
    _expect(named == [two, one, three], f"absent: {two}, {one}, {three}, each once", exchange)


# Deleting


@check("delete.absent")
def delete_absent(server: Examination) -> None:
    rollout_id = server.new_id("deleted")
    exchange = server.send_batch("delete", [rollout_id])
    _expect_named(exchange, "absent", [rollout_id], "the rollout never recorded a call")
    _expect_empty(server, rollout_id, "there was nothing to delete")


@check("delete.lifts-fence")
def delete_lifts_fence(server: Examination) -> None:
    rollout_id = server.new_id("lifted")
    server.send_batch("retire", [rollout_id])
    server.send_batch("delete", [rollout_id])
    _expect_empty(server, rollout_id, "the fence is lifted")


@check("delete.fence-is-absent")
def delete_fence_is_absent(server: Examination) -> None:
    rollout_id = server.new_id("lifted")
    server.send_batch("retire", [rollout_id])
    exchange = server.send_batch("delete", [rollout_id])
    _expect_named(exchange, "absent", [rollout_id], "the rollout was fenced and had no rows")


@check("delete.removed")
def delete_removed(server: Examination) -> None:
    rollout_id = _recorded(server, "rows")
    exchange = server.send_batch("delete", [rollout_id])
    _expect_named(exchange, "removed", [rollout_id], "the rollout had rows")


@check("delete.rows-gone")
def delete_rows_gone(server: Examination) -> None:
    rollout_id = _recorded(server, "rows")
    server.send_batch("delete", [rollout_id])
    _expect_empty(server, rollout_id, "the rollout was deleted")
    exchange = server.send_batch("delete", [rollout_id])
    _expect_named(exchange, "absent", [rollout_id], "its rows were deleted before")


def _expect_only(server: Examination, rollout_id: str, call_id: str) -> None:
    server.record(rollout_id, [sample_call(rollout_id, call_id, delta_len=9)])
    document, exchange = _manifest(server, rollout_id, "the id is used again")
    came = [record.get("model_call_id") for record in _rows(document, "records")]
    _expect(came == [call_id], f"only {call_id!r}, which was recorded after the delete", exchange)


@check("delete.id-used-again")
def delete_id_used_again(server: Examination) -> None:
    rollout_id = server.new_id("again")
    server.record(rollout_id, [sample_call(rollout_id, "old"), failure_row("old-failed", "x")])
    server.send_batch("delete", [rollout_id])
    _expect_only(server, rollout_id, "new")


@check("delete.after-retire-starts-new")
def delete_after_retire_starts_new(server: Examination) -> None:
    rollout_id = _recorded(server, "again")
    server.send_batch("retire", [rollout_id])
    server.send_batch("delete", [rollout_id])
    _expect_only(server, rollout_id, "new")


# Many manifests


def _bulk(server: Examination, rollout_ids: list[str]) -> tuple[dict[str, Any], Exchange]:
    exchange = server.send_batch("manifests", rollout_ids)
    document = document_of(exchange)
    if not isinstance(document, dict):
        raise ShortfallError("RolloutManifests as JSON", exchange)
    return document, exchange


@check("manifests.rows")
def manifests_rows(server: Examination) -> None:
    never, recorded = server.new_id("bulk"), server.new_id("bulk")
    rows = sample_calls(recorded, 3)
    server.record(recorded, rows)
    wanted = {never: set[object](), recorded: {row["record"]["model_call_id"] for row in rows}}
    document, exchange = _bulk(server, [never, recorded])
    for manifest in _rows(document, "manifests"):
        calls = {record.get("model_call_id") for record in _rows(manifest, "records")}
        rollout_id = manifest.get("rollout_id")
        _expect(calls == wanted.get(str(rollout_id), calls), f"all calls of rollout {rollout_id}", exchange)


@check("manifests.retired")
def manifests_retired(server: Examination) -> None:
    retired, other = server.new_id("bulk"), server.new_id("bulk")
    server.send_batch("retire", [retired])
    single = server.manifest(retired, 200, 404, 410).answer
    if single is None or single.status != 410:
        raise NotCheckedError("retire leaves no fence: see retire.gone")
    document, exchange = _bulk(server, [retired, other])
    _expect(document.get("retired") == [retired], f"retired: {retired}", exchange)


@check("manifests.progress")
def manifests_progress(server: Examination) -> None:
    remaining = [server.new_id("bulk") for _ in range(5)]
    while remaining:
        document, exchange = _bulk(server, remaining)
        left = document.get("remaining")
        _expect(isinstance(left, list) and len(left) < len(remaining), "fewer ids in remaining than asked", exchange)
        remaining = [str(name) for name in left or []]


@check("manifests.changes-nothing")
def manifests_changes_nothing(server: Examination) -> None:
    rollout_ids = [_recorded(server, "bulk") if server.recorder else server.new_id("bulk"), server.new_id("bulk")]
    first, _exchange = _bulk(server, rollout_ids)
    again, exchange = _bulk(server, rollout_ids)
    _expect(first == again, "the same manifests as a moment before", exchange)
