"""Worker processes whose connections to PostgreSQL fail, and whose PostgreSQL is killed: what they saw is allowed."""

import asyncio
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from fault_proxy import FaultProxy
from ledger_actor import act, read_all, read_notes
from ledger_history import FOREVER, Event, violations
from postgres_server import PostgresServer, running_postgres
from rollout_control_server.ledger import open_ledger

PROCESSES = 4
OPERATIONS = 40
KILLS = 20 if "LEDGER_KILLS" in os.environ else 3
"""`nox -s crash` sets it, to how often it kills a process that uses a ledger in a file; a server takes longer."""
ROLLOUT_IDS = ("a", "b", "c", "d", "e", "f")


@contextmanager
def workers(url: str, directory: Path, operations: int) -> Iterator[list[Path]]:
    """Runs processes that use the ledger, and yields where they write their notes."""
    spawn = multiprocessing.get_context("spawn")
    notes = [directory / f"notes-{number}" for number in range(PROCESSES)]
    processes = [spawn.Process(target=act, args=(url, path, ROLLOUT_IDS, operations)) for path in notes]
    for process in processes:
        process.start()
    try:
        yield notes
    finally:
        for process in processes:
            process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES


async def read_rollouts(url: str) -> list[Event]:
    async with open_ledger(url) as ledger:
        return await read_all(ledger, ROLLOUT_IDS)


def lost_attempts(events: list[Event]) -> list[Event]:
    """Returns what may have been besides: a row that was kept by an attempt whose acknowledgement was lost.

    It was removed before the next attempt, which then found a fence, or another commit of the call.
    """
    return [
        msgspec.structs.replace(event, outcome="unknown")
        for event in events
        if event.kind == "record" and event.outcome in {"discarded", "conflict"}
    ]


def assert_allowed(url: str, notes: list[Path]) -> None:
    """Sees that the history is allowed, and that most of it was acknowledged."""
    events = [event for path in notes for event in read_notes(path, killed_at=FOREVER)]
    assert violations([*events, *lost_attempts(events), *asyncio.run(read_rollouts(url))]) == []
    outcomes = [event.outcome for event in events]
    assert outcomes.count("unknown") < len(outcomes) / 2
    for outcome in ("kept", "discarded", "rows", "retired", "removed", "absent"):
        assert outcomes.count(outcome) >= 5


def test_connections_that_are_cut_reset_and_stalled(
    postgres: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    """At random points, and above all where a COMMIT would be acknowledged."""
    asyncio.run(read_rollouts(postgres_url))
    proxy = FaultProxy(postgres.port, seed=7)
    with proxy.running():
        url = postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/") + "&sslmode=disable"
        proxy.fault_rate = 0.05
        with workers(url, tmp_path, OPERATIONS) as notes:
            pass
    assert_allowed(postgres_url, notes)
    for fault in ("cut", "reset", "stall"):
        assert proxy.faults[fault] >= 3


def test_a_server_that_is_killed_under_load(tmp_path: Path) -> None:
    """With SIGKILL, all its processes, again and again. The role's wish to lose a little in a crash is not heard."""
    with running_postgres(wal_writer_delay="10s") as server:
        server.execute("ALTER ROLE postgres SET synchronous_commit = off")
        asyncio.run(read_rollouts(server.url))
        with workers(server.url, tmp_path, 60 * KILLS) as notes:
            for number in range(KILLS):
                time.sleep(random.Random(number).uniform(0.5, 2.0))
                server.kill()
                server.start(wal_writer_delay="10s")
        assert_allowed(server.url, notes)
