"""Files that older versions wrote: what they hold is kept, whenever the migration is cut short.

`old_files` has a ledger of each older version as an SQL dump, and what that version answered of it.
"""

import asyncio
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from rollout_control_server.errors import LedgerCorruptError, LedgerUnavailableError, RolloutRetiredError
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.checked_rows import CheckedCommit, decode_commit
from rollout_control_server.ledger.conformance.steps import assert_empty, record_all
from rollout_control_server.ledger.sqlite.connections import connect
from rollout_control_server.samples import sample_commit

OLD_FILES = Path(__file__).with_name("old_files")
EXPECTED: dict[str, Any] = json.loads((OLD_FILES / "expected.json").read_text())
KILLS = int(os.environ.get("LEDGER_KILLS", "20"))

# Each statement with which a program of version 1 or 2 writes; it has the file open, and knows no checksums.
OLD_PROGRAM = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
print(connection.execute("SELECT count(*) FROM rollout").fetchone()[0], flush=True)
sys.stdin.readline()
for statement in (
    "INSERT INTO rollout VALUES ('new', 99, NULL)",
    "INSERT INTO call VALUES (1 << 40, '{}', NULL, NULL, NULL, NULL, NULL, NULL)",
    "INSERT INTO finder VALUES (99, 1, 1)",
    "INSERT INTO block_finder VALUES (99, 1, 1)",
    "INSERT INTO rollout SELECT 'r', NULL, 7 WHERE true ON CONFLICT (rollout_id) "
    "DO UPDATE SET generation = NULL, fenced_at = excluded.fenced_at WHERE generation IS NOT NULL",
    "INSERT INTO purge SELECT generation FROM rollout WHERE generation IS NOT NULL",
    "SELECT rollout_id, fenced_at FROM rollout",
    "SELECT json, failed FROM call",
    "SELECT 1 FROM rollout, call, block_finder, purge LIMIT 0",
    "SELECT 1 FROM rollout, call, finder, purge LIMIT 0",
):
    try:
        connection.execute(statement)
    except sqlite3.OperationalError:
        continue
    sys.exit(f"the old program could do this: {statement}")
"""


def old_file(path: Path, version: int) -> Path:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute((OLD_FILES / f"version-{version}.sql").read_text())
        # Rows that wait for the purge make the file larger than SQLite's cache of 2 MB has room for.
        connection.execute(
            "INSERT INTO purge VALUES (1 << 30); "
            "WITH RECURSIVE place (seq) AS (SELECT 0 UNION ALL SELECT seq + 1 FROM place WHERE seq < 3999) "
            "INSERT INTO call (call_rowid, json) SELECT (1 << 54) + seq, printf('%.1000c', 'x') FROM place"
        )
    return path


@pytest.fixture(params=[1, 2])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return old_file(tmp_path / "ledger.sqlite", request.param)


def look(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(connect(path)) as connection:
        return connection.execute(statement).fetchall()


async def check_content(ledger: SqliteLedger) -> None:
    """Sees that the ledger has all that the older version said that it had."""
    for rollout_id, manifest in EXPECTED["manifests"].items():
        assert json.loads(await ledger.manifest(rollout_id)) == manifest
        assert await ledger.has_rows(rollout_id)
    for rollout_id, lookups in EXPECTED["parents"].items():
        for fingerprint, version, parent in lookups:
            found = await ledger.find_parent(rollout_id, fingerprint, version)
            if parent is None:
                assert found is None
            else:
                assert found is not None
                assert found.lookup is not None
                lookup = (found.lookup.context_len, found.lookup.context_digest)
                assert [found.record.model_call_id, list(found.staging_chain), *lookup] == parent
    for rollout_id in EXPECTED["gone"]:
        await assert_empty(ledger, rollout_id)
    for rollout_id in EXPECTED["retired"]:
        with pytest.raises(RolloutRetiredError):
            await ledger.manifest(rollout_id)
    listed = (await ledger.rollouts()).rollouts
    assert [entry.rollout_id for entry in listed] == sorted([*EXPECTED["manifests"], *EXPECTED["retired"]])
    assert {entry.rollout_id: entry.retired_at for entry in listed if entry.state == "retired"} == EXPECTED["retired"]
    for entry in listed:
        if entry.state == "live":
            manifest = EXPECTED["manifests"][entry.rollout_id]
            assert (entry.calls, entry.failures) == (len(manifest["records"]), len(manifest["failures"]))
            assert (entry.first_recorded_at, entry.last_recorded_at, entry.changed_at) == (None, None, None)
    verification = await ledger.verify()
    assert verification.damages == []
    assert verification.rows == sum(
        len(manifest["records"]) + len(manifest["failures"]) for manifest in EXPECTED["manifests"].values()
    )


async def test_an_older_file_keeps_what_it_has_and_goes_on(path: Path, tmp_path: Path) -> None:
    async with SqliteLedger(path) as ledger:
        await check_content(ledger)
        # Each record again is the same commit, whatever of it the older version stored in another way.
        for rollout_id in EXPECTED["manifests"]:
            for row, recorded_at in (await ledger.export(rollout_id)).rows:
                assert recorded_at is None
                if isinstance(row, CheckedCommit):
                    assert await ledger.record(decode_commit(row))
                else:
                    assert await ledger.record_failure(rollout_id, row.model_call_id, row.reason)
        await check_content(ledger)
        await record_all(ledger, [sample_commit("deep", "one more"), sample_commit("new", "c")])
        assert (await ledger.rollouts(prefix="deep")).rollouts[0].last_recorded_at is not None
        assert (await ledger.delete(["odd", "retired"])).removed == ["odd"]
        await assert_empty(ledger, "retired")
    async with SqliteLedger(path) as ledger:
        assert (await ledger.verify()).damages == []
    fresh = tmp_path / "fresh.sqlite"
    await SqliteLedger(fresh).aclose()
    layout = "SELECT type, name, sql FROM sqlite_schema ORDER BY name"
    for statement in (layout, "PRAGMA user_version", "PRAGMA application_id", "PRAGMA journal_mode"):
        assert look(path, statement) == look(fresh, statement)


async def test_the_rows_that_waited_for_the_purge_are_gone(path: Path) -> None:
    async with SqliteLedger(path) as ledger:
        assert (await ledger.summary()).waiting_rows == 0
    live = sum(len(each["records"]) + len(each["failures"]) for each in EXPECTED["manifests"].values())
    assert look(path, "SELECT count(*) FROM call") == [(live,)]


def migrate(path: Path, begun: "multiprocessing.synchronize.Event") -> None:
    begun.set()
    SqliteLedger(path)


def test_a_migration_that_is_killed_is_ended_by_the_next(tmp_path: Path) -> None:
    """At random moments, so that it is cut short before, in and after each of its steps."""
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload(["rollout_control_server.ledger.sqlite"])
    whole = [old_file(tmp_path / f"version-{version}.sqlite", version) for version in (1, 2)]
    seconds = 0.0
    versions: set[int] = set()
    for kill in range(KILLS):
        path = tmp_path / f"{kill}.sqlite"
        shutil.copy(whole[kill % 2], path)
        begun = start.Event()
        process = start.Process(target=migrate, args=(path, begun))
        process.start()
        assert begun.wait(60)
        began = time.monotonic()
        if kill == 0:
            # How long it takes.
            process.join()
            seconds = time.monotonic() - began
        else:
            time.sleep(random.uniform(0, seconds))
        process.kill()
        process.join()
        # In a process of its own, so that nothing mends the file before the next handle.
        versions.add(version_of(path))
        asyncio.run(open_and_check(path))
        for leftover in tmp_path.glob(f"{kill}.sqlite*"):
            leftover.unlink()
    assert 3 in versions
    if KILLS >= 200:
        assert {1, 2, 1003, 3} <= versions


def version_of(path: Path) -> int:
    program = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('PRAGMA user_version').fetchone()[0])"
    copies = path.with_name("copies")
    shutil.rmtree(copies, ignore_errors=True)
    copies.mkdir()
    for part in path.parent.glob(f"{path.name}*"):
        shutil.copy(part, copies)
    return int(subprocess.check_output([sys.executable, "-c", program, copies / path.name]))


async def open_and_check(path: Path) -> None:
    async with SqliteLedger(path) as ledger:
        await check_content(ledger)


def test_processes_that_open_one_old_file_at_once_migrate_it_once(path: Path) -> None:
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload(["rollout_control_server.ledger.sqlite"])
    begun = start.Event()
    processes = [start.Process(target=migrate, args=(path, begun)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    asyncio.run(open_and_check(path))


def test_an_old_program_that_has_the_file_open_writes_nothing_more(path: Path) -> None:
    """And the file is not migrated before it is closed: SQLite would copy pages without checksums for it."""
    command = [sys.executable, "-c", OLD_PROGRAM, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert int(program.stdout.readline()) == len(EXPECTED["manifests"]) + len(EXPECTED["retired"])
        for _ in range(2):
            with pytest.raises(LedgerUnavailableError, match="stop those of the older version"):
                SqliteLedger(path, busy_timeout_s=0.2)
        program.communicate("go on\n")
    assert program.returncode == 0
    asyncio.run(open_and_check(path))


def test_a_damaged_old_file_is_refused_and_not_half_migrated(path: Path) -> None:
    """Its rows stay as they are, for whoever can mend them."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE call SET json = substr(json, 1, 40) WHERE call_rowid = (3 << 24) + 2")
        before = connection.execute("SELECT * FROM call").fetchall()
    for _ in range(2):
        with pytest.raises(LedgerCorruptError, match="row 2 of rollout 'branched' of the ledger is damaged"):
            SqliteLedger(path)
    assert look(path, "SELECT * FROM old_call") == before
