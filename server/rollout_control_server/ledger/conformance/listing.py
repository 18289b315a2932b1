"""Which rollouts there are, in pages and in numbers, and retiring those that are idle."""

import asyncio
import time
from typing import Any

import pytest

from rollout_control_server.ledger.base import MAX_PAGE, CaptureLedger
from rollout_control_server.ledger.checked_rows import CheckedCommit
from rollout_control_server.ledger.conformance.steps import (
    BAD_IDS,
    OpensLedger,
    assert_empty,
    assert_retired,
    call_ids,
    ledger_test,
    record_all,
)
from rollout_control_server.ledger.results import LedgerRow, RolloutEntry, RolloutExport
from rollout_control_server.samples import sample_commit, sample_conversation

__all__ = ["ListingConformance"]


async def aged(ledger: CaptureLedger, rollout_id: str, *times: float | None) -> None:
    """Gives a rollout one call for each time, recorded then."""
    await record_all(ledger, [sample_commit(rollout_id, f"c{number}") for number in range(len(times))])
    rows = (await ledger.export(rollout_id)).rows
    moved = [LedgerRow(row.row, at) for row, at in zip(rows, times, strict=True)]
    await ledger.import_([RolloutExport(rollout_id, None, moved)])


async def listed(ledger: CaptureLedger, limit: int = MAX_PAGE, **filters: Any) -> list[RolloutEntry]:
    """Returns the rollouts of all pages."""
    found: list[RolloutEntry] = []
    after = None
    while True:
        page = await ledger.rollouts(limit=limit, after=after, **filters)
        assert len(page.rollouts) <= limit
        found += page.rollouts
        if page.next is None:
            return found
        assert page.next == page.rollouts[-1].rollout_id
        after = page.next


async def listed_ids(ledger: CaptureLedger, **filters: Any) -> list[str]:
    """Returns the ids of all pages."""
    return [entry.rollout_id for entry in await listed(ledger, **filters)]


class ListingConformance(OpensLedger):
    """What a ledger promises of `rollouts`, `summary` and `retire_idle`."""

    @ledger_test
    async def test_an_empty_ledger_lists_nothing(self, ledger: CaptureLedger) -> None:
        """Nor does one whose rollouts are all deleted."""
        assert await ledger.rollouts() == ([], None)
        assert (await ledger.summary())[:4] == (0, 0, 0, 0)
        await record_all(ledger, [sample_commit("r", "c")])
        await ledger.retire(["fence"])
        await ledger.delete(["r", "fence"])
        assert await ledger.rollouts() == ([], None)
        summary = await ledger.summary()
        assert summary[:4] == (0, 0, 0, 0)
        assert summary.oldest_recorded_at is None

    @ledger_test
    async def test_entries_count_rows_and_hide_the_purge(self, ledger: CaptureLedger) -> None:
        """Calls and failures of live rollouts, and of retired ones nothing but when they were."""
        before = time.time() - 60
        await record_all(ledger, sample_conversation("live", 3))
        await ledger.record(sample_conversation("live", 3)[0])
        await ledger.record_failure("live", "f", "unresolved_parent")
        await ledger.record_failure("live", "f", "unresolved_parent")
        await ledger.record_failure("failed", "f", "unresolved_parent")
        await record_all(ledger, sample_conversation("retired", 2))
        await ledger.retire(["retired", "never"])
        by_id = {entry.rollout_id: entry for entry in await listed(ledger)}
        assert list(by_id) == ["failed", "live", "never", "retired"]
        after = time.time() + 60
        for rollout_id, calls, failed in (("live", 3, 1), ("failed", 0, 1)):
            entry = by_id[rollout_id]
            assert (entry.state, entry.calls, entry.failures, entry.retired_at) == ("live", calls, failed, None)
            assert entry.first_recorded_at is not None
            assert entry.last_recorded_at is not None
            assert entry.changed_at is not None
            assert before < entry.first_recorded_at <= entry.last_recorded_at <= entry.changed_at < after
        for rollout_id in ("retired", "never"):
            entry = by_id[rollout_id]
            assert entry[1:6] == ("retired", None, None, None, None)
            assert entry.retired_at is not None
            assert before < entry.retired_at < after
        summary = await ledger.summary()
        assert summary[:4] == (2, 2, 2, 5)
        assert summary.oldest_recorded_at == by_id["live"].first_recorded_at

    @ledger_test
    async def test_pages_are_in_the_order_of_ascii(self, ledger: CaptureLedger) -> None:
        """Whatever the size of a page, and after an id that does not exist."""
        ids = ["-", "-a", ".a", "0", "9", "A", "Z", "Z-", "Z.", "Z0", "_", "a", "a-1", "a.1", "aa", "b"]
        for number, rollout_id in enumerate(reversed(ids)):
            if number % 3:
                await record_all(ledger, [sample_commit(rollout_id, "c")])
            else:
                await ledger.retire([rollout_id])
        for limit in (1, 2, 5, len(ids), MAX_PAGE):
            assert await listed_ids(ledger, limit=limit) == sorted(ids)
        assert [entry.rollout_id for entry in (await ledger.rollouts(after="Z-9")).rollouts] == sorted(ids)[8:]
        assert await ledger.rollouts(after="b") == ([], None)
        exact = await ledger.rollouts(limit=len(ids))
        assert exact.next is None

    @ledger_test
    async def test_filters(self, ledger: CaptureLedger) -> None:
        """Each by itself and together; those of rows match live rollouts only."""
        for rollout_id in ("run-1.a", "run-1.b", "run-10.a", "run_1.a"):
            await record_all(ledger, [sample_commit(rollout_id, "c")])
        await ledger.record_failure("run-1.b", "f", "reason")
        await ledger.retire(["run-1.c", "run-10.b", "z"])
        assert await listed_ids(ledger, state="retired") == ["run-1.c", "run-10.b", "z"]
        assert await listed_ids(ledger, state="live") == ["run-1.a", "run-1.b", "run-10.a", "run_1.a"]
        assert await listed_ids(ledger, prefix="run-1.") == ["run-1.a", "run-1.b", "run-1.c"]
        assert await listed_ids(ledger, prefix="run_") == ["run_1.a"]
        assert await listed_ids(ledger, prefix="RUN") == []
        assert await listed_ids(ledger, has_failures=True) == ["run-1.b"]
        assert await listed_ids(ledger, has_failures=False, prefix="run-1") == ["run-1.a", "run-10.a"]
        assert await listed_ids(ledger, has_failures=False, state="retired") == []
        assert await listed_ids(ledger, prefix="run-1", state="live", limit=1) == ["run-1.a", "run-1.b", "run-10.a"]

    @ledger_test
    async def test_filters_of_time(self, ledger: CaptureLedger) -> None:
        """By the time of the last row, never of one that is not known; by the last change, whatever it was."""
        now = time.time()
        await aged(ledger, "hour", now - 7200, now - 3600)
        await aged(ledger, "day", now - 86400)
        await aged(ledger, "unknown", None)
        await aged(ledger, "half-known", now - 86400, None)
        await aged(ledger, "first-unknown", None, now - 3600)
        await record_all(ledger, [sample_commit("now", "c")])
        await ledger.retire(["retired"])
        assert await listed_ids(ledger, idle_for_s=7000.0) == ["day"]
        assert await listed_ids(ledger, idle_for_s=3000.0) == ["day", "first-unknown", "hour"]
        assert await listed_ids(ledger, idle_for_s=0.0) == ["day", "first-unknown", "hour", "now"]
        by_id = {entry.rollout_id: entry for entry in await listed(ledger)}
        assert by_id["half-known"].first_recorded_at == pytest.approx(now - 86400)
        assert by_id["half-known"].last_recorded_at is None
        assert by_id["first-unknown"].first_recorded_at is None
        assert by_id["hour"].first_recorded_at == pytest.approx(now - 7200)
        assert by_id["hour"].last_recorded_at == pytest.approx(now - 3600)
        assert set(await listed_ids(ledger, changed_since=now - 60)) == set(by_id), "an import is a change"
        changes = [entry.changed_at for entry in by_id.values() if entry.changed_at is not None]
        latest = max(changes)
        assert await listed_ids(ledger, changed_since=latest + 3600) == []
        assert set(await listed_ids(ledger, changed_since=latest)) == {
            rollout_id for rollout_id, entry in by_id.items() if entry.changed_at == latest
        }
        assert (await ledger.summary()).oldest_recorded_at == pytest.approx(now - 86400)

    @ledger_test
    async def test_idle_rollouts_are_retired_on_demand(self, ledger: CaptureLedger) -> None:
        """Those alone: active ones and unknown ages are left, and an id without rows is not fenced."""
        now = time.time()
        await aged(ledger, "idle", now - 3600)
        await aged(ledger, "unknown", None)
        await record_all(ledger, [sample_commit("active", "c")])
        await ledger.record_failure("failed", "f", "reason")
        await ledger.retire(["fenced"])
        asked = ["unknown", "fenced", "idle", "none", "active", "idle", "failed"]
        removal = await ledger.retire_idle(asked, 1800.0)
        assert removal == (["idle"], ["fenced", "none"], ["unknown", "active", "failed"])
        await assert_retired(ledger, "idle")
        await assert_empty(ledger, "none")
        assert await call_ids(ledger, "active") == ["c"]
        assert await ledger.record(sample_commit("idle", "late")) is False
        assert await ledger.retire_idle(asked, 1800.0) == (
            [],
            ["fenced", "idle", "none"],
            ["unknown", "active", "failed"],
        )
        assert (await ledger.retire_idle(["active", "failed"], 0.0)).removed == ["active", "failed"]
        assert await ledger.retire_idle([], 1.0) == ([], [], [])

    @ledger_test
    async def test_a_row_that_races_retire_idle_keeps_its_rollout_or_is_discarded(self, ledger: CaptureLedger) -> None:
        """Never is a rollout retired that had recorded a row before."""
        for attempt in range(20):
            rollout_id = f"race-{attempt}"
            await aged(ledger, rollout_id, time.time() - 3600)
            write = asyncio.ensure_future(ledger.record(sample_commit(rollout_id, "late")))
            if attempt % 2:
                await asyncio.sleep(0)
            removal = await ledger.retire_idle([rollout_id], 1800.0)
            kept = await write
            assert removal.active == ([rollout_id] if kept else [])
            assert removal.removed == ([] if kept else [rollout_id])
            if kept:
                assert await call_ids(ledger, rollout_id) == ["c0", "late"]
            else:
                await assert_retired(ledger, rollout_id)

    @ledger_test
    async def test_what_is_there_all_the_time_is_listed_once(self, ledger: CaptureLedger) -> None:
        """Whatever comes and goes between the pages."""
        stays = [f"r{number:03}" for number in range(0, 200, 2)]
        goes = [f"r{number:03}" for number in range(1, 200, 2)]
        await asyncio.gather(*(ledger.record(sample_commit(one, "c")) for one in [*stays, *goes]))
        found: list[str] = []
        after = None
        for number in range(0, 200, 7):
            page = await ledger.rollouts(limit=7, after=after)
            found += [entry.rollout_id for entry in page.rollouts]
            after = page.next
            if after is None:
                break
            await ledger.delete(goes[number % 100 : number % 100 + 4])
            await record_all(ledger, [sample_commit(f"r{number:03}-new", "c")])
        found += [entry.rollout_id for entry in await listed(ledger) if after is not None and entry.rollout_id > after]
        assert [one for one in found if one in set(stays)] == stays
        assert len(found) == len(set(found))

    @ledger_test
    async def test_bad_arguments_of_a_listing(self, ledger: CaptureLedger) -> None:
        """A filter that cannot be is an error, never a wider answer."""
        bad: list[dict[str, Any]] = [
            {"state": "deleted"}, {"prefix": "a/b"}, {"prefix": "a" * 256}, {"idle_for_s": -1.0},
            {"idle_for_s": float("nan")}, {"changed_since": float("inf")}, {"limit": 0}, {"limit": MAX_PAGE + 1},
        ]  # fmt: skip
        for arguments in bad:
            with pytest.raises(ValueError, match=r".+"):
                await ledger.rollouts(**arguments)
        for bad_id in BAD_IDS:
            with pytest.raises(ValueError, match="invalid rollout id"):
                await ledger.rollouts(after=bad_id)
            with pytest.raises(ValueError, match="invalid rollout id"):
                await ledger.retire_idle(["r", bad_id], 1.0)
        with pytest.raises(TypeError):
            await ledger.retire_idle("rollout", 1.0)
        for seconds in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="idle_for_s"):
                await ledger.retire_idle(["r"], seconds)

    @ledger_test
    async def test_a_rollout_that_begins_again_counts_anew(self, ledger: CaptureLedger) -> None:
        """After a delete nothing of its former counts and times is left."""
        await aged(ledger, "r", time.time() - 86400, time.time() - 86400)
        await ledger.record_failure("r", "f", "reason")
        await ledger.delete(["r"])
        await record_all(ledger, [sample_commit("r", "c")])
        (entry,) = await listed(ledger)
        assert (entry.calls, entry.failures) == (1, 0)
        assert entry.first_recorded_at == entry.last_recorded_at
        assert await listed_ids(ledger, idle_for_s=3600.0) == []
        assert (await ledger.summary())[:4] == (1, 0, 0, 1)
        (row,) = (await ledger.export("r")).rows
        assert isinstance(row.row, CheckedCommit)
