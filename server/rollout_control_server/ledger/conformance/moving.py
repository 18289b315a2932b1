"""Fields that a record gains, and rows that are handed out and put back."""

import asyncio
import time

import msgspec
import pytest

from rollout_control_server.errors import LedgerConflictError
from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.ledger.checked_rows import (
    CheckedCommit,
    CheckedFailure,
    check_failure,
    decode_commit,
    decode_failure,
)
from rollout_control_server.ledger.conformance.steps import (
    ODD_STRINGS,
    OpensLedger,
    assert_empty,
    assert_retired,
    call_ids,
    failures,
    ledger_test,
    record_all,
)
from rollout_control_server.ledger.results import LedgerRow, RolloutExport
from rollout_control_server.records import CaptureCommit, ParentLookup
from rollout_control_server.samples import changed, sample_commit, sample_conversation

__all__ = ["MovingConformance"]

FURTHER = {"attempt": 3, "tags": ["a", {"b": None}], "note": "é\x00", "share": 0.25, "final": True}
UNSERVED = {"context_kind": "chat", "retries": [1, 2]}


def clear(rollout_id: str) -> RolloutExport:
    """Returns what clears an id when it is imported."""
    return RolloutExport(rollout_id, None, [])


def described(export: RolloutExport) -> list[tuple[object, ...]]:
    """Returns the rows of an export as what was recorded, without the times."""
    rows: list[tuple[object, ...]] = []
    for row, _ in export.rows:
        if isinstance(row, CheckedCommit):
            rows.append((decode_commit(row),))
        else:
            failure, unserved = decode_failure(row)
            rows.append((failure.model_call_id, failure.reason, unserved))
    return rows


async def records(ledger: CaptureLedger, rollout_id: str) -> list[dict[str, object]]:
    """Returns the records of a manifest as the JSON objects that they are."""
    manifest = msgspec.json.decode(await ledger.manifest(rollout_id))
    found: list[dict[str, object]] = manifest["records"]
    return found


class MovingConformance(OpensLedger):
    """What a ledger promises of further fields, of `export` and of `import_`."""

    @ledger_test
    async def test_further_fields_are_served_as_they_came(self, ledger: CaptureLedger) -> None:
        """After the declared ones, nulls left out; records without any are as they were."""
        plain = sample_commit("r", "plain")
        keyed = changed(sample_commit("r", "keyed"), capture_key="r-a1")
        further = msgspec.structs.replace(keyed, record=sample_commit("r", "more").record)
        further = changed(msgspec.structs.replace(further, further_fields={**FURTHER, "gone": None}), capture_key="r")
        await record_all(ledger, [plain, keyed, further])
        served = await records(ledger, "r")
        assert served[0] == msgspec.to_builtins(plain.record)
        assert "capture_key" not in served[0]
        assert served[1] == msgspec.to_builtins(keyed.record)
        assert served[1]["capture_key"] == "r-a1"
        assert served[2] == {**msgspec.to_builtins(further.record), **FURTHER}
        assert list(served[2])[: len(served[1])] == list(served[1])

    @ledger_test
    async def test_further_fields_belong_to_the_commit(self, ledger: CaptureLedger) -> None:
        """Another value is another commit; nulls and unserved fields are not compared."""
        commit = msgspec.structs.replace(sample_commit("r", "c"), further_fields=FURTHER)
        reordered = dict(reversed(FURTHER.items()))
        await record_all(ledger, [commit, msgspec.structs.replace(commit, further_fields=reordered)])
        await record_all(ledger, [msgspec.structs.replace(commit, further_fields={**FURTHER, "gone": None})])
        await record_all(ledger, [msgspec.structs.replace(commit, unserved_fields=UNSERVED)])
        for other in ({}, {**FURTHER, "attempt": 4}, {**FURTHER, "one": "more"}):
            with pytest.raises(LedgerConflictError):
                await ledger.record(msgspec.structs.replace(commit, further_fields=other))
        for key in ("r", "r-a1"):
            with pytest.raises(LedgerConflictError):
                await ledger.record(changed(commit, capture_key=key))
        assert await records(ledger, "r") == [{**msgspec.to_builtins(commit.record), **FURTHER}]

    @ledger_test
    async def test_a_parent_is_found_with_its_further_fields(self, ledger: CaptureLedger) -> None:
        """The commit comes back as it was recorded."""
        commit = msgspec.structs.replace(
            sample_commit("r", "c"), further_fields=FURTHER, unserved_fields=UNSERVED, staging_chain=("other", "r/c")
        )
        commit = changed(commit, capture_key="r-a1")
        await record_all(ledger, [commit])
        assert commit.lookup is not None
        assert await ledger.find_parent("r", commit.lookup.fingerprint, 2) == commit

    @ledger_test
    async def test_bad_further_fields_are_refused(self, ledger: CaptureLedger) -> None:
        """What is no JSON, what would come back as another value, and names that the record declares."""
        bad: list[dict[object, object]] = [
            {"x": float("nan")}, {"x": [float("inf")]}, {"x": 2**63}, {"x": {"y": 2**64}}, {"x": (1, 2)},
            {"x": b"bytes"}, {"x": {1: 2}}, {1: 2}, {"x": "\ud800"}, {"\ud800": 1}, {"mode": "text"},
            {"capture_key": "r"}, {"x": object()},
        ]  # fmt: skip
        for fields in bad:
            with pytest.raises(ValueError, match="cannot be recorded"):
                await ledger.record(msgspec.structs.replace(sample_commit("r", "c"), further_fields=fields))
        with pytest.raises(ValueError, match="cannot be recorded"):
            await ledger.record(changed(sample_commit("r", "c"), capture_key=""))
        await assert_empty(ledger, "r")

    @ledger_test
    async def test_an_export_has_all_that_was_recorded(self, ledger: CaptureLedger) -> None:
        """In the order of writing, failures in their place, each with the time of its recording."""
        before = time.time()
        written: list[tuple[object, ...]] = []
        for number, commit in enumerate(sample_conversation("r", 70, branch_at=9)):
            own = msgspec.structs.replace(commit, further_fields=FURTHER) if number % 3 == 0 else commit
            if number % 5 == 0:
                own = msgspec.structs.replace(own, unserved_fields=UNSERVED, lookup=ParentLookup("shared", 1, "d"))
            if number % 7 == 0:
                own = msgspec.structs.replace(own, staging_chain=(f"own-{number}", own.record.staging_key))
            await record_all(ledger, [own])
            written.append((own,))
            if number % 4 == 0:
                await ledger.record_failure("r", f"f{number}", "unresolved_parent")
                written.append((f"f{number}", "unresolved_parent", {}))
        export = await ledger.export("r")
        assert (export.rollout_id, export.retired_at) == ("r", None)
        assert described(export) == written
        times = [recorded_at for _, recorded_at in export.rows if recorded_at is not None]
        assert len(times) == len(export.rows)
        assert times == sorted(times)
        # A database's clock need not be this one.
        assert before - 60 < times[0]
        assert times[-1] < time.time() + 60
        assert await ledger.export("r") == export

    @ledger_test
    async def test_an_export_tells_a_fence_from_nothing(self, ledger: CaptureLedger) -> None:
        """A retired rollout has the time of its fence and no rows; an unknown and a deleted one have neither."""
        before = time.time()
        await record_all(ledger, [*sample_conversation("gone", 3), *sample_conversation("deleted", 3)])
        await ledger.retire(["gone", "never"])
        await ledger.delete(["deleted"])
        for rollout_id in ("gone", "never"):
            export = await ledger.export(rollout_id)
            assert export.rows == []
            assert export.retired_at is not None
            assert before - 60 < export.retired_at < time.time() + 60
            await ledger.retire([rollout_id])
            assert await ledger.export(rollout_id) == export, "retiring again does not renew the fence"
        for rollout_id in ("deleted", "unknown"):
            assert await ledger.export(rollout_id) == clear(rollout_id)

    @ledger_test
    async def test_an_import_puts_back_what_an_export_gave(self, ledger: CaptureLedger) -> None:
        """Rows, their order and times, chains, lookups and fences: the ledger answers as before."""
        commits = [
            *sample_conversation("r", 66, branch_at=5),
            msgspec.structs.replace(sample_commit("r", "own"), staging_chain=("x", "y"), unserved_fields=UNSERVED),
            msgspec.structs.replace(sample_commit("r", "more"), further_fields={**FURTHER, "gone": None}),
        ]
        await record_all(ledger, commits)
        await ledger.record_failure("r", "f", "worker_capture_failed")
        await ledger.retire(["fenced"])
        manifest = await ledger.manifest("r")
        exports = [await ledger.export(rollout_id) for rollout_id in ("r", "fenced")]
        await ledger.delete(["r", "fenced"])
        await ledger.import_(exports)
        assert [await ledger.export(rollout_id) for rollout_id in ("r", "fenced")] == exports
        assert await ledger.manifest("r") == manifest
        await assert_retired(ledger, "fenced")
        for commit in commits:
            assert commit.lookup is not None
            found = await ledger.find_parent("r", commit.lookup.fingerprint, 2)
            assert found is not None
            assert (found.record, found.staging_chain) == (commit.record, commit.staging_chain)
        # It goes on as any rollout: the same commit is known, another is a conflict, and a child continues it.
        await record_all(ledger, commits)
        with pytest.raises(LedgerConflictError):
            await ledger.record(changed(commits[3], weight_version=99))
        with pytest.raises(LedgerConflictError):
            await ledger.record(sample_commit("r", "f"))
        child = sample_commit("r", "child", commits[65])
        await record_all(ledger, [child])
        assert child.lookup is not None
        assert await ledger.find_parent("r", child.lookup.fingerprint, 2) == child
        assert await ledger.record(sample_commit("fenced", "late")) is False

    @ledger_test
    async def test_an_import_replaces_what_is_there(self, ledger: CaptureLedger) -> None:
        """Rows by rows, rows by a fence, a fence by rows, and either by nothing; other rollouts are not touched."""
        for rollout_id in ("rows", "to-fence", "to-nothing", "other"):
            await record_all(ledger, sample_conversation(rollout_id, 4))
        await ledger.retire(["from-fence", "fence-to-nothing"])
        await record_all(ledger, [sample_commit("new", "c")])
        (row,) = (await ledger.export("new")).rows
        assert isinstance(row.row, CheckedCommit)

        def renamed(rollout_id: str, at: float | None) -> RolloutExport:
            failure = check_failure(rollout_id, "f", "reason", {"kept": None})
            return RolloutExport(
                rollout_id, None, [LedgerRow(row.row._replace(rollout_id=rollout_id), at), LedgerRow(failure, None)]
            )

        await ledger.import_(
            [
                renamed("rows", 17.5),
                RolloutExport("to-fence", 12.25, []),
                clear("to-nothing"),
                renamed("from-fence", None),
                clear("fence-to-nothing"),
                clear("unknown"),
            ]
        )
        for rollout_id, at in (("rows", 17.5), ("from-fence", None)):
            assert await call_ids(ledger, rollout_id) == ["c"]
            assert await failures(ledger, rollout_id) == [("f", "reason")]
            assert await ledger.export(rollout_id) == renamed(rollout_id, at)
        await assert_retired(ledger, "to-fence")
        assert (await ledger.export("to-fence")).retired_at == 12.25
        for rollout_id in ("to-nothing", "fence-to-nothing", "unknown"):
            await assert_empty(ledger, rollout_id)
            assert await ledger.export(rollout_id) == clear(rollout_id)
        assert len(await call_ids(ledger, "other")) == 4
        assert (await ledger.retire(["rows", "to-fence", "to-nothing"])).removed == ["rows"]

    @ledger_test
    async def test_an_import_is_one_change(self, ledger: CaptureLedger) -> None:
        """A reader finds all of its rollouts as before or all as after."""
        ids = [f"r{number}" for number in range(40)]
        old = [RolloutExport(one, None, await _rows_of(ledger, sample_conversation(one, 2))) for one in ids]
        new = [RolloutExport(one, None, await _rows_of(ledger, sample_conversation(one, 5))) for one in ids]
        await ledger.import_(old)
        for exports in (new, old, new):
            importing = asyncio.ensure_future(ledger.import_(exports))
            while not importing.done():
                await asyncio.sleep(0)
                read = await ledger.manifests(ids, 10**9)
                assert len({manifest.count(b'"staging_key"') for manifest in read.manifests}) == 1
            await importing
        assert await ledger.export("r39") == new[39]

    @ledger_test
    async def test_a_bad_import_changes_nothing(self, ledger: CaptureLedger) -> None:
        """Whatever is wrong with one row of one of its rollouts, the whole batch is refused."""
        commits = sample_conversation("r", 3)
        await record_all(ledger, commits)
        await ledger.record_failure("r", "f", "reason")
        good = await ledger.export("r")
        failure = good.rows[3]
        assert isinstance(failure.row, CheckedFailure)
        lost = check_failure("r", commits[0].record.model_call_id, "reason")
        other = LedgerRow(good.rows[0].row._replace(rollout_id="other"), None)
        bad: list[RolloutExport] = [
            RolloutExport("r", None, [*good.rows, good.rows[0]]),
            RolloutExport("r", None, [*good.rows, failure]),
            RolloutExport("r", None, [LedgerRow(lost, None), *good.rows]),
            RolloutExport("r", None, [other]),
            RolloutExport("r", 3.0, good.rows),
            RolloutExport("r", float("nan"), []),
            RolloutExport("r", None, [good.rows[0]._replace(recorded_at=float("inf"))]),
            RolloutExport("a/b", None, []),
        ]
        for export in bad:
            with pytest.raises(ValueError, match=r".+"):
                await ledger.import_([clear("x"), export])
        with pytest.raises(ValueError, match="twice"):
            await ledger.import_([clear("r"), clear("r")])
        assert await ledger.export("r") == good
        await ledger.import_([])
        assert await ledger.export("r") == good

    @ledger_test
    async def test_a_failure_after_its_record_moves(self, ledger: CaptureLedger) -> None:
        """A call may have a record and failure rows, whose strings are any."""
        for number, text in enumerate(ODD_STRINGS):
            commit = changed(sample_commit(f"r{number}", text), staging_key=text)
            await record_all(ledger, [msgspec.structs.replace(commit, further_fields={text: text})])
            await ledger.record_failure(f"r{number}", text, text)
            export = await ledger.export(f"r{number}")
            manifest = await ledger.manifest(f"r{number}")
            await ledger.delete([f"r{number}"])
            await ledger.import_([export])
            assert await ledger.export(f"r{number}") == export
            assert await ledger.manifest(f"r{number}") == manifest

    @ledger_test
    async def test_a_sound_ledger_is_verified(self, ledger: CaptureLedger) -> None:
        """Whatever it has been used for; the last call of the progress tells of all rollouts."""
        await record_all(ledger, sample_conversation("deep", 70))
        await record_all(ledger, sample_conversation("branched", 6, branch_at=3))
        for text in ODD_STRINGS:
            await record_all(ledger, [changed(sample_commit("odd", text), staging_key=text)])
            await ledger.record_failure("odd", text, text)
        await ledger.record_failure("failed", "c", "reason")
        await record_all(ledger, [msgspec.structs.replace(sample_commit("odd", "further"), further_fields=FURTHER)])
        await record_all(ledger, [msgspec.structs.replace(sample_commit("odd", "chain"), staging_chain=("x",))])
        shared = ParentLookup("shared", 1, "digest")
        await record_all(
            ledger, [msgspec.structs.replace(sample_commit("shared", call), lookup=shared) for call in "abc"]
        )
        await record_all(ledger, sample_conversation("deleted", 3))
        await record_all(ledger, sample_conversation("retired", 3))
        await ledger.delete(["deleted"])
        await ledger.retire(["retired", "never-recorded"])
        await ledger.import_([(await ledger.export("deep"))._replace(rollout_id="branched", rows=[])])
        await ledger.import_([RolloutExport("imported", 7.0, [])])
        seen: list[tuple[str, int, int | None]] = []
        found = await ledger.verify(lambda *progress: seen.append(progress))
        assert found.damages == []
        assert found.rows == 70 + 2 * len(ODD_STRINGS) + 1 + 2 + 3
        assert found.rollouts == 7
        assert ("rollouts", 7) in [(what, done) for what, done, _ in seen]
        assert await ledger.verify() == found


async def _rows_of(ledger: CaptureLedger, commits: list[CaptureCommit]) -> list[LedgerRow]:
    """Returns the rows that recording the commits makes, and removes them again."""
    await record_all(ledger, commits)
    rollout_id = commits[0].rollout_id
    export = await ledger.export(rollout_id)
    await ledger.delete([rollout_id])
    return export.rows
