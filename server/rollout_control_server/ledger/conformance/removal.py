"""Retiring and deleting rollouts, and forgetting fences."""

import asyncio
from datetime import timedelta

import pytest

from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.ledger.conformance.steps import (
    OpensLedger,
    WarningLines,
    assert_empty,
    assert_retired,
    call_ids,
    ledger_test,
    read_manifest,
    record_all,
)
from rollout_control_server.samples import changed, sample_commit, sample_conversation

__all__ = ["RemovalConformance"]


class RemovalConformance(OpensLedger):
    """What removing rollouts promises."""

    @ledger_test
    async def test_retire_fences_and_removes(self, ledger: CaptureLedger) -> None:
        """What had rows is removed, failure rows count, and the rest is absent, in the batch's order."""
        await record_all(ledger, sample_conversation("rows", 3))
        await ledger.record_failure("failed", "c", "worker_capture_failed")
        removal = await ledger.retire(["none-2", "rows", "none-1", "failed", "rows", "none-2"])
        assert removal.removed == ["rows", "failed"]
        assert removal.absent == ["none-2", "none-1"]
        for rollout_id in ("rows", "failed", "none-1", "none-2"):
            await assert_retired(ledger, rollout_id)
        again = await ledger.retire(["rows", "failed", "none-1"])
        assert (again.removed, again.absent) == ([], ["rows", "failed", "none-1"])
        await assert_retired(ledger, "rows")

    @ledger_test
    async def test_a_late_write_is_discarded_with_a_warning(self, ledger: CaptureLedger) -> None:
        """It returns, keeps nothing, and the warning has the last pointer to the staged tokens, or the reason."""
        commits = sample_conversation("r", 3)
        await record_all(ledger, commits[:2])
        await ledger.retire(["r"])
        with WarningLines() as warnings:
            for commit in commits:
                assert await ledger.record(commit) is False
            assert await ledger.record_failure("r", "late", "unresolved_parent") is False
        await assert_retired(ledger, "r")
        for commit, warning in zip(commits, warnings, strict=False):
            assert "'r'" in warning
            assert commit.record.model_call_id in warning
            assert commit.record.staging_key in warning
        assert len(warnings) == 4
        assert "'r'" in warnings[3]
        assert "late" in warnings[3]
        assert "unresolved_parent" in warnings[3]
        assert (await ledger.delete(["r"])).absent == ["r"]
        await assert_empty(ledger, "r")

    @ledger_test
    async def test_delete_removes_rows_and_fence(self, ledger: CaptureLedger) -> None:
        """A fenced id whose fence is lifted is absent; the id can be used again, and has none of its old rows."""
        old = sample_conversation("r", 4)
        await record_all(ledger, old)
        removal = await ledger.delete(["none", "r"])
        assert (removal.removed, removal.absent) == (["r"], ["none"])
        await assert_empty(ledger, "r")
        await record_all(ledger, old[:1])
        await ledger.retire(["r"])
        removal = await ledger.delete(["r", "none"])
        assert (removal.removed, removal.absent) == ([], ["r", "none"])
        await assert_empty(ledger, "r")
        anew = changed(old[0], weight_version=99)
        await record_all(ledger, [anew])
        assert (await read_manifest(ledger, "r")).records == [anew.record]
        assert old[1].lookup is not None
        assert await ledger.find_parent("r", old[1].lookup.fingerprint, 2) is None
        await ledger.record_failure("r", old[1].record.model_call_id, "reason")
        assert (await ledger.retire(["r"])).removed == ["r"]

    @ledger_test
    async def test_a_large_batch_is_one_change(self, ledger: CaptureLedger) -> None:
        """More ids than one HTTP request carries, half of them with rows."""
        ids = [f"r{index}" for index in range(5000)]
        await asyncio.gather(*(ledger.record(sample_commit(rollout_id, "c")) for rollout_id in ids[::2]))
        removal = await ledger.retire([*reversed(ids), *ids])
        assert removal.removed == ids[::2][::-1]
        assert removal.absent == ids[1::2][::-1]
        assert (await ledger.retire(ids)).absent == ids
        assert (await ledger.delete(ids)).absent == ids
        await assert_empty(ledger, "r0")

    @ledger_test
    async def test_an_empty_batch_does_nothing(self, ledger: CaptureLedger) -> None:
        """The wire refuses one; a caller in the same process may have nothing to remove."""
        for removal in (await ledger.retire([]), await ledger.delete([])):
            assert (removal.removed, removal.absent) == ([], [])

    @ledger_test
    async def test_fences_are_forgotten_on_demand(self, ledger: CaptureLedger) -> None:
        """By age, never live ledgers, and a forgotten id starts anew."""
        await record_all(ledger, [sample_commit("live", "c"), sample_commit("old", "c")])
        await ledger.retire(["old", "older"])
        counted = await ledger.forget_fences(timedelta.max)
        assert (counted.forgotten, counted.kept) == (0, 2)
        assert counted.kept_bytes > 0
        assert (await ledger.forget_fences(timedelta(hours=1))).forgotten == 0
        await assert_retired(ledger, "old")
        with pytest.raises(ValueError, match="negative"):
            await ledger.forget_fences(timedelta(seconds=-1))
        await asyncio.sleep(0.01)
        assert (await ledger.forget_fences(timedelta(0)))[:2] == (2, 0)
        await assert_empty(ledger, "older")
        await assert_empty(ledger, "old")
        assert await call_ids(ledger, "live") == ["c"]
        await record_all(ledger, [sample_commit("old", "c2")])
        assert await call_ids(ledger, "old") == ["c2"]
