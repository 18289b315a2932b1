"""Memory of a process that holds a ledger: empty, after 10,000 rollouts were recorded, after each was read once."""

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import loops
from bench.results import PartReport, Result, at_most
from bench.rows import check_manifest, gym_commits_of_one_item, sample_rollouts

ROLLOUTS = 10_000
CALLS = 10
AT_ONCE = 256


def run(folder: Path) -> PartReport:
    figures = {side: _in_a_process_of_its_own(side, folder) for side in ("ours", "peer")}
    goal = [at_most(20, "20 MB")]
    whats = (f"{ROLLOUTS} rollouts of {CALLS} calls recorded", "then each read once")
    return PartReport(
        [
            Result(f"memory above empty: {what}", "MB", [{side: figures[side][index] for side in figures}], goal)
            for index, what in enumerate(whats)
        ]
    )


def _in_a_process_of_its_own(side: str, folder: Path) -> list[float]:
    command = [sys.executable, "-m", "bench.memory", side, str(folder)]
    return [float(word) for word in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]


async def _measure(
    record: Callable[[Any], Awaitable[object]], manifest: Callable[[str], Awaitable[Any]], gym: bool
) -> None:
    await _record_all(record, gym, "warm", AT_ONCE)
    empty = _resident_mb()
    await _record_all(record, gym, "r", ROLLOUTS)
    recorded = _resident_mb()
    for first in range(0, ROLLOUTS, AT_ONCE):
        for rollout_id, commits in sample_rollouts("r", min(ROLLOUTS, first + AT_ONCE), CALLS, first=first).items():
            check_manifest({rollout_id: commits}, rollout_id, await manifest(rollout_id))
    print(recorded - empty, _resident_mb() - empty)


async def _record_all(record: Callable[[Any], Awaitable[object]], gym: bool, name: str, rollouts: int) -> None:
    """Makes and records some rollouts at a time, so that what waits to be recorded is not much of the memory."""
    for first in range(0, rollouts, AT_ONCE):
        some = sample_rollouts(name, min(rollouts, first + AT_ONCE), CALLS, first=first)
        await asyncio.gather(
            *(_record_each(record, gym_commits_of_one_item(commits) if gym else commits) for commits in some.values())
        )


async def _record_each(record: Callable[[Any], Awaitable[object]], commits: list[Any]) -> None:
    for commit in commits:
        await record(commit)


def _resident_mb() -> float:
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _ours(folder: str) -> None:
    from rollout_control_server import open_ledger

    async with open_ledger(f"sqlite:///{folder}/memory.sqlite") as ledger:
        await _measure(ledger.record, ledger.manifest, gym=False)


async def _peer(folder: str) -> None:
    from nemo_gym.token_id_capture.lineage import FileLineageStore

    # What is written durably takes as much memory as what is not, and here a tenth of the time.
    os.fsync = lambda fd: None
    store = FileLineageStore(f"{folder}/memory")
    await _measure(store.record, store.manifest, gym=True)


if __name__ == "__main__":
    loops.run({"ours": _ours, "peer": _peer}[sys.argv[1]](sys.argv[2]))
