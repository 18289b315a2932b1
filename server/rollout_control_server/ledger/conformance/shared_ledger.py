"""The promises of a ledger whose storage outlives a handle, and is shared by several."""

import asyncio

import pytest

from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.ledger.conformance.single_ledger import CaptureLedgerConformance
from rollout_control_server.ledger.conformance.steps import (
    assert_empty,
    assert_retired,
    call_ids,
    failures,
    ledger_test,
    read_manifest,
    record_all,
)
from rollout_control_server.ledger.results import RolloutExport
from rollout_control_server.samples import changed, sample_commit, sample_conversation


class SharedLedgerConformance(CaptureLedgerConformance):
    """What a ledger promises besides when its storage outlives a handle and several handles share it."""

    @ledger_test
    async def test_every_handle_sees_what_another_has_acknowledged(self, ledger: CaptureLedger) -> None:
        """At once: rows, failures, parents, fences and their lifting."""
        async with self.open_ledger() as other:
            root, child, late = sample_conversation("r", 3)
            await record_all(ledger, [root])
            assert await call_ids(other, "r") == [root.record.model_call_id]
            assert root.lookup is not None
            assert await other.find_parent("r", root.lookup.fingerprint, 2) == root
            await record_all(other, [child])
            assert await ledger.record_failure("r", "f", "worker_capture_failed") is True
            assert await call_ids(ledger, "r") == [root.record.model_call_id, child.record.model_call_id]
            assert await failures(other, "r") == [("f", "worker_capture_failed")]
            with pytest.raises(ValueError, match=r".+"):
                await other.record(changed(root, weight_version=9))
            with pytest.raises(ValueError, match=r".+"):
                await other.record(sample_commit("r", "f"))
            assert (await other.retire(["r"])).removed == ["r"]
            await assert_retired(ledger, "r")
            assert await ledger.record(late) is False
            assert (await ledger.delete(["r"])).absent == ["r"]
            await assert_empty(other, "r")
            await record_all(other, [late])
            assert await call_ids(ledger, "r") == [late.record.model_call_id]

    @ledger_test
    async def test_everything_is_there_when_it_is_opened_again(self, ledger: CaptureLedger) -> None:
        """Rows, their order, parents, fences, and that what was deleted is gone."""
        commits = sample_conversation("kept", 12, branch_at=5)
        await record_all(ledger, [*commits, sample_commit("deleted", "c"), sample_commit("retired", "c")])
        await ledger.record_failure("kept", "f", "unresolved_parent")
        await ledger.retire(["retired", "never"])
        await ledger.delete(["deleted"])
        await ledger.aclose()
        async with self.open_ledger() as again:
            assert (await read_manifest(again, "kept")).records == [commit.record for commit in commits]
            assert await failures(again, "kept") == [("f", "unresolved_parent")]
            for commit in commits:
                assert commit.lookup is not None
                assert await again.find_parent("kept", commit.lookup.fingerprint, 2) == commit
            await assert_retired(again, "retired")
            await assert_retired(again, "never")
            await assert_empty(again, "deleted")
            await record_all(again, [*commits, sample_commit("deleted", "c2")])
            assert await call_ids(again, "deleted") == ["c2"]

    @ledger_test
    async def test_closing_finishes_what_was_accepted(self, ledger: CaptureLedger) -> None:
        """Each write that was begun has an outcome, and is in the ledger if it says so."""
        commits = [sample_commit("r", f"c{index}") for index in range(100)]
        tasks = [asyncio.ensure_future(ledger.record(commit)) for commit in commits]
        await asyncio.sleep(0)
        await ledger.aclose()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        async with self.open_ledger() as again:
            kept = await call_ids(again, "r")
        for commit, outcome in zip(commits, outcomes, strict=True):
            assert (outcome is True) == (commit.record.model_call_id in kept)
            assert outcome is True or isinstance(outcome, RuntimeError)

    @ledger_test
    async def test_an_import_is_seen_by_a_handle_that_knew_the_rollout(self, ledger: CaptureLedger) -> None:
        """What the other handle remembers of the former rows is of no use to it: not their order, chains or fences."""
        former, replacing = sample_conversation("r", 70), sample_conversation("r", 75, branch_at=3)
        async with self.open_ledger() as other:
            await record_all(ledger, replacing)
            export = await ledger.export("r")
            await ledger.delete(["r"])
            await record_all(other, former)
            await other.retire(["fenced"])
            await ledger.import_([export, RolloutExport("fenced", None, []), RolloutExport("new", 12.5, [])])
            assert await other.export("r") == export
            assert await other.manifest("r") == await ledger.manifest("r")
            await assert_empty(other, "fenced")
            await assert_retired(other, "new")
            assert await other.record(sample_commit("new", "late")) is False
            children = [sample_commit("r", f"child-{number}", replacing[-1]) for number in range(3)]
            for handle, child in zip((other, ledger, other), children, strict=True):
                await record_all(handle, [child])
                assert child.lookup is not None
                assert await ledger.find_parent("r", child.lookup.fingerprint, 2) == child
            rows = (await other.export("r")).rows
            assert rows[: len(export.rows)] == export.rows
            assert len(rows) == len(export.rows) + 3
        async with self.open_ledger() as again:
            assert (await again.export("r")).rows == rows

    @ledger_test
    async def test_an_import_that_races_a_write_loses_neither(self, ledger: CaptureLedger) -> None:
        """A row that is recorded meanwhile is replaced with the others, or stands after the imported ones."""
        async with self.open_ledger() as other:
            await record_all(ledger, sample_conversation("r", 5))
            export = await ledger.export("r")
            for attempt in range(15):
                write = asyncio.ensure_future(other.record(sample_commit("r", f"late-{attempt}")))
                if attempt % 2:
                    await asyncio.sleep(0)
                await ledger.import_([export])
                assert await write is True
                rows = (await other.export("r")).rows
                assert rows[:5] == export.rows
                assert [row.row.model_call_id for row in rows[5:]] in ([], [f"late-{attempt}"])
                assert (await ledger.rollouts()).rollouts[0].calls == len(rows)
