"""What an operation takes when 200,000 rollouts of 10 calls are held, against when 1,000 are."""

import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rollout_control_server import CaptureLedger, open_ledger

from bench import loops
from bench.results import PartReport, Result, at_most
from bench.rounds import WrongAnswerError
from bench.rows import check_manifest, fill_ours, sample_rollouts

FEW, MANY, CALLS = 1_000, 200_000, 10
FILLED_AT_ONCE = 2_000
SAMPLES, RETIRED, RETIRES = 200, 512, 5
GOAL = at_most(1.5, "1.5x")


def run(folder: Path, *, few: int = FEW, many: int = MANY) -> PartReport:
    times = loops.run(_measure(folder, few, many))
    return PartReport(
        [
            Result(f"{work}, {many:,} rollouts of {CALLS} calls held against {few:,}", "x", [{"ours": ratio}], [GOAL])
            for work, ratio in times.items()
        ]
    )


async def _measure(folder: Path, few: int, many: int) -> dict[str, float]:
    async with open_ledger(f"sqlite:///{folder}/ledger.sqlite") as ledger:
        await _fill(ledger, 0, few)
        before = await _times(ledger, few)
        await _fill(ledger, few, many)
        after = await _times(ledger, many)
    for work, seconds in after.items():
        print(f"  {work}: {1e6 * before[work]:,.0f} us with {few:,}, {1e6 * seconds:,.0f} us with {many:,}", flush=True)
    return {work: after[work] / before[work] for work in after}


async def _fill(ledger: CaptureLedger, first: int, end: int) -> None:
    for start in range(first, end, FILLED_AT_ONCE):
        await fill_ours(ledger, sample_rollouts("held", min(start + FILLED_AT_ONCE, end), CALLS, first=start))


async def _times(ledger: CaptureLedger, held: int) -> dict[str, float]:
    """Returns how long each operation takes, in seconds; the medians of many."""
    chosen = sample_rollouts("held", held, CALLS, first=held - SAMPLES)
    new = [commits[0] for commits in sample_rollouts(f"new-{held}", SAMPLES, 1).values()]
    times = {
        "a lone record": await _median_of([lambda commit=commit: ledger.record(commit) for commit in new]),
        "a manifest": await _median_of([lambda name=name: ledger.manifest(name) for name in chosen]),
        "a page of the listing": await _median_of([lambda: ledger.rollouts(limit=100, after="held-00500")] * SAMPLES),
    }
    name, commits = next(iter(chosen.items()))
    check_manifest({name: commits}, name, await ledger.manifest(name))
    retires = []
    for turn in range(RETIRES):
        rollouts = sample_rollouts(f"retired-{held}-{turn}", RETIRED, CALLS)
        await fill_ours(ledger, rollouts)
        begun = time.perf_counter()
        removal = await ledger.retire(list(rollouts))
        retires.append(time.perf_counter() - begun)
        if removal.removed != list(rollouts):
            raise WrongAnswerError("retire did not remove what it should")
    return {**times, f"{RETIRED} retired": statistics.median(retires)}


async def _median_of(operations: list[Callable[[], Awaitable[object]]]) -> float:
    seconds = []
    for operation in operations:
        begun = time.perf_counter()
        await operation()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)
