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
