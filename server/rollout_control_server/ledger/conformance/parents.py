"""Finding the parent of a call, and the staging chain that it brings."""

from typing import Any

import msgspec
import pytest

from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.ledger.conformance.steps import OpensLedger, OtherText, call_ids, ledger_test, record_all
from rollout_control_server.records import ParentLookup
from rollout_control_server.samples import changed, sample_commit, sample_conversation

__all__ = ["ParentConformance"]


class ParentConformance(OpensLedger):
    """What finding a parent promises."""

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
