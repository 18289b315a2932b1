"""Reading manifests, one by one and many in one answer."""

import asyncio

import msgspec
import pytest

from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.ledger.conformance.steps import (
    ODD_STRINGS,
    OpensLedger,
    assert_empty,
    call_ids,
    failures,
    ledger_test,
    read_manifest,
    record_all,
)
from rollout_control_server.records import CallRecord, ParentLookup
from rollout_control_server.samples import changed, sample_commit, sample_conversation

__all__ = ["ReadingConformance"]


class ReadingConformance(OpensLedger):
    """What reading a ledger promises."""

    @ledger_test
    async def test_a_rollout_that_never_recorded_a_call_is_empty(self, ledger: CaptureLedger) -> None:
        """Its manifest is empty, and it has no rows."""
        await assert_empty(ledger, "never")
        assert await ledger.find_parent("never", "f", 2) is None

    @ledger_test
    async def test_a_manifest_has_the_records_in_commit_order(self, ledger: CaptureLedger) -> None:
        """Each record comes back equal, also where the ids sort otherwise."""
        commits = sample_conversation("r", 25, branch_at=7)
        await record_all(ledger, commits)
        manifest = await read_manifest(ledger, "r")
        assert manifest.records == [commit.record for commit in commits]
        assert manifest.failures == []
        assert await ledger.has_rows("r") is True

    @ledger_test
    async def test_a_long_manifest_has_its_own_rows_only(self, ledger: CaptureLedger) -> None:
        """All of them, in commit order, whatever other rollouts recorded between them."""
        rollouts = [sample_conversation(rollout_id, 300) for rollout_id in ("a", "b", "c")]
        for one_of_each in zip(*rollouts, strict=True):
            await record_all(ledger, one_of_each)
        await ledger.record_failure("b", "f", "worker_capture_failed")
        for rollout_id, commits in zip(("a", "b", "c"), rollouts, strict=True):
            assert (await read_manifest(ledger, rollout_id)).records == [commit.record for commit in commits]
        assert await failures(ledger, "b") == [("f", "worker_capture_failed")]

    @ledger_test
    async def test_a_manifest_has_every_field_in_the_order_of_the_spec(self, ledger: CaptureLedger) -> None:
        """Nulls included, and nothing else: no field that a record may have and this one has not."""
        await ledger.record(changed(sample_commit("r", "c"), admitted_at=None, output_fingerprint=None))
        await ledger.record_failure("r", "f", "worker_capture_failed")
        raw: object = await ledger.manifest("r")
        manifest = msgspec.json.decode(raw) if isinstance(raw, bytes) else raw
        assert isinstance(manifest, dict)
        assert list(manifest) == ["schema_version", "rollout_id", "records", "failures"]
        assert list(manifest["records"][0]) == [name for name in CallRecord.__struct_fields__ if name != "capture_key"]
        assert list(manifest["failures"][0]) == ["schema_version", "model_call_id", "reason"]

    @ledger_test
    async def test_rollouts_are_apart(self, ledger: CaptureLedger) -> None:
        """The same call id in two rollouts is two calls; ids that differ in case or by a prefix are two rollouts."""
        for rollout_id in ("r", "R", "r-", "r.", "r0"):
            await record_all(ledger, [sample_commit(rollout_id, "c")])
        for rollout_id in ("r", "R", "r-", "r.", "r0"):
            assert (await read_manifest(ledger, rollout_id)).records == [sample_commit(rollout_id, "c").record]
        await ledger.retire(["r"])
        assert await call_ids(ledger, "R") == ["c"]

    @ledger_test
    async def test_strings_come_back_as_they_were(self, ledger: CaptureLedger) -> None:
        """Any Unicode but lone surrogates, in every field that takes free text."""
        for index, text in enumerate(ODD_STRINGS):
            rollout_id = f"odd-{index}"
            commit = changed(sample_commit(rollout_id, text), staging_key=text, response_id=text)
            commit = msgspec.structs.replace(
                commit, staging_chain=(text,), lookup=ParentLookup(text, context_len=1, context_digest=text)
            )
            child = changed(sample_commit(rollout_id, text + "2", commit), parent_call_id=text)
            await record_all(ledger, [commit, child, commit])
            assert await ledger.record_failure(rollout_id, text + "3", text) is True
            manifest = await read_manifest(ledger, rollout_id)
            assert manifest.records == [commit.record, child.record]
            assert await failures(ledger, rollout_id) == [(text + "3", text)]
            assert await ledger.find_parent(rollout_id, text, 2) == commit

    @ledger_test
    async def test_integers_are_exact_to_the_limit(self, ledger: CaptureLedger) -> None:
        """2^63 - 1 comes back; one more is refused."""
        top = 2**63 - 1
        commit = changed(
            sample_commit("r", "c"), delta_len=top, cum_len=top, weight_version=top, fingerprint_version=top
        )
        commit = msgspec.structs.replace(commit, lookup=ParentLookup("f", context_len=top, context_digest="d"))
        await record_all(ledger, [commit, commit])
        assert (await read_manifest(ledger, "r")).records == [commit.record]
        assert await ledger.find_parent("r", "f", top) == commit
        for field in ("weight_version", "fingerprint_version"):
            with pytest.raises(ValueError, match="cannot be recorded"):
                await ledger.record(changed(sample_commit("r", "c2"), **{field: top + 1}))

    @ledger_test
    async def test_manifests_are_the_manifests(self, ledger: CaptureLedger) -> None:
        """Each byte for byte, in the order of the request, each id once; retired ones apart."""
        await record_all(ledger, [*sample_conversation("a", 9, branch_at=3), *sample_conversation("b", 2)])
        await ledger.record_failure("b", "f", "worker_capture_failed")
        await ledger.record_failure("failed", "f", "unresolved_parent")
        await ledger.record(sample_commit("gone", "c"))
        await ledger.retire(["gone", "never-was"])
        asked = ["failed", "gone", "b", "empty", "b", "never-was", "a", "failed"]
        read = await ledger.manifests(asked, 10**9)
        assert read.manifests == [await ledger.manifest(rollout_id) for rollout_id in ("failed", "b", "empty", "a")]
        assert read.retired == ["gone", "never-was"]
        assert read.remaining == []
        assert await ledger.manifests([], 1) == ([], [], [])

    @ledger_test
    async def test_manifests_end_at_a_size(self, ledger: CaptureLedger) -> None:
        """What is left is said, and at least one id is dealt with, however large its manifest."""
        ids = [f"r{index}" for index in range(12)]
        for index, rollout_id in enumerate(ids):
            await record_all(ledger, sample_conversation(rollout_id, 1 + index % 3))
        await ledger.retire(["r5", "r8"])
        large = len(await ledger.manifest("r2"))
        for max_bytes in (1, large - 1, large, large + 1, 3 * large, 20 * large):
            asked = list(ids)
            seen: list[bytes] = []
            retired: list[str] = []
            answers = 0
            while asked:
                read = await ledger.manifests(asked, max_bytes)
                assert len(read.manifests) == 1 or sum(map(len, read.manifests)) <= max_bytes
                assert len(read.remaining) < len(asked)
                assert read.remaining == asked[len(asked) - len(read.remaining) :]
                seen += read.manifests
                retired += read.retired
                asked = read.remaining
                answers += 1
            assert retired == ["r5", "r8"]
            assert seen == [await ledger.manifest(rollout_id) for rollout_id in ids if rollout_id not in retired]
            assert (answers > 1) == (max_bytes < 20 * large)

    @ledger_test
    async def test_manifests_are_of_one_moment(self, ledger: CaptureLedger) -> None:
        """A batch that is retired in one change is found whole or not at all, however often it is read meanwhile."""
        ids = [f"r{index}" for index in range(50)]
        for attempt in range(5):
            await asyncio.gather(*(ledger.record(sample_commit(rollout_id, f"c{attempt}")) for rollout_id in ids))
            removal = asyncio.ensure_future(ledger.retire(ids))
            while not removal.done():
                await asyncio.sleep(0)
                read = await ledger.manifests(ids, 10**9)
                assert (len(read.manifests), len(read.retired)) in {(50, 0), (0, 50)}
            assert (await removal).removed == ids
            await ledger.delete(ids)

    @ledger_test
    async def test_bad_arguments_of_manifests(self, ledger: CaptureLedger) -> None:
        """As of the other batches, and a size that holds nothing."""
        with pytest.raises(TypeError):
            await ledger.manifests("rollout", 1)
        with pytest.raises(ValueError, match="invalid rollout id"):
            await ledger.manifests(["r", "a/b"], 1)
        with pytest.raises(ValueError, match="max_bytes"):
            await ledger.manifests(["r"], 0)
