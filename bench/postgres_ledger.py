"""PostgresLedger beside SqliteLedger, in one run, on one machine that also runs PostgreSQL and the tasks that write.

Every figure is the median of some rounds, in which the two ledgers take turns. docs/scale.md reckons with the results.

    nox -s bench-postgres            (or: PYTHONPATH=tests python bench/postgres_ledger.py)
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
from multiprocessing.synchronize import Barrier
from pathlib import Path

import asyncpg
from postgres_server import PostgresServer, running_postgres
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.records import CaptureCommit
from rollout_control_server.samples import sample_conversation

CALLS = 10
"""Calls of a rollout, but for the manifest that is read."""
ROUNDS = 3
STORED = (300, 3_000, 30_000)
RETIRED = 4096
PURGE_S = 5.0
"""Time for the purge, so that it is over when the next figure is taken."""

Urls = dict[str, str]


def conversations(rollouts: int) -> list[list[CaptureCommit]]:
    return [sample_conversation(uuid.uuid4().hex, CALLS) for _ in range(rollouts)]


async def write(ledger: CaptureLedger, rollouts: list[list[CaptureCommit]], tasks: int) -> None:
    """Records rollouts, each call after its parent, in so many tasks."""
    left = iter(rollouts)

    async def work() -> None:
        for rollout in left:
            for commit in rollout:
                assert await ledger.record(commit)

    await asyncio.gather(*(work() for _ in range(tasks)))


async def write_rate(url: str, tasks: int, rollouts: int) -> float:
    """Returns rows per second."""
    batch = conversations(rollouts)
    async with open_ledger(url) as ledger:
        await ledger.check_ready()
        begun = time.perf_counter()
        await write(ledger, batch, tasks)
        return rollouts * CALLS / (time.perf_counter() - begun)


def write_in_a_process(url: str, tasks: int, rollouts: int, ready: Barrier) -> None:
    batch = conversations(rollouts)

    async def run() -> None:
        async with open_ledger(url) as ledger:
            await ledger.check_ready()
            await asyncio.to_thread(ready.wait)
            await write(ledger, batch, tasks)
        await asyncio.to_thread(ready.wait)

    asyncio.run(run())


def write_rate_of_processes(url: str, processes: int, tasks: int, rollouts: int) -> float:
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(processes + 1)
    workers = [spawn.Process(target=write_in_a_process, args=(url, tasks, rollouts, ready)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    ready.wait()
    begun = time.perf_counter()
    ready.wait()
    taken = time.perf_counter() - begun
    for worker in workers:
        worker.join()
    return processes * rollouts * CALLS / taken


async def manifest_ms(url: str, calls: int, times: int = 200) -> float:
    rollout = sample_conversation(uuid.uuid4().hex, calls)
    async with open_ledger(url) as ledger:
        await write(ledger, [rollout], 1)
        taken = [await timed(ledger.manifest(rollout[0].rollout_id)) for _ in range(times)]
    return statistics.median(taken) * 1e3


async def retire_ms(url: str) -> float:
    batch = conversations(RETIRED)
    async with open_ledger(url) as ledger:
        await write(ledger, batch, 256)
        taken = await timed(ledger.retire([rollout[0].rollout_id for rollout in batch]))
        await asyncio.sleep(PURGE_S)
        return taken * 1e3


async def timed(operation: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await operation
    return time.perf_counter() - begun


def shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2g}"


class Table:
    """Collects rows of two figures, and prints them while they come."""

    def __init__(self) -> None:
        self.lines = ["| | PostgresLedger | SqliteLedger | spread of each |", "|---|--:|--:|---|"]

    def measure(self, title: str, unit: str, new_urls: Callable[[], Urls], figure: Callable[[str], float]) -> None:
        """Adds the medians of some rounds, in which the ledgers take turns."""
        figures: dict[str, list[float]] = {}
        urls = new_urls()
        for _ in range(ROUNDS):
            for kind, url in urls.items():
                figures.setdefault(kind, []).append(figure(url))
        medians = [f"{shown(statistics.median(found))} {unit}" for found in figures.values()]
        spread = [f"{shown(min(found))} to {shown(max(found))}" for found in figures.values()]
        self.lines.append(f"| {title} | {' | '.join(medians)} | {'; '.join(spread)} |")
        print(self.lines[-1], flush=True)


async def sizes(server: PostgresServer, schema: str) -> str:
    """Returns what a row, a rollout and a fence cost, of a ledger of which nothing but fences is left in the end."""
    connection = await asyncpg.connect(server.url)

    async def table_size(table: str) -> int:
        await connection.execute(f"VACUUM (ANALYZE) {schema}.{table}")
        size: int = await connection.fetchval(f"SELECT pg_total_relation_size('{schema}.{table}')")
        return size

    batch = conversations(5_000)
    async with open_ledger(f"{server.url}?schema={schema}") as ledger:
        before = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
        await write(ledger, batch, 256)
        log = await connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1)", before)
        rows = len(batch) * CALLS
        call, rollout = await table_size("call_record") / rows, await table_size("rollout") / len(batch)
        json_size = await connection.fetchval(f"SELECT avg(length(record_json)) FROM {schema}.call_record")
        await ledger.retire([one[0].rollout_id for one in batch])
        await ledger.delete([one[0].rollout_id for one in batch])
        await ledger.retire([uuid.uuid4().hex for _ in range(50_000)])
        fence = await table_size("rollout") / 50_000
    await connection.close()
    return (
        f"A call takes {call:,.0f} bytes with its indexes ({float(json_size):,.0f} of them its JSON), and "
        f"{float(log) / rows:,.0f} bytes of write-ahead log. A rollout takes {rollout:,.0f} bytes besides, a fence "
        f"{fence:,.0f}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="where to write the results as Markdown")
    output: Path | None = parser.parse_args().output
    table = Table()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder, running_postgres() as server:

        def new_urls() -> Urls:
            name = f"bench_{uuid.uuid4().hex}"
            return {"postgres": f"{server.url}?schema={name}", "sqlite": f"sqlite:///{folder}/{name}.sqlite"}

        for tasks, rollouts in ((1, 200), (32, 1000), (256, 1500)):
            table.measure(
                f"rows recorded by {tasks} tasks",
                "/s",
                new_urls,
                lambda url, tasks=tasks, rollouts=rollouts: asyncio.run(write_rate(url, tasks, rollouts)),
            )
        table.measure(
            "rows recorded by 4 processes of 64 tasks",
            "/s",
            new_urls,
            lambda url: write_rate_of_processes(url, 4, 64, 400),
        )
        for calls in (10, 100, 1000):
            table.measure(
                f"manifest of {calls} calls",
                "ms",
                new_urls,
                lambda url, calls=calls: asyncio.run(manifest_ms(url, calls)),
            )
        table.measure(
            f"retire of {RETIRED} rollouts of {CALLS} calls", "ms", new_urls, lambda url: asyncio.run(retire_ms(url))
        )
        urls = new_urls()
        stored = 0
        for rollouts in STORED:
            for url in urls.values():
                asyncio.run(write_rate(url, 256, rollouts - stored))
            stored = rollouts
            table.measure(
                f"with {stored:,} rollouts stored: rows recorded by 32 tasks",
                "/s",
                lambda: urls,
                lambda url: asyncio.run(write_rate(url, 32, 300)),
            )
            table.measure(
                f"with {stored:,} rollouts stored: manifest of 100 calls",
                "ms",
                lambda: urls,
                lambda url: asyncio.run(manifest_ms(url, 100)),
            )
            table.measure(
                f"with {stored:,} rollouts stored: retire of {RETIRED}",
                "ms",
                lambda: urls,
                lambda url: asyncio.run(retire_ms(url)),
            )
        told = asyncio.run(sizes(server, f"bench_{uuid.uuid4().hex}"))
    print(told)
    if output is not None:
        machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
        head = "# PostgresLedger beside SqliteLedger\n\nBy `nox -s bench-postgres`. "
        head += f"{machine}, PostgreSQL on the same cores.\n"
        output.write_text("\n".join([head, *table.lines, "", told]))


if __name__ == "__main__":
    main()
