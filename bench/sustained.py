"""Ten minutes in which each rollout is retired when it is recorded: whether the purge keeps up with the recording."""

import asyncio
import itertools
import time
from pathlib import Path

from rollout_control_server import CaptureLedger, open_ledger

from bench import loops
from bench.results import PartReport, Result, at_most
from bench.rows import sample_rollouts

CALLS, TASKS = 10, 64
EARLY_S, LATE_S = 120.0, 600.0


def run(folder: Path, *, early_s: float = EARLY_S, late_s: float = LATE_S) -> PartReport:
    early, late = loops.run(_measure(folder, early_s, late_s))
    work = f"the file after {late_s / 60:g} minutes of recording and retiring, against after {early_s / 60:g}"
    return PartReport([Result(work, "x", [{"ours": late / early}], [at_most(1, "no larger")])])


async def _measure(folder: Path, early_s: float, late_s: float) -> tuple[int, int]:
    path = folder / "ledger.sqlite"
    begun = time.monotonic()
    retired = 0
    async with open_ledger(f"sqlite:///{path}") as ledger:
        batches = itertools.count()

        async def record_and_retire() -> None:
            nonlocal retired
            while time.monotonic() < begun + late_s:
                for rollout_id, commits in sample_rollouts(f"batch-{next(batches)}", 8, CALLS).items():
                    for commit in commits:
                        await ledger.record(commit)
                    await ledger.retire([rollout_id])
                    retired += 1

        working = asyncio.gather(*(record_and_retire() for _ in range(TASKS)))
        await asyncio.sleep(early_s)
        early = path.stat().st_size
        print(f"  after {early_s:g} s: {await _state(ledger, early, retired)}", flush=True)
        await working
        late = path.stat().st_size
        print(f"  after {late_s:g} s: {await _state(ledger, late, retired)}", flush=True)
    return early, late


async def _state(ledger: CaptureLedger, size: int, retired: int) -> str:
    waiting = (await ledger.summary()).waiting_rows
    return f"{size / 1e6:,.1f} MB, {retired:,} rollouts retired, {waiting:,} rows wait for the purge"
