"""What pages and summaries say while a ledger changes, held against a model of the ledger, whatever the history."""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollout_control_server.errors import LedgerConflictError
from rollout_control_server.ledger import CaptureLedger, MemoryLedger, open_ledger
from rollout_control_server.ledger.results import LedgerRow, RolloutEntry, RolloutExport, RolloutPage, RolloutSummary
from rollout_control_server.samples import sample_commit

IDS = ("-", "A", "a", "a-1", "a.1", "a.2", "aa", "b", "b.1", "z")
PREFIXES = ("", "a", "a.", "b", "none")
HOUR = 3600
AGES = (0, HOUR, 3 * HOUR, None)
"""How old a row is, in seconds; None for a row whose time is not known. A test takes much less than an hour."""

# The model: for each id its rows, as (is it a failure, its age), by what makes a row another one; None for a fence.
Rows = dict[tuple[str, ...], tuple[bool, int | None]]
State = dict[str, Rows | None]


class Filters(NamedTuple):
    state: str | None
    prefix: str
    idle_for_s: float | None
    changed_in_h: int | None
    has_failures: bool | None

    def arguments(self) -> dict[str, Any]:
        since = None if self.changed_in_h is None else time.time() + self.changed_in_h * HOUR
        return {
            "state": self.state,
            "prefix": self.prefix,
            "idle_for_s": self.idle_for_s,
            "changed_since": since,
            "has_failures": self.has_failures,
        }

    def match(self, rollout_id: str, rows: Rows | None) -> bool:
        last_age = None if rows is None else list(rows.values())[-1][1]
        return (
            rollout_id.startswith(self.prefix)
            and self.state in (None, "retired" if rows is None else "live")
            # Whatever is there has changed during the test.
            and (self.changed_in_h is None or self.changed_in_h < 0)
            and (self.idle_for_s is None or (last_age is not None and last_age >= self.idle_for_s))
            and (
                self.has_failures is None
                or (rows is not None and self.has_failures == any(failed for failed, _ in rows.values()))
            )
        )


filters = st.builds(
    Filters,
    st.sampled_from((None, None, "live", "retired")),
    st.sampled_from(PREFIXES),
    st.sampled_from((None, None, 0.5 * HOUR, 2.0 * HOUR)),
    st.sampled_from((None, None, -1, 1)),
    st.sampled_from((None, None, True, False)),
)
rollout_ids = st.sampled_from(IDS)
batches = st.lists(rollout_ids, min_size=1, max_size=5, unique=True)
calls = st.sampled_from(("1", "2", "3"))
operations = st.one_of(
    st.tuples(st.just("record"), rollout_ids, calls),
    st.tuples(st.just("record"), rollout_ids, calls),
    st.tuples(st.just("record_failure"), rollout_ids, calls, st.sampled_from(("x", "y"))),
    st.tuples(st.just("retire"), batches),
    st.tuples(st.just("delete"), batches),
    st.tuples(st.just("retire_idle"), batches),
    st.tuples(st.just("import"), batches, st.none() | st.lists(st.sampled_from(AGES), max_size=3)),
)


def changed(state: State, operation: str, *arguments: Any) -> State:
    """Returns the model's state after an operation."""
    state = dict(state)
    if operation in ("record", "record_failure"):
        rollout_id, *key = arguments
        rows = state.get(rollout_id, {})
        failed_calls = {key[0] for key in rows or {} if len(key) == 2}
        conflicts = operation == "record" and key[0] in failed_calls and tuple(key) not in (rows or {})
        if rows is not None and tuple(key) not in rows and not conflicts:
            state[rollout_id] = {**rows, tuple(key): (operation == "record_failure", 0)}
        return state
    for rollout_id in arguments[0]:
        if operation == "retire":
            state[rollout_id] = None
        elif operation == "delete":
            state.pop(rollout_id, None)
        elif operation == "retire_idle":
            rows = state.get(rollout_id)
            age = list(rows.values())[-1][1] if rows else None
            if age is not None and age >= 2 * HOUR:
                state[rollout_id] = None
        elif arguments[1]:
            state[rollout_id] = {(str(number),): (False, age) for number, age in enumerate(arguments[1])}
        else:
            state.pop(rollout_id, None)
            if arguments[1] is None:
                state[rollout_id] = None
    return state


async def apply(ledger: CaptureLedger, operation: str, *arguments: Any) -> None:
    """Does to a ledger what `changed` does to the model."""
    if operation == "record":
        try:
            await ledger.record(sample_commit(*arguments))
        except LedgerConflictError:
            return
    elif operation == "import":
        now = time.time()
        ages = arguments[1]
        exports = []
        for rollout_id in arguments[0]:
            rows = [await _row(rollout_id, number, age, now) for number, age in enumerate(ages or ())]
            exports.append(RolloutExport(rollout_id, now if ages is None else None, rows))
        await ledger.import_(exports)
    elif operation == "retire_idle":
        await ledger.retire_idle(arguments[0], 2.0 * HOUR)
    else:
        await getattr(ledger, operation)(*arguments)


async def _row(rollout_id: str, number: int, age: int | None, now: float) -> LedgerRow:
    memory = MemoryLedger()
    await memory.record(sample_commit(rollout_id, str(number)))
    ((row, _),) = (await memory.export(rollout_id)).rows
    return LedgerRow(row, None if age is None else now - age)


@dataclass
class History:
    """The states that a ledger went through, one after each operation.

    Attributes:
        states: Those of all operations that have begun.
        done: How many operations have ended.
    """

    states: list[State] = field(default_factory=lambda: [{}])
    done: int = 0

    def since(self, begin: int) -> list[State]:
        """Returns the states that the ledger may have had since `begin` operations were done."""
        return self.states[begin:]


def described(entry: RolloutEntry) -> tuple[object, ...]:
    """Returns what the model knows of an entry: times as ages in whole hours."""
    first, last, retired = (
        None if at is None else round((time.time() - at) / HOUR)
        for at in (entry.first_recorded_at, entry.last_recorded_at, entry.retired_at)
    )
    return (entry.rollout_id, entry.state, entry.calls, entry.failures, first, last, retired)


def expected_entry(rollout_id: str, rows: Rows | None) -> tuple[object, ...]:
    if rows is None:
        return (rollout_id, "retired", None, None, None, None, 0)
    failures = sum(failed for failed, _ in rows.values())
    ages = [None if age is None else age // HOUR for _, age in rows.values()]
    return (rollout_id, "live", len(rows) - failures, failures, ages[0], ages[-1], None)


def expected_page(state: State, matching: Filters, limit: int, after: str | None) -> tuple[list[Any], str | None]:
    found = [
        rollout_id
        for rollout_id in sorted(state)
        if (after is None or rollout_id > after) and matching.match(rollout_id, state[rollout_id])
    ]
    page = [expected_entry(rollout_id, state[rollout_id]) for rollout_id in found[:limit]]
    return page, found[limit - 1] if len(found) > limit else None


def expected_summary(state: State) -> tuple[object, ...]:
    live = [rows for rows in state.values() if rows is not None]
    first_ages = [age for rows in live for age in [next(iter(rows.values()))[1]] if age is not None]
    return (
        len(live),
        len(state) - len(live),
        sum(any(failed for failed, _ in rows.values()) for rows in live),
        sum(len(rows) for rows in live),
        max(first_ages, default=None),
    )


def described_summary(summary: RolloutSummary) -> tuple[object, ...]:
    assert summary.waiting_rows >= 0
    oldest = summary.oldest_recorded_at
    return (*summary[:4], None if oldest is None else round((time.time() - oldest) / HOUR) * HOUR)


async def page_through(ledger: CaptureLedger, history: History, matching: Filters, limit: int) -> None:
    """Reads all pages once, and holds each of them, and all together, against what the ledger may have had."""
    pass_begin = history.done
    after: str | None = None
    seen: list[str] = []
    while True:
        begin = history.done
        page: RolloutPage = await ledger.rollouts(limit=limit, after=after, **matching.arguments())
        shown = ([described(entry) for entry in page.rollouts], page.next)
        possible = [expected_page(state, matching, limit, after) for state in history.since(begin)]
        assert shown in possible, "a page is a reading of one moment"
        seen += [entry.rollout_id for entry in page.rollouts]
        if page.next is None:
            break
        after = page.next
    assert seen == sorted(set(seen))
    states = history.since(pass_begin)
    always = {one for one in IDS if all(one in state and matching.match(one, state[one]) for state in states)}
    assert always <= set(seen), "what is there all the time is listed"


async def summarise(ledger: CaptureLedger, history: History) -> None:
    begin = history.done
    summary = described_summary(await ledger.summary())
    assert summary in [expected_summary(state) for state in history.since(begin)]


async def drive(
    writing: CaptureLedger,
    reading: Sequence[CaptureLedger],
    operations: list[tuple[Any, ...]],
    readers: list[tuple[Filters, int]],
) -> None:
    """Applies the operations one after another, while each reader pages through the ledger again and again."""
    history = History()
    finished = asyncio.Event()

    async def write() -> None:
        for operation in operations:
            history.states.append(changed(history.states[-1], *operation))
            await apply(writing, *operation)
            history.done += 1
            await asyncio.sleep(0)
        finished.set()

    async def read(ledger: CaptureLedger, matching: Filters, limit: int) -> None:
        while not finished.is_set():
            await page_through(ledger, history, matching, limit)
            await summarise(ledger, history)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        for number, (matching, limit) in enumerate(readers):
            group.create_task(read(reading[number % len(reading)], matching, limit))
    for ledger in (writing, *reading):
        for matching, limit in readers:
            await page_through(ledger, history, matching, limit)
        await summarise(ledger, history)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def handles(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], tuple[CaptureLedger, ...]]:
    """Opens a new empty ledger at each call, and returns handles on it: one to write, the others to read."""
    if request.param == "memory":

        def open_handles() -> tuple[CaptureLedger, ...]:
            ledger = MemoryLedger()
            return ledger, ledger
    else:
        base = f"sqlite:///{tmp_path}/" if request.param == "sqlite" else request.getfixturevalue("postgres").url

        def open_handles() -> tuple[CaptureLedger, ...]:
            name = uuid.uuid4().hex
            url = f"{base}{name}.sqlite" if request.param == "sqlite" else f"{base}?schema=test_{name}"
            return open_ledger(url), open_ledger(url)

    return open_handles


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    operations=st.lists(operations, min_size=5, max_size=30),
    readers=st.lists(st.tuples(filters, st.integers(1, 4)), min_size=1, max_size=3),
)
def test_pages_and_summaries_are_readings_of_one_moment(
    handles: Callable[[], tuple[CaptureLedger, ...]],
    operations: list[tuple[Any, ...]],
    readers: list[tuple[Filters, int]],
) -> None:
    async def compare() -> None:
        async with AsyncExitStack() as stack:
            writing, *reading = handles()
            for ledger in {writing, *reading}:
                await stack.enter_async_context(ledger)
            await drive(writing, reading, operations, readers)

    asyncio.run(compare())
