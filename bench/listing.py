"""What pages, summaries and their filters cost in a ledger of many rollouts, and what recording loses beside a lister.

    nox -s bench-listing            (or: PYTHONPATH=tests python bench/listing.py)

All retired rollouts come before all live ones in the order of the ids, so that a filter which looks at each rollout has
to look at most of them before its first match.
"""

import argparse
import asyncio
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from multiprocessing.synchronize import Event
from pathlib import Path

from postgres_server import running_postgres
from rollout_control_server.ledger import CaptureLedger, MemoryLedger, open_ledger
from rollout_control_server.ledger.results import LedgerRow, RolloutExport
from rollout_control_server.samples import sample_commit, sample_conversation

IMPORTED_AT_ONCE = 1000
CALLS = 2
"""Calls of each live rollout."""
HOUR = 3600.0
RARE = 1000
"""One live rollout of so many has a failure, and one other of so many is idle."""
ASKED = 15
"""Times that each question is asked; the median counts."""
ROUNDS = 5
RECORDING_S = 3.0
TASKS = 64


async def fill(ledger: CaptureLedger, rollouts: int) -> None:
    """Puts as many retired rollouts into the ledger, and as many live ones."""
    now = time.time()
    for first in range(0, rollouts, IMPORTED_AT_ONCE):
        numbers = range(first, min(first + IMPORTED_AT_ONCE, rollouts))
        await ledger.import_([RolloutExport(f"a-retired.{number:07}", now, []) for number in numbers])
        await ledger.import_([await _live(number, now) for number in numbers])


async def _live(number: int, now: float) -> RolloutExport:
    rollout_id = f"b-live.{number:07}"
    memory = MemoryLedger()
    for commit in sample_conversation(rollout_id, CALLS):
        await memory.record(commit)
    if number % RARE == 0:
        await memory.record_failure(rollout_id, "failed", "worker_capture_failed")
    age = 8 * HOUR if number % RARE == 1 else 0
    rows = (await memory.export(rollout_id)).rows
    return RolloutExport(rollout_id, None, [LedgerRow(row, now - age) for row, _ in rows])


def questions(ledger: CaptureLedger, rollouts: int) -> dict[str, Callable[[], Awaitable[object]]]:
    last = f"b-live.{rollouts - IMPORTED_AT_ONCE - 1:07}"
    return {
        "first page": ledger.rollouts,
        "last page": lambda: ledger.rollouts(after=last),
        "`state=retired`": lambda: ledger.rollouts(state="retired"),
        "`state=live`": lambda: ledger.rollouts(state="live"),
        "`prefix` of 1000": lambda: ledger.rollouts(prefix="b-live.0000"),
        "`has_failures=true`, 1 of 1000": lambda: ledger.rollouts(has_failures=True),
        "`has_failures=false`": lambda: ledger.rollouts(has_failures=False),
        "`idle_for_s`, 1 of 1000": lambda: ledger.rollouts(idle_for_s=6 * HOUR),
        "`idle_for_s` that all match": lambda: ledger.rollouts(idle_for_s=0),
        "`idle_for_s` and `prefix`": lambda: ledger.rollouts(idle_for_s=6 * HOUR, prefix="b-live.0000"),
        "`changed_since`, none": lambda: ledger.rollouts(changed_since=time.time() + HOUR),
        "summary": ledger.summary,
        "retire_idle of 1000 active ones": lambda: ledger.retire_idle(
            [f"b-live.{number:07}" for number in range(2, 1002)], 12 * HOUR
        ),
    }


async def ask(url: str, rollouts: int) -> dict[str, list[float]]:
    """Returns the milliseconds of each question, each time."""
    taken: dict[str, list[float]] = {}
    async with open_ledger(url) as ledger:
        for title, question in questions(ledger, rollouts).items():
            await question()
            for _ in range(ASKED):
                begun = time.perf_counter()
                await question()
                taken.setdefault(title, []).append(1000 * (time.perf_counter() - begun))
    return taken


def list_all_the_time(url: str, turn: Event, ended: Event) -> None:
    """Pages through the whole ledger again and again, in a process of its own, while it is this process's turn."""

    async def run() -> None:
        async with open_ledger(url) as ledger:
            while not ended.is_set():
                await asyncio.to_thread(turn.wait)
                after = None
                while turn.is_set() and not ended.is_set():
                    after = (await ledger.rollouts(after=after)).next

    asyncio.run(run())


def compute_all_the_time(_: str, turn: Event, ended: Event) -> None:
    """Uses a core and no ledger, while it is this process's turn: what a lister costs where cores are short."""
    while not ended.is_set():
        turn.wait()
        while turn.is_set() and not ended.is_set():
            sum(range(10_000))


async def record_for(ledger: CaptureLedger, seconds: float) -> float:
    """Returns how many rows a second are recorded by some tasks, each into a rollout of its own."""
    end = time.perf_counter() + seconds
    rows = 0

    async def work() -> None:
        nonlocal rows
        rollout_id = f"c-new.{uuid.uuid4().hex}"
        number = 0
        while time.perf_counter() < end:
            await ledger.record(sample_commit(rollout_id, str(number)))
            rows, number = rows + 1, number + 1

    await asyncio.gather(*(work() for _ in range(TASKS)))
    return rows / seconds


async def record_by_turns(url: str, turns: dict[str, Event]) -> dict[str, list[float]]:
    """Returns the rates of recording alone, and while it is the turn of each of some processes."""
    rates: dict[str, list[float]] = {}
    async with open_ledger(url) as ledger:
        await record_for(ledger, RECORDING_S)
        for _ in range(ROUNDS):
            rates.setdefault("alone", []).append(await record_for(ledger, RECORDING_S))
            for beside, turn in turns.items():
                turn.set()
                rates.setdefault(beside, []).append(await record_for(ledger, RECORDING_S))
                turn.clear()
    return rates


def measure(url: str, rollouts: int) -> list[str]:
    """Returns the lines of a table of one ledger."""

    async def filled() -> None:
        async with open_ledger(url) as ledger:
            await fill(ledger, rollouts)

    asyncio.run(filled())
    lines = [
        f"| {title} | {statistics.median(taken):,.2f} ms | {min(taken):,.2f} to {max(taken):,.2f} |"
        for title, taken in asyncio.run(ask(url, rollouts)).items()
    ]
    spawn = multiprocessing.get_context("spawn")
    others = {"beside a lister": list_all_the_time, "beside a process that only computes": compute_all_the_time}
    turns = {title: spawn.Event() for title in others}
    ended = spawn.Event()
    processes = [spawn.Process(target=work, args=(url, turns[title], ended)) for title, work in others.items()]
    for process in processes:
        process.start()
    try:
        lines += [
            f"| rows recorded by {TASKS} tasks, {title} | {statistics.median(rates):,.0f} /s "
            f"| {min(rates):,.0f} to {max(rates):,.0f} |"
            for title, rates in asyncio.run(record_by_turns(url, turns)).items()
        ]
    finally:
        ended.set()
        for turn in turns.values():
            turn.set()
        for process in processes:
            process.join()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="nox -s bench-listing --", description="Measures listings of many rollouts.")
    parser.add_argument("--rollouts", type=int, default=200_000, help="live ones, and as many retired ones")
    parser.add_argument("--ledger", choices=["sqlite", "postgres"], action="append", help="only this kind")
    parser.add_argument("--output", type=Path, help="the file to write")
    arguments = parser.parse_args()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    lines = [
        f"# Listings of {arguments.rollouts:,} live and {arguments.rollouts:,} retired rollouts",
        "",
        f"By `nox -s bench-listing`. {machine}. Pages of 1000; medians of {ASKED}, of recording {ROUNDS} by turns.",
        "The tasks that record, the lister, which is a process of its own, and PostgreSQL share these cores.",
    ]
    # In the checkout, because a system's folder of temporary files may be no disk at all.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as folder, ExitStack() as stack:
        for kind in arguments.ledger or ["sqlite", "postgres"]:
            url = f"sqlite:///{Path(folder).absolute()}/ledger.sqlite"
            if kind == "postgres":
                url = f"{stack.enter_context(running_postgres()).url}?schema=bench_listing"
            title = {"sqlite": "SqliteLedger", "postgres": "PostgresLedger"}[kind]
            lines += ["", f"| {title} | median | all |", "|---|--:|---|", *measure(url, arguments.rollouts)]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
