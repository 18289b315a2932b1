"""A durable ledger and the reference in memory answer alike to every history, however it is interrupted."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollout_control_server.errors import LedgerConflictError, RolloutRetiredError
from rollout_control_server.ledger import CaptureLedger, MemoryLedger, open_ledger
from rollout_control_server.records import CaptureCommit, ParentLookup
from rollout_control_server.samples import changed, sample_commit

ROLLOUT_IDS = ("a", "b", "A")
CALL_IDS = ("1", "2", "3", "4")

rollout_ids = st.sampled_from(ROLLOUT_IDS)
batches = st.lists(rollout_ids, min_size=1, max_size=4)
call_ids = st.sampled_from(CALL_IDS)
fingerprints = st.sampled_from(("f", "g", "0" * 64))
chains = st.lists(st.sampled_from(("j", "k")), max_size=3).map(tuple)


@st.composite
def commits(draw: st.DrawFn) -> CaptureCommit:
    """Commits that often conflict, share fingerprints, and name parents that may or may not be recorded."""
    rollout_id = draw(rollout_ids)
    parent_id = draw(st.none() | call_ids)
    parent = None if parent_id is None else sample_commit(rollout_id, parent_id)
    commit = sample_commit(rollout_id, draw(call_ids), parent, weight_version=draw(st.sampled_from((1, 1, 1, 2))))
    if draw(st.booleans()):
        commit = changed(commit, fingerprint_version=draw(st.integers(0, 2)))
    if draw(st.booleans()):
        commit = msgspec.structs.replace(commit, staging_chain=draw(chains))
    if draw(st.booleans()):
        lookup = draw(st.none() | st.builds(ParentLookup, fingerprints, st.integers(0, 2), st.sampled_from("de")))
        commit = msgspec.structs.replace(commit, lookup=lookup)
    return commit


operations = st.one_of(
    st.tuples(st.just("record"), commits()),
    st.tuples(st.just("record"), commits()),
    st.tuples(st.just("record_together"), st.lists(commits(), min_size=2, max_size=6)),
    st.tuples(st.just("record_failure"), rollout_ids, call_ids, st.sampled_from(("x", "y"))),
    st.tuples(st.just("manifest"), rollout_ids),
    st.tuples(st.just("find_parent"), rollout_ids, fingerprints, st.integers(0, 2)),
    st.tuples(st.just("retire"), batches),
    st.tuples(st.just("delete"), batches),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("purge")),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(operations, max_size=25))
def test_no_history_tells_a_durable_ledger_from_the_reference(
    new_ledger_url: Callable[[], str], history: list[tuple[Any, ...]]
) -> None:
    asyncio.run(_compare(new_ledger_url(), history))


async def _compare(url: str, history: list[tuple[Any, ...]]) -> None:
    reference = MemoryLedger()
    ledger = open_ledger(url)
    try:
        for operation, *arguments in history:
            if operation == "reopen":
                await ledger.aclose()
                ledger = open_ledger(url)
            elif operation == "purge":
                await asyncio.sleep(0.005)  # as much as a ledger purges meanwhile
            elif operation == "record_together":
                together = await asyncio.gather(*(_outcome(ledger, "record", commit) for commit in arguments[0]))
                assert together == [await _outcome(reference, "record", commit) for commit in arguments[0]]
            else:
                assert await _outcome(ledger, operation, *arguments) == await _outcome(reference, operation, *arguments)
        for rollout_id in ROLLOUT_IDS:
            assert await _outcome(ledger, "manifest", rollout_id) == await _outcome(reference, "manifest", rollout_id)
            assert await _outcome(ledger, "has_rows", rollout_id) == await _outcome(reference, "has_rows", rollout_id)
    finally:
        await ledger.aclose()


async def _outcome(ledger: CaptureLedger, operation: str, *arguments: object) -> object:
    """Returns what the operation returned, or which of the errors it raised that tell a caller something."""
    try:
        return await getattr(ledger, operation)(*arguments)
    except (LedgerConflictError, RolloutRetiredError) as error:
        return type(error)
