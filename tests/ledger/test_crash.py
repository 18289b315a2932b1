"""Processes that use a ledger are killed at random moments, and no acknowledged effect is lost.

The environment variable LEDGER_KILLS says how often; `nox -s crash` kills 200.
"""

import asyncio
import multiprocessing
import os
import random
import shutil
import time
from contextlib import closing
from pathlib import Path

import asyncpg
from ledger_actor import act_until_killed, read_all, read_notes
from ledger_history import Event, violations
from rollout_control_server.ledger import open_ledger
from rollout_control_server.ledger.sqlite.connections import connect

KILLS = int(os.environ.get("LEDGER_KILLS", "20"))
KILLS_OF_ONE_SET_OF_ROLLOUTS = 5


def test_a_killed_process_loses_nothing_that_was_acknowledged(ledger_url: str, tmp_path: Path) -> None:
    asyncio.run(read_after_crash(ledger_url, []))
    # Each process is forked from one that has imported everything, so that it is killed at work.
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload(["ledger_actor"])
    events: list[Event] = []
    kinds_cut_short: set[str] = set()
    path = Path(ledger_url.removeprefix("sqlite:///")) if ledger_url.startswith("sqlite:") else None
    for kill in range(KILLS):
        if kill % KILLS_OF_ONE_SET_OF_ROLLOUTS == 0:
            events.clear()
        rollout_ids = [f"{kill // KILLS_OF_ONE_SET_OF_ROLLOUTS}-{name}" for name in "abc"]
        notes = tmp_path / f"notes-{kill}"
        process = start.Process(target=act_until_killed, args=(ledger_url, notes, rollout_ids))
        process.start()
        while not notes.exists() or notes.stat().st_size == 0:
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.15))
        process.kill()
        process.join()
        while asyncio.run(has_other_clients(ledger_url)):
            time.sleep(0.005)
        killed = list(read_notes(notes, killed_at=time.monotonic_ns()))
        kinds_cut_short.update(event.kind for event in killed if event.outcome == "unknown")
        events += killed
        if path is not None and purge_was_cut_short(path, tmp_path / "left"):
            kinds_cut_short.add("purge")
        events += asyncio.run(read_after_crash(ledger_url, sorted({event.rollout_id for event in killed})))
        assert violations(events) == []
    # It was worth checking. What a few kills meet beside records is left to chance.
    assert "record" in kinds_cut_short
    assert kinds_cut_short & {"retire", "delete"}
    if KILLS >= 200:
        assert {"retire", "delete"} <= kinds_cut_short
        assert path is None or "purge" in kinds_cut_short


async def has_other_clients(ledger_url: str) -> bool:
    """Whether a database server still does what a killed process has asked of it."""
    if not ledger_url.startswith("postgresql:"):
        return False
    connection = await asyncpg.connect(ledger_url.split("?", maxsplit=1)[0])
    others = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    found: bool = await connection.fetchval(f"SELECT EXISTS (SELECT {others})")
    await connection.close()
    return found


async def read_after_crash(ledger_url: str, rollout_ids: list[str]) -> list[Event]:
    async with open_ledger(ledger_url) as ledger:
        await ledger.check_ready()
        return await read_all(ledger, rollout_ids)


def purge_was_cut_short(path: Path, directory: Path) -> bool:
    """Sees that nothing in a SQLite file and its WAL is torn or lost, and tells whether rows were left to purge.

    It looks at a copy, so that what a handle will open is what the killed process has left.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for part in (path, path.with_name(f"{path.name}-wal")):
        if part.exists():
            shutil.copy(part, directory)
    with closing(connect(directory / path.name)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        known = "SELECT generation FROM rollout WHERE generation IS NOT NULL UNION SELECT generation FROM purge_queue"
        assert connection.execute(f"SELECT count(*) FROM call WHERE generation NOT IN ({known})").get == 0
        return connection.execute("SELECT 1 FROM purge_queue").fetchone() is not None
