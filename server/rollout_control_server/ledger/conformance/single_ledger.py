"""The promises of a ledger that one process has to itself."""

import asyncio

import pytest

from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.ledger.conformance.listing import ListingConformance
from rollout_control_server.ledger.conformance.moving import MovingConformance
from rollout_control_server.ledger.conformance.parents import ParentConformance
from rollout_control_server.ledger.conformance.reading import ReadingConformance
from rollout_control_server.ledger.conformance.removal import RemovalConformance
from rollout_control_server.ledger.conformance.steps import (
    assert_empty,
    assert_retired,
    call_ids,
    ledger_test,
    read_manifest,
    record_all,
)
from rollout_control_server.ledger.conformance.writing import WritingConformance
from rollout_control_server.samples import changed, sample_commit

__all__ = ["CaptureLedgerConformance"]


class CaptureLedgerConformance(
    ReadingConformance,
    WritingConformance,
    ParentConformance,
    RemovalConformance,
    MovingConformance,
    ListingConformance,
):
    """What every capture ledger promises. A subclass says how one is opened."""

    # Many at once

    @ledger_test
    async def test_each_of_many_writes_has_its_own_outcome(self, ledger: CaptureLedger) -> None:
        """A conflict or an invalid record among hundreds fails by itself alone."""
        await record_all(ledger, [sample_commit("r", "taken")])
        await ledger.retire(["fenced"])
        good = [sample_commit(f"r{index % 7}", f"c{index}") for index in range(200)]
        conflict = changed(sample_commit("r", "taken"), weight_version=8)
        invalid = changed(sample_commit("r", "c"), weight_version=-1)
        late = sample_commit("fenced", "c")
        mixed = [commit for one in good for commit in (one, conflict, invalid, late)]
        outcomes = await asyncio.gather(*(ledger.record(commit) for commit in mixed), return_exceptions=True)
        for commit, outcome in zip(mixed, outcomes, strict=True):
            if commit is late:
                assert outcome is False
            elif commit in (conflict, invalid):
                assert isinstance(outcome, ValueError)
            else:
                assert outcome is True
        kept = [await call_ids(ledger, f"r{index}") for index in range(7)]
        assert sorted(call_id for ids in kept for call_id in ids) == sorted(f"c{index}" for index in range(200))
        assert await call_ids(ledger, "r") == ["taken"]

    @ledger_test
    async def test_one_commit_sent_by_many_is_one_row(self, ledger: CaptureLedger) -> None:
        """And of many different commits of one call, exactly one wins."""
        commit = sample_commit("r", "c")
        assert await asyncio.gather(*(ledger.record(commit) for _ in range(50))) == [True] * 50
        rivals = [changed(sample_commit("r", "d"), weight_version=version) for version in range(50)]
        outcomes = await asyncio.gather(*(ledger.record(rival) for rival in rivals), return_exceptions=True)
        assert outcomes.count(True) == 1
        winner = rivals[outcomes.index(True)]
        assert (await read_manifest(ledger, "r")).records == [commit.record, winner.record]

    @ledger_test
    async def test_a_write_that_races_a_retire_leaves_no_row(self, ledger: CaptureLedger) -> None:
        """It is removed or discarded; after the retire has returned, every read says retired."""
        for attempt in range(20):
            rollout_id = f"race-{attempt}"
            writes = [asyncio.ensure_future(ledger.record(sample_commit(rollout_id, f"c{i}"))) for i in range(20)]
            await asyncio.sleep(0)
            await ledger.retire([rollout_id])
            await assert_retired(ledger, rollout_id)
            await asyncio.gather(*writes)
            await assert_retired(ledger, rollout_id)
            assert (await ledger.delete([rollout_id])).absent == [rollout_id]
            await assert_empty(ledger, rollout_id)

    @ledger_test
    async def test_a_cancelled_write_is_whole_or_absent(self, ledger: CaptureLedger) -> None:
        """And the ledger goes on working."""
        for attempt in range(20):
            commits = [sample_commit("r", f"{attempt}-{index}") for index in range(10)]
            tasks = [asyncio.ensure_future(ledger.record(commit)) for commit in commits]
            for _ in range(attempt % 4):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            kept = await call_ids(ledger, "r")
            for commit, task in zip(commits, tasks, strict=True):
                assert task.cancelled() or commit.record.model_call_id in kept
            await record_all(ledger, commits)

    # Opening and closing

    @ledger_test
    async def test_an_open_ledger_is_ready_and_a_closed_one_is_not(self, ledger: CaptureLedger) -> None:
        """Every method of a closed ledger raises; closing again is a no-op."""
        await ledger.check_ready()
        await ledger.aclose()
        await ledger.aclose()
        with pytest.raises(RuntimeError):
            await ledger.check_ready()
        with pytest.raises(RuntimeError):
            await ledger.record(sample_commit("r", "c"))
        with pytest.raises(RuntimeError):
            await ledger.manifest("r")
        with pytest.raises(RuntimeError):
            await ledger.retire(["r"])
