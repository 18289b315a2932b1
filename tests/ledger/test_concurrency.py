"""Several processes use the same few rollouts at once, and what they saw is what the contract allows."""

import multiprocessing
from pathlib import Path

import msgspec
import pytest
from ledger_actor import act, read_all, read_notes
from ledger_history import Event, violations
from rollout_control_server.ledger import open_ledger

PROCESSES = 5
OPERATIONS = 150
ROLLOUT_IDS = ("a", "b", "c")


async def test_every_history_of_concurrent_processes_is_allowed(ledger_url: str, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    notes = [tmp_path / f"notes-{number}" for number in range(PROCESSES)]
    processes = [spawn.Process(target=act, args=(ledger_url, path, ROLLOUT_IDS, OPERATIONS)) for path in notes]
    async with open_ledger(ledger_url) as ledger:
        await ledger.check_ready()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    async with open_ledger(ledger_url) as ledger:
        seen = await read_all(ledger, ROLLOUT_IDS)
    events = [*(event for path in notes for event in read_notes(path)), *seen]
    assert violations(events) == []
    # It was worth checking: everything happened.
    outcomes = [event.outcome for event in events]
    for outcome in ("kept", "discarded", "conflict", "rows", "retired", "removed", "absent"):
        assert outcomes.count(outcome) >= 5


def read(begin: int, *rows: tuple[str, int]) -> Event:
    return Event(kind="read", rollout_id="r", begin=begin, end=begin + 1, outcome="rows", rows=rows)


def record(begin: int, row: tuple[str, int], outcome: str = "kept", end: int | None = None) -> Event:
    return Event(kind="record", rollout_id="r", begin=begin, end=end or begin + 1, outcome=outcome, row=row)


def removal(kind: str, begin: int, outcome: str = "removed", end: int | None = None) -> Event:
    return Event(kind=kind, rollout_id="r", begin=begin, end=end or begin + 1, outcome=outcome)


C = ("c", 0)
RETIRED = Event(kind="read", rollout_id="r", begin=90, end=91, outcome="retired")


@pytest.mark.parametrize(
    ("expected", "history"),
    [
        ("did not find the fence", [record(0, C), removal("retire", 10), read(20)]),
        ("has lost", [record(0, C), read(10)]),
        ("has lost", [record(0, C), record(2, ("d", 0)), read(10, C)]),
        ("shows a call twice", [record(0, C), read(10, C, C)]),
        ("removed or never recorded", [record(0, C), removal("delete", 10), read(20, C)]),
        ("removed or never recorded", [record(10, C), read(0, C)]),
        ("late write was kept", [removal("retire", 0, "absent"), record(10, C)]),
        ("discarded without a fence", [record(0, C, "discarded")]),
        ("discarded without a fence", [removal("retire", 0), removal("delete", 10), record(20, C, "discarded")]),
        ("fence that nobody", [record(0, C), removal("delete", 10), RETIRED]),
        ("two commits of one call", [record(0, C), record(10, ("c", 1))]),
        ("conflicted with nothing", [record(0, C), record(10, ("d", 1), "conflict")]),
        ("without rows was reported as removed", [removal("retire", 10)]),
        ("with rows was reported as absent", [record(0, C), removal("delete", 10, "absent")]),
        ("fenced rollout was reported as removed", [record(0, C), removal("retire", 10), removal("delete", 20)]),
        ("before", [record(0, C), record(10, ("d", 0)), read(20, ("d", 0), C)]),
    ],
)
def test_the_check_finds_what_is_not_allowed(expected: str, history: list[Event]) -> None:
    assert any(expected in text for text in violations(history))


@pytest.mark.parametrize(
    "history",
    [
        [record(0, C), read(10, C), removal("retire", 20), RETIRED],
        [record(0, C, end=30), removal("retire", 10), RETIRED],
        [record(0, C, end=30), removal("delete", 10, "absent"), read(40, C)],
        [record(0, C, "unknown", end=5), read(10)],
        [record(0, C), msgspec.structs.replace(read(10), outcome="unknown")],
        [record(0, C, "unknown", end=5), read(10, C)],
        [record(0, C), removal("retire", 10, "unknown", end=15), read(20, C)],
        [record(0, C), removal("retire", 10, "unknown", end=15), RETIRED],
        [record(0, C), removal("delete", 10), record(20, ("c", 1)), read(30, ("c", 1))],
        [record(0, C), record(10, ("c", 1), "conflict"), read(20, C)],
        [record(0, ("c", 1), end=40), record(10, C), removal("delete", 20, end=30), read(50, ("c", 1))],
    ],
)
def test_the_check_allows_what_may_be(history: list[Event]) -> None:
    assert violations(history) == []
