"""A correct server gives no alarm: whatever the seed, and however often it is checked."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rollout_control_check.checking import Report, check_server
from rollout_control_check.fuzzing import Fuzzing
from rollout_control_check.recorder import Recorder, Row, failure_row
from rollout_control_check.requirements import RECORDED_ID, RECORDER, Verdict, requirements
from rollout_control_server import CaptureLedger, MemoryLedger, create_app
from rollout_control_spec.samples import sample_calls
from served import TOKEN, controlled, serving

NEVER_PROVOKED = {"errors.retry-after"}
OF_ROWS = {"records.schema", "records.sums", "records.parent-first", "failures.schema"}


def verdicts(report: Report, verdict: Verdict) -> set[str]:
    return {name for name, outcome in report.outcomes.items() if outcome.verdict is verdict}


@pytest.mark.parametrize("seed", [None, 1, 20261129])
def test_no_alarm(correct_server: tuple[str, Recorder], seed: int | None) -> None:
    base_url, recorder = correct_server
    report = check_server(base_url, TOKEN, recorder=recorder, fuzzing=Fuzzing(10, seed))
    assert verdicts(report, Verdict.BROKEN) == set()
    assert verdicts(report, Verdict.NOT_CHECKED) == NEVER_PROVOKED
    assert report.complete
    assert not report.falls_short


def test_it_touches_nothing_else_and_cleans_up(recorder_of: Callable[[CaptureLedger], Recorder]) -> None:
    ledger = MemoryLedger()
    # The spec's own examples are among what the fuzzing sends.
    foreign = ["train-0007.sample-3", "train-0007.sample-4", "a", "0", "A", "-", "retire"]
    recorder = recorder_of(ledger)
    for rollout_id in foreign:
        recorder(rollout_id, sample_calls(rollout_id, 2))
    recorded: list[str] = []

    def recorder_that_tells(rollout_id: str, rows: list[Row]) -> None:
        recorded.append(rollout_id)
        recorder(rollout_id, rows)

    with controlled(ledger) as control:
        control.remove("retire", "retired-before")
        before = [control.get_manifest(rollout_id).content for rollout_id in [*foreign, "retired-before"]]
        check_server(control.base_url, TOKEN, recorder=recorder_that_tells, fuzzing=Fuzzing(20))
        assert [control.get_manifest(rollout_id).content for rollout_id in [*foreign, "retired-before"]] == before
        assert asyncio.run(ledger.forget_fences(timedelta.max)).kept == 1
        assert recorded
        assert not any(asyncio.run(ledger.has_rows(rollout_id)) for rollout_id in recorded)


def test_a_recorded_id_is_only_read(recorder_of: Callable[[CaptureLedger], Recorder]) -> None:
    ledger = MemoryLedger()
    rows = sample_calls("mine", 3)
    recorder_of(ledger)("mine", [*rows, failure_row("failed", "worker_capture_failed")])
    with controlled(ledger) as control:
        before = control.get_manifest("mine").content
        report = check_server(control.base_url, TOKEN, recorded_id="mine")
        assert control.get_manifest("mine").content == before
    assert verdicts(report, Verdict.BROKEN) == set()
    assert {*OF_ROWS, "manifest.not-empty", "manifest.changes-nothing"} <= verdicts(report, Verdict.HOLDS)
    assert "--record-command" in report.outcomes["manifest.records"].why


def test_without_rows_it_says_what_was_not_checked_and_why(correct_server: tuple[str, Recorder]) -> None:
    report = check_server(correct_server[0], TOKEN)
    assert not report.falls_short
    not_checked = verdicts(report, Verdict.NOT_CHECKED)
    needing_rows = {name for name, one in requirements().items() if {RECORDER, RECORDED_ID} & set(one.needs)}
    assert not_checked == needing_rows | OF_ROWS | NEVER_PROVOKED
    assert all("--record-command" in report.outcomes[name].why for name in needing_rows)


class ReadOnlyLedger:
    """A ledger of another make that has no retire and delete, as the released Gym's."""

    async def aclose(self) -> None: ...

    async def manifest(self, rollout_id: str) -> dict[str, object]:
        return {"schema_version": 2, "rollout_id": rollout_id, "records": [], "failures": []}


def test_a_ledger_without_removals_is_no_alarm() -> None:
    with controlled(ReadOnlyLedger()) as control:
        report = check_server(control.base_url, TOKEN, fuzzing=Fuzzing(5))
    assert verdicts(report, Verdict.BROKEN) == set()
    assert "501" in report.outcomes["retire.offered"].why
    assert "501" in report.outcomes["delete.lifts-fence"].why
    assert {"bodies.schema", "ids.anywhere-in-batch", "order.schema-before-ids"} <= verdicts(report, Verdict.HOLDS)


def test_a_server_that_refuses_removals_for_now_is_no_alarm() -> None:
    with serving(create_app(MemoryLedger(), TOKEN, lambda: "weights are being synchronised")) as base_url:
        report = check_server(base_url, TOKEN)
    assert verdicts(report, Verdict.BROKEN) == set()
    assert "weights are being synchronised" in report.outcomes["retire.offered"].why


def test_a_server_below_a_path() -> None:
    app = create_app(MemoryLedger(), TOKEN)

    async def below(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["path"].removeprefix("/model-server")}
            scope["raw_path"] = scope["raw_path"].removeprefix(b"/model-server")
        await app(scope, receive, send)

    with serving(below) as base_url:
        report = check_server(f"{base_url}/model-server/", TOKEN, fuzzing=Fuzzing(3))
    assert verdicts(report, Verdict.BROKEN) == set()
