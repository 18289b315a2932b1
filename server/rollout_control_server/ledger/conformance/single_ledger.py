"""The promises of a ledger that one process has to itself."""

import abc
import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.ledger.conformance.steps import (
    BAD_IDS,
    ODD_STRINGS,
    WarningLines,
    assert_empty,
    assert_retired,
    call_ids,
    failures,
    ledger_test,
    read_manifest,
    record_all,
)
from rollout_control_server.records import CallRecord, ParentLookup
from rollout_control_server.samples import changed, sample_commit, sample_conversation


class OtherText(str):
    """A string of another type, which not every backend can store."""

    __slots__ = ()


class CaptureLedgerConformance(abc.ABC):
    """What every capture ledger promises. A subclass says how one is opened."""

    @abc.abstractmethod
    def open_ledger(self) -> AbstractAsyncContextManager[CaptureLedger]:
        """Opens the ledger under test: empty on the first call within one test.

        It is called within a running event loop. Every ledger of ours is its own context manager.
        """

    # Reading

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
        """Nulls included, and nothing else."""
        await ledger.record(changed(sample_commit("r", "c"), admitted_at=None, output_fingerprint=None))
        await ledger.record_failure("r", "f", "worker_capture_failed")
        raw: object = await ledger.manifest("r")
        manifest = msgspec.json.decode(raw) if isinstance(raw, bytes) else raw
        assert isinstance(manifest, dict)
        assert list(manifest) == ["schema_version", "rollout_id", "records", "failures"]
        assert list(manifest["records"][0]) == list(CallRecord.__struct_fields__)
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

    # Writing

    @ledger_test
    async def test_the_same_commit_again_is_a_no_op(self, ledger: CaptureLedger) -> None:
        """It returns as if it were the first time, and the row stays where it is."""
        first, second = sample_conversation("r", 2)
        await record_all(ledger, [first, second, first, second])
        assert await call_ids(ledger, "r") == [first.record.model_call_id, second.record.model_call_id]

    @ledger_test
    async def test_another_commit_of_a_call_is_a_conflict(self, ledger: CaptureLedger) -> None:
        """Whatever differs: a field of the record, the staging chain, the lookup, or that there is one."""
        root, commit, *_ = sample_conversation("r", 3)
        await record_all(ledger, [root, commit])
        assert commit.lookup is not None
        others = [
            changed(commit, weight_version=commit.record.weight_version + 1),
            changed(commit, admitted_at=None),
            changed(commit, staging_key="elsewhere"),
            msgspec.structs.replace(commit, staging_chain=()),
            msgspec.structs.replace(commit, staging_chain=commit.staging_chain[1:]),
            msgspec.structs.replace(commit, staging_chain=("elsewhere", *commit.staging_chain[1:])),
            msgspec.structs.replace(commit, lookup=None),
            msgspec.structs.replace(commit, lookup=msgspec.structs.replace(commit.lookup, fingerprint="other")),
            msgspec.structs.replace(commit, lookup=msgspec.structs.replace(commit.lookup, context_len=77)),
            msgspec.structs.replace(commit, lookup=msgspec.structs.replace(commit.lookup, context_digest="other")),
        ]
        for other in others:
            with pytest.raises(ValueError, match=r".+"):
                await ledger.record(other)
        assert (await read_manifest(ledger, "r")).records == [root.record, commit.record]
        assert await ledger.find_parent("r", commit.lookup.fingerprint, 2) == commit
        assert await ledger.find_parent("r", "other", 2) is None

    @ledger_test
    async def test_a_lookup_added_to_a_commit_without_one_is_a_conflict(self, ledger: CaptureLedger) -> None:
        """Otherwise a call could become a parent after it was read as none."""
        commit = sample_commit("r", "c")
        await record_all(ledger, [msgspec.structs.replace(commit, lookup=None)])
        with pytest.raises(ValueError, match=r".+"):
            await ledger.record(commit)
        assert commit.lookup is not None
        assert await ledger.find_parent("r", commit.lookup.fingerprint, 2) is None

    @ledger_test
    async def test_failure_rows_are_kept_once_for_each_reason(self, ledger: CaptureLedger) -> None:
        """In the order of their writing; the same id and reason again is a no-op."""
        rows = [("c2", "unresolved_parent"), ("c1", "worker_capture_failed"), ("c2", "another reason")]
        for call_id, reason in [*rows, *rows]:
            assert await ledger.record_failure("r", call_id, reason) is True
        assert await failures(ledger, "r") == rows
        assert await call_ids(ledger, "r") == []
        assert await ledger.has_rows("r") is True

    @ledger_test
    async def test_a_record_after_a_failure_of_its_call_is_a_conflict(self, ledger: CaptureLedger) -> None:
        """A call that was reported lost must not come back as whole."""
        await ledger.record_failure("r", "c", "worker_capture_failed")
        with pytest.raises(ValueError, match=r".+"):
            await ledger.record(sample_commit("r", "c"))
        assert await call_ids(ledger, "r") == []
        assert await ledger.record(sample_commit("r", "d")) is True

    @ledger_test
    async def test_a_failure_after_a_record_is_kept_beside_it(self, ledger: CaptureLedger) -> None:
        """And the record, sent again, is still the no-op that it was."""
        commit = sample_commit("r", "c")
        await record_all(ledger, [commit])
        assert await ledger.record_failure("r", "c", "request_finished_without_staged_coordinates") is True
        await record_all(ledger, [commit])
        assert await call_ids(ledger, "r") == ["c"]
        assert await failures(ledger, "r") == [("c", "request_finished_without_staged_coordinates")]

    @ledger_test
    async def test_an_invalid_commit_changes_nothing(self, ledger: CaptureLedger) -> None:
        """Types, bounds, patterns and empty strings: a struct's constructor lets them pass, a ledger does not."""
        good = sample_commit("r", "c")
        fields: list[dict[str, Any]] = [
            {"schema_version": 3},
            {"digest_version": 1},
            {"extras_digest_version": 2},
            {"model_call_id": ""},
            {"model_call_id": 7},
            {"model_call_id": "\ud800"},
            {"weight_version": -1},
            {"weight_version": True},
            {"weight_version": 1.0},
            {"weight_version": "3"},
            {"digest": "f" * 63},
            {"digest": "F" * 64},
            {"chain_hash": "f" * 64 + "\n"},
            {"cumulative_hash": None},
            {"staging_key": ""},
            {"response_id": ""},
            {"response_id": "\udfff"},
            {"admitted_at": True},
            {"output_fingerprint": ""},
            {"continuation_fingerprint": "g" * 64},
            {"fingerprint_version": -1},
            {"prev_len": 0.0},
        ]
        bad = [changed(good, **field) for field in fields]
        bad += [
            msgspec.structs.replace(good, staging_chain=chain)
            for chain in (("",), ("\ud800",), (7,), (OtherText("k"),), "key")
        ]
        bad += [
            msgspec.structs.replace(good, lookup=lookup)
            for lookup in (ParentLookup("", 1, "d"), ParentLookup("f", -1, "d"), ParentLookup("f", 1, "\ud800"))
        ]
        for commit in bad:
            with pytest.raises(ValueError, match="cannot be recorded"):
                await ledger.record(commit)
        for call_id, reason in (("", "reason"), ("c", ""), ("\ud800", "reason"), ("c", "\udfff")):
            with pytest.raises(ValueError, match="cannot be recorded"):
                await ledger.record_failure("r", call_id, reason)
        await assert_empty(ledger, "r")

    @ledger_test
    async def test_arguments_of_other_types_are_type_errors(self, ledger: CaptureLedger) -> None:
        """A dict is no commit, a number no call id, and a bare string no batch of ids."""
        wrong: Any = {"rollout_id": "r"}
        with pytest.raises(TypeError):
            await ledger.record(wrong)
        wrong = 5
        with pytest.raises(TypeError):
            await ledger.record_failure("r", wrong, "reason")
        with pytest.raises(TypeError):
            await ledger.manifest(wrong)
        for removal in (ledger.retire, ledger.delete):
            with pytest.raises(TypeError):
                await removal("rollout")
            with pytest.raises(TypeError):
                await removal(["rollout", wrong])
        await assert_empty(ledger, "rollout")

    @ledger_test
    async def test_an_invalid_rollout_id_is_refused_everywhere(self, ledger: CaptureLedger) -> None:
        """By every method, and a batch that holds one changes nothing."""
        await record_all(ledger, [sample_commit("r", "c")])
        for bad in BAD_IDS:
            with pytest.raises(ValueError, match="invalid rollout id"):
                await ledger.record(msgspec.structs.replace(sample_commit("r", "c2"), rollout_id=bad))
            with pytest.raises(ValueError, match="invalid rollout id"):
                await ledger.record_failure(bad, "c", "reason")
            with pytest.raises(ValueError, match="invalid rollout id"):
                await ledger.manifest(bad)
            with pytest.raises(ValueError, match="invalid rollout id"):
                await ledger.has_rows(bad)
            with pytest.raises(ValueError, match="invalid rollout id"):
                await ledger.find_parent(bad, "f", 2)
            with pytest.raises(ValueError, match="invalid rollout id"):
                await ledger.retire(["r", "new", bad])
            with pytest.raises(ValueError, match="invalid rollout id"):
                await ledger.delete(["r", "new", bad])
        assert await call_ids(ledger, "r") == ["c"]
        await assert_empty(ledger, "new")
        longest = "a" * 255
        await record_all(ledger, [sample_commit(longest, "c")])
        assert await call_ids(ledger, longest) == ["c"]

    # Parents

    @ledger_test
    async def test_a_parent_is_found_by_its_fingerprint(self, ledger: CaptureLedger) -> None:
        """As the whole commit, with its staging chain; of this rollout and version only."""
        commits = sample_conversation("r", 30, branch_at=11)
        await record_all(ledger, commits)
        for commit in commits:
            assert commit.lookup is not None
            assert await ledger.find_parent("r", commit.lookup.fingerprint, 2) == commit
            assert await ledger.find_parent("r", commit.lookup.fingerprint, 1) is None
            assert await ledger.find_parent("r2", commit.lookup.fingerprint, 2) is None
        assert await ledger.find_parent("r", "unknown", 2) is None

    @ledger_test
    async def test_an_ambiguous_parent_is_not_guessed(self, ledger: CaptureLedger) -> None:
        """Two calls with one fingerprint are none; of two versions, each is one."""
        root = sample_commit("r", "root")
        lookup = ParentLookup("same", context_len=3, context_digest="d")
        one, two, three = (msgspec.structs.replace(sample_commit("r", c, root), lookup=lookup) for c in "abc")
        old = changed(three, fingerprint_version=1)
        await record_all(ledger, [root, one, old])
        assert await ledger.find_parent("r", "same", 2) == one
        assert await ledger.find_parent("r", "same", 1) == old
        await record_all(ledger, [two])
        assert await ledger.find_parent("r", "same", 2) is None
        assert await ledger.find_parent("r", "same", 1) == old

    @ledger_test
    async def test_a_commit_without_lookup_and_a_failure_are_no_parents(self, ledger: CaptureLedger) -> None:
        """The record's own continuation_fingerprint is not what is looked up."""
        commit = msgspec.structs.replace(sample_commit("r", "c"), lookup=None)
        await record_all(ledger, [commit])
        await ledger.record_failure("r", "d", "unresolved_parent")
        assert commit.record.continuation_fingerprint is not None
        assert await ledger.find_parent("r", commit.record.continuation_fingerprint, 2) is None

    @ledger_test
    async def test_any_staging_chain_comes_back(self, ledger: CaptureLedger) -> None:
        """Also one that is not its parent's with its own key at the end, or whose parent was never recorded."""
        root = sample_commit("r", "root")
        child = sample_commit("r", "child", root)
        orphan = sample_commit("r", "orphan", sample_commit("r", "unrecorded"))
        chains = [
            msgspec.structs.replace(sample_commit("r", f"c{index}", child), staging_chain=chain)
            for index, chain in enumerate(
                [(), ("k",), child.staging_chain, ("x", "y", "z"), (*child.staging_chain, "k")]
            )
        ]
        grandchildren = [sample_commit("r", f"g{index}", parent) for index, parent in enumerate(chains)]
        commits = [root, orphan, child, *chains, *grandchildren, sample_commit("r", "o2", orphan)]
        await record_all(ledger, commits)
        for commit in commits:
            assert commit.lookup is not None
            found = await ledger.find_parent("r", commit.lookup.fingerprint, 2)
            assert found == commit
        await record_all(ledger, commits)

    @ledger_test
    async def test_a_deep_staging_chain_is_checked_and_comes_back(self, ledger: CaptureLedger) -> None:
        """However many of its keys a ledger has seen before: the last is looked at, and so is each before it."""
        *others, last = sample_conversation("r", 200)
        await record_all(ledger, [*others, last])
        chain = last.staging_chain
        bad: list[Any] = [
            (*chain, ""),
            (*chain, "\ud800"),
            (*chain, 7),
            (*chain, OtherText("k")),
            (*chain[:100], OtherText("k"), *chain[101:], "k"),
            ("", *chain[1:], "k"),
            (*chain[:-1], "\ud800", "k"),
        ]
        for keys in bad:
            child = msgspec.structs.replace(sample_commit("r", "child-0", last), staging_chain=keys)
            with pytest.raises(ValueError, match="cannot be recorded"):
                await ledger.record(child)
        children = [sample_commit("r", f"child-{index}", last) for index in range(4)]
        children[1] = msgspec.structs.replace(children[1], staging_chain=("x", *children[1].staging_chain[1:]))
        children[2] = msgspec.structs.replace(children[2], staging_chain=children[2].staging_chain[1:])
        commits = [*others, last, *children]
        await record_all(ledger, commits)
        for commit in commits[190:]:
            assert commit.lookup is not None
            assert await ledger.find_parent("r", commit.lookup.fingerprint, 2) == commit
        for commit in (*commits[-6:], commits[100]):
            await record_all(ledger, [commit])
            other = msgspec.structs.replace(commit, staging_chain=("y", *commit.staging_chain[1:]))
            with pytest.raises(ValueError, match=r".+"):
                await ledger.record(other)
        assert len(await call_ids(ledger, "r")) == len(commits)

    @ledger_test
    async def test_a_child_may_be_recorded_before_its_parent(self, ledger: CaptureLedger) -> None:
        """Two workers finish in any order; neither's staging chain changes by it."""
        root, child, grandchild = sample_conversation("r", 3)
        await record_all(ledger, [grandchild, child, root, grandchild, child, root])
        for commit in (root, child, grandchild):
            assert commit.lookup is not None
            assert await ledger.find_parent("r", commit.lookup.fingerprint, 2) == commit

    @ledger_test
    async def test_calls_that_name_each_other_as_parents_are_stored(self, ledger: CaptureLedger) -> None:
        """A circle is nonsense, but no reading may run into it for ever."""
        one = changed(sample_commit("r", "one", sample_commit("r", "x")), parent_call_id="two")
        two = changed(sample_commit("r", "two", sample_commit("r", "x")), parent_call_id="one")
        own = changed(sample_commit("r", "own", sample_commit("r", "x")), parent_call_id="own")
        await record_all(ledger, [one, two, own])
        for commit in (one, two, own):
            assert commit.lookup is not None
            assert await ledger.find_parent("r", commit.lookup.fingerprint, 2) == commit

    # Retiring and deleting

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
