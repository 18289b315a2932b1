"""What a copy costs: SQLite to PostgreSQL, and to and from an export file; rows per second, and the process's memory.

    PYTHONPATH=tests python bench/copying.py [--folder WHERE] [--rollouts 20000] [--calls 50]

The source is filled by imports, whose rows are encoded once and renamed, so that this takes less time than the copies.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from postgres_server import running_postgres
from rollout_control_server import open_ledger
from rollout_control_server.ledger.checked_rows import check_commit
from rollout_control_server.ledger.results import LedgerRow, RolloutExport
from rollout_control_server.ledger.staging_chains import StagingChains
from rollout_control_server.samples import sample_conversation

BATCH = 100


async def fill(url: str, rollouts: int, calls: int) -> None:
    commits = sample_conversation("r", calls)
    chains = StagingChains()
    async with open_ledger(url) as ledger:
        for start in range(0, rollouts, BATCH):
            batch = []
            for number in range(start, min(start + BATCH, rollouts)):
                rollout_id = f"train-{number:06}"
                renamed = [msgspec.structs.replace(commit, rollout_id=rollout_id) for commit in commits]
                rows = [LedgerRow(check_commit(commit, chains), time.time()) for commit in renamed]
                batch.append(RolloutExport(rollout_id, None, rows))
            await ledger.import_(batch)


def measure(source: str, destination: str, rows: int) -> None:
    """Copies in a process of its own, whose memory is then known."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "rollout_control_console", "copy", source, destination], check=True)
    took_s = time.perf_counter() - started
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    kinds = [url.partition(":")[0] for url in (source, destination)]
    print(
        f"{kinds[0]} to {kinds[1]}: {rows / took_s:,.0f} rows/s, {took_s:,.1f} s, at most {peak_mib:,.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; a temporary one if not given")
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--calls", type=int, default=50)
    options = parser.parse_args()
    rows = options.rollouts * options.calls
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, running_postgres() as postgres:
        source = f"sqlite:///{folder}/source.sqlite"
        asyncio.run(fill(source, options.rollouts, options.calls))
        print(f"{options.rollouts:,} rollouts of {options.calls} calls", flush=True)
        # Of the processes that have ended, the largest counts; so the largest copy comes last.
        measure(source, f"file://{folder}/export.jsonl.gz", rows)
        measure(f"file://{folder}/export.jsonl.gz", f"sqlite:///{folder}/again.sqlite", rows)
        measure(source, postgres.url, rows)


if __name__ == "__main__":
    main()
