"""What PostgresLedger's operations cost on an empty ledger and on one with two million rows in 100,000 rollouts.

The large one is filled inside the database, with copies of a rollout that was recorded through the ledger. Each figure
is the median of some rounds, in which the two take turns.

    PYTHONPATH=tests python bench/postgres_large.py --rollouts 100000 [--output FILE]
"""

import argparse
import asyncio
import os
import platform
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
from postgres_server import PostgresServer, running_postgres
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.samples import sample_conversation

CALLS = 20
"""Of each rollout."""
ROUNDS = 5
READS = 200
"""Manifests and parents of one figure, each of another rollout."""
RETIRED = 200


async def fill(server: PostgresServer, schema: str, rollouts: int) -> None:
    """Adds so many rollouts, as the ledger would have recorded them."""
    template = f"template-{uuid.uuid4().hex}"
    async with open_ledger(f"{server.url}?schema={schema}") as ledger:
        for commit in sample_conversation(template, CALLS):
            await ledger.record(commit)
    connection = await asyncpg.connect(server.url)
    generation = await connection.fetchval(f"SELECT generation FROM {schema}.rollout WHERE rollout_id = $1", template)
    names = await connection.fetch(
        "SELECT column_name::text FROM information_schema.columns WHERE table_schema = $1 AND table_name = 'rollout'",
        schema,
    )
    kept = ", ".join(name for (name,) in names if name not in ("rollout_id", "generation"))
    await connection.execute(
        f"INSERT INTO {schema}.rollout (rollout_id, generation, {kept}) "
        f"SELECT 'stored-' || n, nextval('{schema}.generation'), {kept} "
        f"FROM {schema}.rollout, generate_series(1, {rollouts}) AS n WHERE rollout_id = '{template}'"
    )
    names = await connection.fetch(
        "SELECT column_name::text FROM information_schema.columns WHERE table_schema = $1 "
        "AND table_name = 'call_record' AND column_name <> 'generation'",
        schema,
    )
    columns = ", ".join(f"c.{name}" for (name,) in names)
    await connection.execute(
        f"INSERT INTO {schema}.call_record (generation, {columns.replace('c.', '')}) "
        f"SELECT r.generation, {columns} FROM {schema}.rollout r, {schema}.call_record c "
        f"WHERE r.rollout_id LIKE 'stored-%' AND c.generation = {generation}"
    )
    await connection.execute(f"VACUUM (ANALYZE) {schema}.rollout")
    await connection.execute(f"VACUUM (ANALYZE) {schema}.call_record")
    await connection.close()


async def seconds_of(operations: list[Awaitable[object]]) -> float:
    """Returns what one of these operations takes, one after the other."""
    begun = time.perf_counter()
    for operation in operations:
        await operation
    return (time.perf_counter() - begun) / len(operations)


async def measure(ledger: CaptureLedger) -> dict[str, float]:
    """Returns milliseconds of each operation; new rollouts are recorded for it, and retired in the end."""
    new = [sample_conversation(uuid.uuid4().hex, CALLS) for _ in range(RETIRED)]
    figures = {"record, one at a time": await seconds_of([ledger.record(commit) for commit in new[0]])}

    async def record(rollout: int) -> None:
        for commit in new[rollout]:
            await ledger.record(commit)

    begun = time.perf_counter()
    await asyncio.gather(*map(record, range(1, RETIRED)))
    figures["record, many at a time"] = (time.perf_counter() - begun) / CALLS / (RETIRED - 1)
    ids = [rollout[0].rollout_id for rollout in new]
    lookup = new[0][CALLS // 2].lookup
    assert lookup is not None
    figures[f"manifest of {CALLS} calls"] = await seconds_of([ledger.manifest(ids[n % RETIRED]) for n in range(READS)])
    figures["parent"] = await seconds_of([ledger.find_parent(ids[0], lookup.fingerprint, 2) for n in range(READS)])
    figures["a page of 100 rollouts"] = await seconds_of([ledger.rollouts(limit=100, after="m") for _ in range(20)])
    figures[f"retire of {RETIRED} rollouts"] = await seconds_of([ledger.retire(ids)])
    figures["summary"] = await seconds_of([ledger.summary() for _ in range(5)])
    return {name: 1000 * figure for name, figure in figures.items()}


async def compare(server: PostgresServer, rollouts: int, say: Callable[[str], None]) -> None:
    urls = [f"{server.url}?schema=bench_{kind}" for kind in ("empty", "large")]
    begun = time.perf_counter()
    await fill(server, "bench_large", rollouts)
    say(f"Filled with {rollouts * CALLS:,} rows in {time.perf_counter() - begun:.0f} s.")
    say("")
    say(f"| ms | empty | {rollouts * CALLS:,} rows | spread of each |")
    say("|---|--:|--:|---|")
    figures: list[dict[str, list[float]]] = [{}, {}]
    for _ in range(ROUNDS):
        for url, found in zip(urls, figures, strict=True):
            async with open_ledger(url) as ledger:
                await ledger.check_ready()
                for name, figure in (await measure(ledger)).items():
                    found.setdefault(name, []).append(figure)
    for name in figures[0]:
        medians = " | ".join(f"{statistics.median(found[name]):.3g}" for found in figures)
        spread = "; ".join(f"{min(found[name]):.3g} to {max(found[name]):.3g}" for found in figures)
        say(f"| {name} | {medians} | {spread} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000, help=f"of {CALLS} calls each (default: 100000)")
    parser.add_argument("--output", type=Path, help="a file to whose end the table is appended")
    arguments = parser.parse_args()
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    say(
        f"By bench/postgres_large.py: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}."
    )
    with running_postgres(max_wal_size="8GB") as server:
        asyncio.run(compare(server, arguments.rollouts, say))
    if arguments.output is not None:
        with arguments.output.open("a") as file:
            file.write("\n".join(["", "## Beside an empty ledger", "", *lines, ""]))


if __name__ == "__main__":
    main()
