"""A process that uses a ledger as model servers and trainers do, at random, and writes down what it saw.

Each operation is noted before it begins and after it returned, so that what was acknowledged is known even when the
process is killed.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from ledger_history import FOREVER, Event, Outcome, Row
from rollout_control_server.errors import LedgerConflictError, LedgerUnavailableError, RolloutRetiredError
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.records import RolloutManifest, RolloutRemoval
from rollout_control_server.samples import sample_commit

__all__ = ["act", "act_until_killed", "read_all", "read_notes"]

Seen = tuple[Outcome, tuple[Row, ...]]

_OPERATIONS = (
    *("record",) * 12, *("again",) * 2, *("rival",) * 4, "failure", *("read",) * 6, "retire", *("delete",) * 2
)  # fmt: skip


TASKS = 8


def act(url: str, notes: Path, rollout_ids: Sequence[str], operations: int) -> None:
    """Does so many operations in each of some tasks, and appends notes to a file, whose name makes the seed."""
    with notes.open("ab", buffering=0) as file:

        async def use_ledger() -> None:
            async with open_ledger(url) as ledger:
                actors = [_Actor(ledger, file.write, f"{notes.name}.{task}", rollout_ids) for task in range(TASKS)]
                await asyncio.gather(*(actor.run(operations) for actor in actors))

        asyncio.run(use_ledger())


def act_until_killed(url: str, notes: Path, rollout_ids: Sequence[str]) -> None:
    """Uses the ledger with some tasks; another fills rollouts, and removes them so that there is much to purge."""
    with notes.open("ab", buffering=0) as file:

        async def use_ledger() -> None:
            async with open_ledger(url) as ledger:
                actors = [_Actor(ledger, file.write, f"{notes.name}.{task}", rollout_ids) for task in range(TASKS)]
                bulk = _Actor(ledger, file.write, f"{notes.name}.bulk", ())
                await asyncio.gather(bulk.fill_and_remove(), *(actor.run(2**63) for actor in actors))

        asyncio.run(use_ledger())


def read_notes(notes: Path, killed_at: int | None = None) -> Iterator[Event]:
    """Yields what the notes of one process tell; `killed_at` ends what had not returned."""
    begun: dict[int, list[Event]] = {}
    for line in notes.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break  # the process was killed while it wrote
        number, events = msgspec.json.decode(line, type=tuple[int, list[Event]])
        if begun.pop(number, None) is None:
            begun[number] = events
        else:
            yield from events
    assert killed_at is not None or not begun, "an operation has not returned"
    for events in begun.values():
        yield from (msgspec.structs.replace(event, end=killed_at) for event in events)


async def read_all(ledger: CaptureLedger, rollout_ids: Sequence[str]) -> list[Event]:
    """Reads the rollouts, and returns what was seen."""
    notes: list[bytes] = []
    actor = _Actor(ledger, notes.append, "reader", ())
    for rollout_id in rollout_ids:
        await actor.read(rollout_id)
    decoded = [msgspec.json.decode(note, type=tuple[int, list[Event]]) for note in notes]
    return [event for _, events in decoded[1::2] for event in events]


class _Actor:
    def __init__(
        self, ledger: CaptureLedger, write: Callable[[bytes], object], name: str, rollout_ids: Sequence[str]
    ) -> None:
        self._ledger = ledger
        self._write = write
        self._name = name
        self._rollout_ids = rollout_ids
        self._random = random.Random(name)
        self._calls = itertools.count()
        self._last: tuple[str, str] | None = None

    async def run(self, operations: int) -> None:
        for _ in range(operations):
            rollout_id = self._random.choice(self._rollout_ids)
            match self._random.choice(_OPERATIONS):
                case "read":
                    await self.read(rollout_id)
                case "retire":
                    await self._remove("retire", self._ledger.retire, self._some_rollouts())
                case "delete":
                    await self._remove("delete", self._ledger.delete, self._some_rollouts())
                case "again" if self._last is not None:
                    await self._record(*self._last)
                case "rival":
                    await self._record(rollout_id, f"rival-{self._random.randrange(2)}", self._random.randrange(3))
                case "failure":
                    await self._record_failure(rollout_id, f"{self._name}.{next(self._calls)}")
                case _:
                    self._last = rollout_id, f"{self._name}.{next(self._calls)}"
                    await self._record(*self._last)

    async def fill_and_remove(self) -> None:
        for number in itertools.count():
            rollout_id = f"{self._name}-{number}"
            await asyncio.gather(*(self._record(rollout_id, f"c{call}") for call in range(200)))
            if number % 2:
                await self._remove("retire", self._ledger.retire, [rollout_id])
            else:
                await self._remove("delete", self._ledger.delete, [rollout_id])

    async def read(self, rollout_id: str) -> None:
        async def see() -> list[Seen]:
            try:
                manifest = msgspec.json.decode(await self._ledger.manifest(rollout_id), type=RolloutManifest)
            except RolloutRetiredError:
                return [("retired", ())]
            for record in manifest.records:
                commit = sample_commit(rollout_id, record.model_call_id, weight_version=record.weight_version)
                assert record == commit.record, "a record is torn"
            records = [(record.model_call_id, record.weight_version) for record in manifest.records]
            return [("rows", (*records, *((failure.model_call_id, -1) for failure in manifest.failures)))]

        await self._perform("read", [rollout_id], see)

    async def _record(self, rollout_id: str, call_id: str, version: int = 0) -> None:
        commit = sample_commit(rollout_id, call_id, weight_version=version)

        async def see() -> list[Seen]:
            try:
                return [("kept" if await self._ledger.record(commit) else "discarded", ())]
            except LedgerConflictError:
                return [("conflict", ())]

        await self._perform("record", [rollout_id], see, (call_id, version))

    async def _record_failure(self, rollout_id: str, call_id: str) -> None:
        async def see() -> list[Seen]:
            kept = await self._ledger.record_failure(rollout_id, call_id, "worker_capture_failed")
            return [("kept" if kept else "discarded", ())]

        await self._perform("record", [rollout_id], see, (call_id, -1))

    def _some_rollouts(self) -> list[str]:
        return self._random.sample(self._rollout_ids, self._random.randint(1, 2))

    async def _remove(
        self,
        kind: Literal["retire", "delete"],
        remove: Callable[[list[str]], Awaitable[RolloutRemoval]],
        rollout_ids: list[str],
    ) -> None:
        async def see() -> list[Seen]:
            removal = await remove(rollout_ids)
            return [("removed" if one in removal.removed else "absent", ()) for one in rollout_ids]

        await self._perform(kind, rollout_ids, see)

    async def _perform(
        self,
        kind: Literal["record", "read", "retire", "delete"],
        rollout_ids: Sequence[str],
        see: Callable[[], Awaitable[list[Seen]]],
        row: Row | None = None,
    ) -> None:
        number = next(_numbers)
        begin = time.monotonic_ns()
        events = [
            Event(kind=kind, rollout_id=rollout_id, begin=begin, end=FOREVER, outcome="unknown", row=row)
            for rollout_id in rollout_ids
        ]
        self._note(number, events)
        try:
            seen = await see()
        except LedgerUnavailableError:
            return  # It may have happened, or happen later: there is no note of its end.
        end = time.monotonic_ns()
        self._note(
            number,
            [
                msgspec.structs.replace(event, end=end, outcome=outcome, rows=rows)
                for event, (outcome, rows) in zip(events, seen, strict=True)
            ],
        )

    def _note(self, number: int, events: list[Event]) -> None:
        self._write(msgspec.json.encode((number, events)) + b"\n")


_numbers = itertools.count()
