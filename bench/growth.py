"""How the cost of a rollout grows with its calls: the time of its records, and its bytes on the disk."""

import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from nemo_gym.token_id_capture.lineage import FileLineageStore
from rollout_control_server import open_ledger

from bench import loops
from bench.results import Curve, PartReport, Result, at_most
from bench.rounds import alternate
from bench.rows import check_manifest, gym_commits_of_one_item, sample_rollouts

CALLS = 1000
AROUND = {10: range(5, 16), 100: range(90, 111), 300: range(280, 321), 1000: range(960, 1000)}
"""The records whose times are taken together as that of the 10th, the 100th ..."""
WHY_MISSED = (
    "what grows is the staging chain that each commit brings: 1000 pointers instead of 10 are compared, and 1000 "
    "reference counts changed, which takes some 15 us. What is written is the same for each record, and so is the sync "
    "that is most of the time"
)


def run(folder: Path) -> PartReport:
    times: dict[str, list[dict[int, float]]] = {"ours": [], "peer": []}
    disk: dict[str, list[float]] = {"ours": [], "peer": []}
    # The first one is not measured: in a new ledger, the first megabyte takes a disk less time than what follows.
    rollouts = sample_rollouts("long", 4, CALLS)
    peer_rollouts = {rollout_id: gym_commits_of_one_item(commits) for rollout_id, commits in rollouts.items()}

    def growth(side: str, here: Path, seconds: list[list[float]]) -> float:
        times[side].append(
            {calls: median(each[i] for each in seconds[1:] for i in around) for calls, around in AROUND.items()}
        )
        disk[side].append(sum(file.stat().st_size for file in here.iterdir()) / len(rollouts) / 1e6)
        return times[side][-1][1000] / times[side][-1][10]

    async def ours() -> float:
        here = Path(tempfile.mkdtemp(dir=folder))
        async with open_ledger(f"sqlite:///{here}/ledger.sqlite") as ledger:
            seconds = [await _seconds_of_each(commits, ledger.record) for commits in rollouts.values()]
            for rollout_id in rollouts:
                check_manifest(rollouts, rollout_id, await ledger.manifest(rollout_id))
        return growth("ours", here, seconds)

    async def peer() -> float:
        here = Path(tempfile.mkdtemp(dir=folder))
        store = FileLineageStore(here)
        seconds = [await _seconds_of_each(commits, store.record) for commits in peer_rollouts.values()]
        for rollout_id in rollouts:
            check_manifest(rollouts, rollout_id, await store.manifest(rollout_id))
        return growth("peer", here, seconds)

    rounds = alternate({"ours": lambda: loops.run(ours()), "peer": lambda: loops.run(peer())}, rounds=3)
    disk_rounds = [{side: disk[side][i] for side in disk} for i in range(len(disk["ours"]))]
    return PartReport(
        [
            Result(
                "the 1000th record of a rollout against its 10th, one task",
                "x",
                rounds,
                [at_most(1.05, "1.0x")],
                missed_because=WHY_MISSED,
            ),
            Result("disk per rollout of 1000 calls", "MB", disk_rounds, [at_most(1.3, "1.3 MB")]),
        ],
        [
            Curve(
                "record-by-calls",
                "One record, durably, by one task",
                "calls of the rollout before it",
                "ms",
                {side: _curve(of_side) for side, of_side in times.items()},
            )
        ],
    )


async def _seconds_of_each(commits: Sequence[Any], record: Callable[[Any], Awaitable[object]]) -> list[float]:
    seconds: list[float] = []
    for commit in commits:
        begun = time.perf_counter()
        await record(commit)
        seconds.append(time.perf_counter() - begun)
    return seconds


def _curve(times: list[dict[int, float]]) -> list[tuple[float, float]]:
    return [(calls, 1000 * median(each[calls] for each in times)) for calls in AROUND]
