"""Random histories of long rollouts, of many rows with one key, and of purges of many steps, beside the reference."""

import asyncio
import itertools
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from rollout_control_server.errors import LedgerConflictError, RolloutRetiredError
from rollout_control_server.ledger import CaptureLedger, MemoryLedger, SqliteLedger
from rollout_control_server.ledger.sqlite import purge
from rollout_control_server.records import ParentLookup
from rollout_control_server.samples import sample_commit, sample_conversation

ROLLOUT_IDS = ("a", "b", "c")
PURGE_STEP_ROWS = 64
PATIENCE_S = 60.0
"""How long a purge may take, on a slow machine."""

rollout_ids = st.sampled_from(ROLLOUT_IDS)
# Around the sizes of a step of the purge, and of the largest reading in the event loop.
sizes = st.sampled_from((1, 63, 64, 65, 128, 272, 300, 400)) | st.integers(1, 400)


class Burst(NamedTuple):
    """Rows that are recorded together: a conversation, records that share a lookup, or failures of one call."""

    kind: str
    rollout_id: str
    size: int
    first: int


bursts = st.builds(
    Burst, st.sampled_from(("conversation", "one lookup", "one call")), rollout_ids, sizes, st.sampled_from((0, 100))
)
removals = st.tuples(st.sampled_from(("retire", "delete")), st.lists(rollout_ids, min_size=1, max_size=3, unique=True))
steps = st.one_of(bursts, bursts, bursts, removals, st.tuples(st.just("reopen")), st.tuples(st.just("purged")))


histories = st.lists(steps, min_size=3, max_size=9)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories)
def test_no_long_history_tells_the_ledger_from_the_reference(tmp_path: Path, history: list[Any]) -> None:
    path = tmp_path / "ledger.sqlite"
    for leftover in tmp_path.iterdir():
        leftover.unlink()
    asyncio.run(compare(path, history))


def test_a_purge_whose_step_can_make_no_progress_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one could once: not with more than 271 rows of one key."""
    remove_some = purge._remove_some

    def remove_some_of_few(connection: apsw.Connection, generation: int) -> None:
        if connection.execute("SELECT count(*) FROM call WHERE call_rowid >> 24 = ?", (generation,)).get <= 271:
            remove_some(connection, generation)

    monkeypatch.setattr(purge, "_remove_some", remove_some_of_few)
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE_S", 0.3)
    turns = itertools.count()

    @settings(max_examples=25, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(history=histories)
    def search(history: list[Any]) -> None:
        asyncio.run(compare(tmp_path / f"{next(turns)}.sqlite", history))

    with pytest.raises(AssertionError, match="the purge has stopped"):
        search()


async def compare(path: Path, history: list[Any]) -> None:
    reference = MemoryLedger()
    ledger = SqliteLedger(path)
    longest_purge = 0
    try:
        for step in history:
            if isinstance(step, Burst):
                assert await record(ledger, step) == await record(reference, step)
            elif step[0] == "reopen":
                await ledger.aclose()
                ledger = SqliteLedger(path)
            elif step[0] == "purged":
                await until_purged(ledger)
            else:
                operation, ids = step
                before = (await ledger.summary()).rows
                assert await getattr(ledger, operation)(ids) == await getattr(reference, operation)(ids)
                longest_purge = max(longest_purge, before - (await ledger.summary()).rows)
        for rollout_id in ROLLOUT_IDS:
            assert await look(ledger, rollout_id) == await look(reference, rollout_id)
        before = (await ledger.summary()).rows
        assert await ledger.delete(["a", "b"]) == await reference.delete(["a", "b"])
        longest_purge = max(longest_purge, before - (await ledger.summary()).rows)
        await until_purged(ledger)
        here, there = await ledger.summary(), await reference.summary()
        assert (here.live, here.retired, here.rows) == (there.live, there.retired, there.rows)
        assert (await ledger.verify()).damages == []
    finally:
        await ledger.aclose()
    event("a purge of many steps" if longest_purge > 2 * PURGE_STEP_ROWS else "a purge of few steps, or none")


async def record(ledger: CaptureLedger, burst: Burst) -> list[object]:
    rollout_id, numbers = burst.rollout_id, range(burst.first, burst.first + burst.size)
    if burst.kind == "one call":
        answers = [ledger.record_failure(rollout_id, "failing", f"reason {number}") for number in numbers]
    elif burst.kind == "one lookup":
        lookup = ParentLookup("shared", 1, "digest")
        answers = [
            ledger.record(msgspec.structs.replace(sample_commit(rollout_id, f"shared-{number}"), lookup=lookup))
            for number in numbers
        ]
    else:
        answers = [ledger.record(commit) for commit in sample_conversation(rollout_id, burst.size)]
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    return [type(outcome) if isinstance(outcome, LedgerConflictError) else outcome for outcome in outcomes]


async def look(ledger: CaptureLedger, rollout_id: str) -> object:
    """Returns all that can be read of a rollout, the times apart."""
    try:
        manifest = await ledger.manifest(rollout_id)
    except RolloutRetiredError:
        return "retired"
    export = await ledger.export(rollout_id)
    shared = await ledger.find_parent(rollout_id, "shared", 2)
    commits = sample_conversation(rollout_id, 1)
    assert commits[0].lookup is not None
    root = await ledger.find_parent(rollout_id, commits[0].lookup.fingerprint, 2)
    entry = (await ledger.rollouts(prefix=rollout_id)).rollouts
    counts = [(each.calls, each.failures) for each in entry]
    return manifest, [row for row, _ in export.rows], shared, root, counts


async def until_purged(ledger: CaptureLedger) -> None:
    """Returns when no rows wait for the purge; a failure means that it has stopped."""
    end = time.monotonic() + PATIENCE_S
    while (await ledger.summary()).waiting_rows > 0:
        assert time.monotonic() < end, "the purge has stopped"
        await asyncio.sleep(0.005)
