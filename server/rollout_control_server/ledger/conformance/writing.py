"""Recording calls and failures."""

from typing import Any

import msgspec
import pytest

from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.ledger.conformance.steps import (
    BAD_IDS,
    OpensLedger,
    OtherText,
    assert_empty,
    call_ids,
    failures,
    ledger_test,
    read_manifest,
    record_all,
)
from rollout_control_server.records import ParentLookup
from rollout_control_server.samples import changed, sample_commit, sample_conversation

__all__ = ["WritingConformance"]


class WritingConformance(OpensLedger):
    """What writing a ledger promises."""

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
