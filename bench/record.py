"""Recording: rows a second of 1 to 256 tasks, through each side's own ledger, without a server."""

import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from nemo_gym.token_id_capture.lineage import FileLineageStore
from rollout_control_server import open_ledger

from bench import loops
from bench.results import Curve, PartReport, Result, times_better
from bench.rounds import alternate
from bench.rows import Rollouts, check_manifest, fill_ours, gym_commits, sample_rollouts

CALLS = 10
BEGUN_ANEW = 2
WHY_MISSED = (
    "py-spy shows a fifth of the time in COMMIT, that is in writing and syncing the WAL, where each rollout has a page "
    "of its own, so that 8 KB are written for a row of 1 KB. The rest is Python in two threads that share one "
    "interpreter: 40 us of CPU for a row, 7 of them in checking the record by the spec's patterns"
)
LIMIT = "appending the same rows to a file and syncing it, after as many rows as there are tasks"


def run(folder: Path) -> PartReport:
    by_tasks: dict[str, list[tuple[float, float]]] = {"ours": [], "peer": [], "limit": []}
    results: list[Result] = []
    for tasks, rollouts, rounds, goal in (
        (1, 50, 1, []),
        (4, 60, 1, []),
        (16, 64, 1, []),
        (64, 128, 1, []),
        (256, 256, 5, [times_better(10)]),
    ):
        figures = alternate(Recording(folder, sample_rollouts("r", rollouts, CALLS), tasks).measures(), rounds=rounds)
        for side, points in by_tasks.items():
            points.append((tasks, median(each[side] for each in figures)))
        if goal:
            results.append(
                Result(f"record, {tasks} tasks, each rollout of {CALLS} calls", "/s", figures, goal, LIMIT, WHY_MISSED)
            )
    results.append(_steady(folder))
    return PartReport(results, [Curve("record-by-tasks", "Recording durably", "tasks that record", "rows/s", by_tasks)])


def _steady(folder: Path) -> Result:
    """Measures one task on a ledger whose WAL has been begun anew, as it has in all but the first seconds."""
    here = Path(tempfile.mkdtemp(dir=folder))
    names = (f"steady-{number}" for number in itertools.count())

    async def ours() -> float:
        async with open_ledger(f"sqlite:///{here}/ledger.sqlite") as ledger:
            turn = 0
            while _times_begun_anew(here) < BEGUN_ANEW:
                await fill_ours(ledger, sample_rollouts(f"{next(names)}-{turn}", 100, CALLS))
                turn += 1
            rollouts = sample_rollouts(next(names), 50, CALLS)
            rate = await rows_per_s(rollouts.values(), ledger.record, 1)
            for rollout_id in rollouts:
                check_manifest(rollouts, rollout_id, await ledger.manifest(rollout_id))
        return rate

    recording = Recording(folder, sample_rollouts("r", 50, CALLS), 1)
    measures = {**recording.measures(), "ours": lambda: loops.run(ours())}
    return Result(
        f"record, 1 task, the WAL begun anew {BEGUN_ANEW} times before",
        "/s",
        alternate(measures, rounds=5),
        [times_better(1.3)],
        LIMIT,
        WHY_MISSED,
    )


def _times_begun_anew(folder: Path) -> int:
    """Returns how often SQLite has begun the WAL anew since the ledger was opened, which its header counts."""
    wal = folder / "ledger.sqlite-wal"
    with contextlib.suppress(FileNotFoundError):
        return int.from_bytes(wal.read_bytes()[12:16])
    return 0


class Recording:
    """The same rollouts, recorded into a new ledger each time."""

    def __init__(self, folder: Path, rollouts: Rollouts, tasks: int) -> None:
        self._folder = folder
        self._rollouts = rollouts
        self._tasks = tasks
        self._gym_commits = [gym_commits(commits) for commits in rollouts.values()]

    def measures(self) -> dict[str, Callable[[], float]]:
        return {"ours": lambda: loops.run(self._ours()), "peer": lambda: loops.run(self._peer()), "limit": self._limit}

    def new_folder(self) -> str:
        return tempfile.mkdtemp(dir=self._folder)

    async def _ours(self) -> float:
        async with open_ledger(f"sqlite:///{self.new_folder()}/ledger.sqlite") as ledger:
            rate = await rows_per_s(self._rollouts.values(), ledger.record, self._tasks)
            for rollout_id in self._rollouts:
                check_manifest(self._rollouts, rollout_id, await ledger.manifest(rollout_id))
        return rate

    async def _peer(self) -> float:
        store = FileLineageStore(self.new_folder())
        rate = await rows_per_s(self._gym_commits, store.record, self._tasks)
        for rollout_id in self._rollouts:
            check_manifest(self._rollouts, rollout_id, await store.manifest(rollout_id))
        return rate

    def _limit(self) -> float:
        rows = [msgspec.json.encode(commit) for commits in self._rollouts.values() for commit in commits]
        file = os.open(f"{self.new_folder()}/rows", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        begun = time.perf_counter()
        for index in range(0, len(rows), self._tasks):
            os.write(file, b"".join(rows[index : index + self._tasks]))
            os.fdatasync(file)
        rate = len(rows) / (time.perf_counter() - begun)
        os.close(file)
        return rate


async def rows_per_s(
    rollouts: Iterable[Sequence[Any]], record: Callable[[Any], Awaitable[object]], tasks: int
) -> float:
    """Records the rollouts, each in order and by one task, and returns the rows a second."""
    waiting = iter(rollouts)
    recorded = 0

    async def record_rollouts() -> None:
        nonlocal recorded
        for commits in waiting:
            for commit in commits:
                await record(commit)
            recorded += len(commits)

    begun = time.perf_counter()
    await asyncio.gather(*(record_rollouts() for _ in range(tasks)))
    return recorded / (time.perf_counter() - begun)
