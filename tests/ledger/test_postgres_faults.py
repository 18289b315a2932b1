"""What PostgresLedger does when its database fails: each fault is real, told as the contract says, and ends."""

import asyncio
import shutil
import subprocess
import sys
import traceback
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from postgres_server import PostgresServer, running_postgres
from rollout_control_server.errors import (
    LedgerCorruptError,
    LedgerError,
    LedgerRefusedError,
    LedgerUnavailableError,
)
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.samples import sample_commit, sample_conversation


@pytest.fixture
def schema() -> str:
    return f"test_{uuid.uuid4().hex}"


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[Any]:
    """A superuser's connection, as an operator has it."""
    connection = await asyncpg.connect(postgres.url)
    yield connection
    await connection.close()


@pytest.fixture
async def ledger(postgres: PostgresServer, schema: str) -> AsyncIterator[CaptureLedger]:
    """A ledger with one row `c` of rollout `r`, whose operations may take two seconds."""
    async with open_ledger(f"{postgres.url}?schema={schema}&operation_timeout_s=2") as ledger:
        await ledger.record(sample_commit("r", "c"))
        yield ledger


@pytest.fixture
async def role(database: Any) -> AsyncIterator[str]:
    """A superuser's role of the test's own, whose settings it may change."""
    name = f"role_{uuid.uuid4().hex}"
    await database.execute(f"CREATE ROLE {name} LOGIN SUPERUSER")
    yield name
    await database.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'")
    await database.execute(f"REASSIGN OWNED BY {name} TO postgres; DROP ROLE {name}")


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that the test may harm."""
    with running_postgres() as server:
        yield server


async def assert_works(ledger: CaptureLedger) -> None:
    rollout_id = uuid.uuid4().hex
    await ledger.check_ready()
    for commit in sample_conversation(rollout_id, 3):
        assert await ledger.record(commit) is True
    assert await ledger.has_rows(rollout_id) is True
    assert (await ledger.retire([rollout_id])).removed == [rollout_id]


async def assert_writes_are_unavailable(ledger: CaptureLedger, match: str) -> None:
    """Each of them, and one at least tells why: another may have had time for less."""
    outcomes = await asyncio.gather(
        ledger.record(sample_commit("r", "new")),
        ledger.record_failure("r", "new", "reason"),
        ledger.retire(["r", "new"]),
        ledger.delete(["r"]),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [LedgerUnavailableError] * 4
    assert any(match in str(outcome) for outcome in outcomes)


async def test_a_server_that_is_killed_and_comes_back(own_postgres: PostgresServer) -> None:
    async with open_ledger(f"{own_postgres.url}?operation_timeout_s=2") as ledger:
        await ledger.record(sample_commit("r", "c"))
        before = await ledger.manifest("r")
        await asyncio.to_thread(own_postgres.kill)
        await assert_writes_are_unavailable(ledger, "cannot be reached")
        with pytest.raises(LedgerUnavailableError, match="cannot be reached"):
            await ledger.manifest("r")
        with pytest.raises(LedgerUnavailableError):
            await ledger.check_ready()
        waiting = asyncio.ensure_future(_until_it_works(ledger))
        await asyncio.to_thread(own_postgres.start)
        await waiting
        assert await ledger.manifest("r") == before


async def _until_it_works(ledger: CaptureLedger) -> None:
    while True:
        try:
            await assert_works(ledger)
        except LedgerUnavailableError:
            continue
        return


async def test_an_operation_outlives_a_restart_within_its_time(own_postgres: PostgresServer) -> None:
    async with open_ledger(f"{own_postgres.url}?operation_timeout_s=60") as ledger:
        await ledger.record(sample_commit("r", "c"))
        await asyncio.to_thread(own_postgres.kill)
        writes = [asyncio.ensure_future(ledger.record(commit)) for commit in sample_conversation("s", 20)]
        removal = asyncio.ensure_future(ledger.retire(["r", "never"]))
        await asyncio.to_thread(own_postgres.start)
        assert await asyncio.gather(*writes) == [True] * 20
        assert (await removal).removed == ["r"]


async def test_connections_that_are_terminated_under_load(
    postgres: PostgresServer, database: Any, ledger: CaptureLedger, role: str, schema: str
) -> None:
    url = f"postgresql://{role}@127.0.0.1:{postgres.port}/postgres?schema={schema}"
    async with open_ledger(url) as other:
        written = 0
        for round_ in range(8):
            commits = [sample_commit(f"t{index % 40}", f"c{round_}-{index}") for index in range(400)]
            writes = [asyncio.ensure_future(other.record(commit)) for commit in commits]
            await asyncio.sleep(round_ * 0.01)
            await database.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")
            assert await asyncio.gather(*writes) == [True] * len(commits)
            written += len(commits)
    kept = [(await ledger.manifest(f"t{index}")).count(b'"model_call_id"') for index in range(40)]
    assert sum(kept) == written


async def test_a_server_that_becomes_read_only(
    postgres: PostgresServer, database: Any, ledger: CaptureLedger, role: str, schema: str
) -> None:
    """As a primary does that is on its way to be a standby: it still reads."""
    await database.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    url = f"postgresql://{role}@127.0.0.1:{postgres.port}/postgres?schema={schema}&operation_timeout_s=2"
    async with open_ledger(url) as other:
        assert await other.manifest("r") == await ledger.manifest("r")
        await assert_writes_are_unavailable(other, "read-only")
        with pytest.raises(LedgerUnavailableError, match="read-only"):
            await other.check_ready()
        await database.execute(f"ALTER ROLE {role} SET default_transaction_read_only = off")
        await _until_it_works(other)


async def test_a_server_without_a_free_connection(
    postgres: PostgresServer, database: Any, ledger: CaptureLedger, role: str, schema: str
) -> None:
    await database.execute(f"ALTER ROLE {role} NOSUPERUSER CONNECTION LIMIT 0")
    await database.execute(f"GRANT ALL ON SCHEMA {schema} TO {role}")
    await database.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
    await database.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}")
    url = f"postgresql://{role}@127.0.0.1:{postgres.port}/postgres?schema={schema}&operation_timeout_s=2"
    async with open_ledger(url) as other:
        await assert_writes_are_unavailable(other, "too many connections")
        await database.execute(f"ALTER ROLE {role} CONNECTION LIMIT 20")
        await assert_works(other)
    await database.execute(f"DROP OWNED BY {role}")


async def test_a_full_disk(postgres: PostgresServer, database: Any) -> None:
    """The ledger's tables are on a small file system of their own, which other rows fill."""
    with small_file_system(postgres) as directory:
        space = f"space_{uuid.uuid4().hex}"
        await database.execute(f"CREATE TABLESPACE {space} LOCATION '{directory}'")
        await database.execute(f"CREATE DATABASE {space} TABLESPACE {space}")
        url = f"postgresql://postgres@127.0.0.1:{postgres.port}/{space}"
        operator = await asyncpg.connect(url)
        async with open_ledger(f"{url}?operation_timeout_s=2") as ledger:
            await ledger.record(sample_commit("r", "c"))
            before = await ledger.manifest("r")
            await operator.execute("CREATE TABLE filler (bytes bytea)")
            await operator.execute("ALTER TABLE filler ALTER bytes SET STORAGE EXTERNAL")
            for size in (1_000_000, 8_000):
                with pytest.raises(asyncpg.DiskFullError):
                    await _fill(operator, size)
            kept: list[str] = []
            with pytest.raises(LedgerUnavailableError, match="out of disk"):
                await _record_for_ever(ledger, kept)
            assert await ledger.manifest("r") == before
            await operator.execute("DROP TABLE filler")
            await operator.execute("CHECKPOINT")
            assert (await ledger.manifest("full")).count(b'"model_call_id"') == len(kept)
            await assert_works(ledger)
        await operator.close()
        await database.execute(f"DROP DATABASE {space} WITH (FORCE)")
        await database.execute(f"DROP TABLESPACE {space}")


async def _record_for_ever(ledger: CaptureLedger, kept: list[str]) -> None:
    while await ledger.record(sample_commit("full", call_id := f"c{len(kept)}")):
        kept.append(call_id)


async def _fill(operator: Any, size: int) -> None:
    while True:
        await operator.execute("INSERT INTO filler VALUES (convert_to(repeat('x', $1), 'UTF8'))", size)


@contextmanager
def small_file_system(server: PostgresServer) -> Iterator[Path]:
    mount = server.directory / "small"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", mount], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("nobody may mount a small file system here: a PostgreSQL whose disk is full was NOT TESTED")
    try:
        shutil.chown(mount, server.user)
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True)


async def test_a_row_that_the_database_cannot_take_fails_alone(
    ledger: CaptureLedger, database: Any, schema: str
) -> None:
    """Its neighbours, in the same transaction, are kept."""
    await database.execute(
        f"""
        CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '22000'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON {schema}.call_record FOR EACH ROW
          WHEN (NEW.model_call_id = 'bad') EXECUTE FUNCTION {schema}.refuse();
        """
    )
    ids = [f"c{index}" for index in range(50)] + ["bad"] + [f"d{index}" for index in range(50)]
    outcomes = await asyncio.gather(
        *(ledger.record(sample_commit(f"r{call_id[0]}", call_id)) for call_id in ids), return_exceptions=True
    )
    for call_id, outcome in zip(ids, outcomes, strict=True):
        if call_id == "bad":
            assert isinstance(outcome, LedgerError)
            assert not isinstance(outcome, LedgerUnavailableError)
        else:
            assert outcome is True
    assert await ledger.has_rows("rb") is False


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("53100", LedgerUnavailableError),  # disk full
        ("53200", LedgerUnavailableError),  # out of memory
        ("57014", LedgerUnavailableError),  # the statement was cancelled
        ("40001", LedgerUnavailableError),  # could not serialize
        ("40P01", LedgerUnavailableError),  # deadlock
        ("55P03", LedgerUnavailableError),  # lock timeout
        ("58030", LedgerUnavailableError),  # input or output failed
        ("XX001", LedgerCorruptError),
        ("42501", LedgerRefusedError),  # no privilege
    ],
)
async def test_each_code_has_its_meaning(
    code: str, kind: type[LedgerError], ledger: CaptureLedger, database: Any, schema: str
) -> None:
    """Those that later attempts may find mended are repeated until the operation's time is over."""
    await database.execute(
        f"""
        CREATE SEQUENCE {schema}.attempts;
        CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN PERFORM nextval('{schema}.attempts'); RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON {schema}.call_record FOR EACH ROW
          EXECUTE FUNCTION {schema}.refuse();
        """
    )
    with pytest.raises(kind) as raised:
        await ledger.record(sample_commit("r", "new"))
    assert isinstance(raised.value, LedgerUnavailableError) == (kind is LedgerUnavailableError)
    attempts = await database.fetchval(f"SELECT last_value FROM {schema}.attempts")
    assert (attempts > 1) == (kind is LedgerUnavailableError)
    await database.execute(f"DROP TRIGGER refuse ON {schema}.call_record")
    await assert_works(ledger)


async def test_a_damaged_page_is_reported_as_damage(own_postgres: PostgresServer) -> None:
    async with open_ledger(own_postgres.url) as ledger:
        for commit in sample_conversation("r", 30):
            await ledger.record(commit)
        operator = await asyncpg.connect(own_postgres.url)
        file = await operator.fetchval("SELECT pg_relation_filepath('rollout_control.call_record')")
        await operator.execute("CHECKPOINT")
        await operator.close()
        await asyncio.to_thread(own_postgres.kill)
        with (own_postgres.data / file).open("r+b") as table:
            table.seek(8192 + 4000)
            table.write(b"damage" * 100)
        await asyncio.to_thread(own_postgres.start)
        with pytest.raises(LedgerCorruptError, match="damaged"):
            await ledger.manifest("r")


@pytest.mark.parametrize("stuck", [1, 30])
async def test_locks_that_are_stuck_stall_no_other_rollout(
    stuck: int, ledger: CaptureLedger, postgres: PostgresServer, schema: str
) -> None:
    """Some are locked and some are only just being made, by a transaction that never ends; then it does."""
    locked = [f"locked-{index}" for index in range(stuck)]
    await asyncio.gather(*(ledger.record(sample_commit(rollout_id, "c")) for rollout_id in locked))
    made = [f"made-{index}" for index in range(stuck)]
    holder = await asyncpg.connect(postgres.url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.fetch(f"SELECT FROM {schema}.rollout WHERE rollout_id = ANY ($1) FOR UPDATE", locked)
    await holder.execute(
        f"INSERT INTO {schema}.rollout SELECT unnest($1::text[]), nextval('{schema}.generation')", made
    )
    blocked = [
        asyncio.ensure_future(ledger.record(sample_commit(rollout_id, f"d{index}")))
        for rollout_id in (*locked, *made)
        for index in range(10)
    ]
    removal = asyncio.ensure_future(ledger.retire(["other", *locked]))
    for round_ in range(20):
        others = [sample_commit(f"o{index}", f"c{round_}") for index in range(20)]
        assert await asyncio.gather(*(ledger.record(commit) for commit in others)) == [True] * 20
        assert await ledger.has_rows(locked[0]) is True
    assert (await ledger.retire([f"o{index}" for index in range(20)])).absent == []
    for outcome in await asyncio.gather(*blocked, removal, return_exceptions=True):
        assert isinstance(outcome, LedgerUnavailableError)
    assert await ledger.has_rows("other") is False
    waiting = [asyncio.ensure_future(ledger.record(sample_commit(rollout_id, "e"))) for rollout_id in (*locked, *made)]
    await asyncio.sleep(0.5)  # the attempts of what was given up end by themselves
    await transaction.rollback()
    await holder.close()
    assert await asyncio.gather(*waiting) == [True] * 2 * stuck
    assert (await ledger.retire(locked)).removed == locked


async def test_another_default_isolation_is_refused(
    postgres: PostgresServer, database: Any, role: str, schema: str
) -> None:
    """The locks are argued in READ COMMITTED."""
    await database.execute(f"ALTER ROLE {role} SET default_transaction_isolation = 'repeatable read'")
    async with open_ledger(f"postgresql://{role}@127.0.0.1:{postgres.port}/postgres?schema={schema}") as ledger:
        for write in (ledger.record(sample_commit("r", "c")), ledger.retire(["r"]), ledger.delete(["r"])):
            with pytest.raises(LedgerRefusedError, match="READ COMMITTED"):
                await write


SECRET = "hunter2%25x"


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:{SECRET}@127.0.0.1:1/x",
        f"postgresql://u:{SECRET}@no-such-host.invalid/x",
        f"postgresql://u:{SECRET}@[::1/x",
        f"postgresql://u:a:b@{SECRET}:{SECRET}/x",
        f"postgresql://u:{SECRET}@127.0.0.1:port/x",
        f"postgresql://u:{SECRET}@127.0.0.1:1/x?sslmode=nonsense",
        f"postgresql://u:{SECRET}@127.0.0.1:1/x?passfile=/nowhere",
        f"postgresql://u:{SECRET}@h\u2100/x",
        "postgresql://nobody:" + SECRET + "@127.0.0.1:{port}/postgres",
        "postgresql://postgres:" + SECRET + "@127.0.0.1:{port}/no_such_database",
    ],
)
async def test_no_error_shows_the_password(dsn: str, postgres: PostgresServer) -> None:
    """Whatever is wrong with the DSN, and however the error is printed."""
    dsn = dsn.replace("{port}", str(postgres.port))
    try:
        async with open_ledger(f"{dsn}{'&' if '?' in dsn else '?'}operation_timeout_s=0.3") as ledger:
            assert SECRET not in repr(ledger)
            await ledger.check_ready()
    except (LedgerError, ValueError) as error:
        shown = "".join(traceback.format_exception(error)) + repr(error)
        assert SECRET not in shown
        assert "hunter2" not in shown
    else:
        pytest.fail("it was no bad DSN")


async def test_a_handle_belongs_to_one_event_loop(ledger: CaptureLedger) -> None:
    """Another one is told so, and the handle goes on where it was."""

    def in_another_loop() -> None:
        with pytest.raises(LedgerError, match="event loop that first used it"):
            asyncio.run(ledger.has_rows("r"))

    await asyncio.to_thread(in_another_loop)
    await assert_works(ledger)


def test_a_handle_is_not_carried_over_a_fork(postgres_url: str) -> None:
    """Two processes on one connection would read each other's answers."""
    program = """
import asyncio, os, sys
from rollout_control_server.ledger import open_ledger

used, unused = open_ledger(sys.argv[1]), open_ledger(sys.argv[1])

async def check(ledger):
    await ledger.check_ready()
    print("ready", flush=True)

runner = asyncio.Runner()
runner.run(check(used))
child = os.fork()
if not child:
    asyncio.run(check(unused))
    try:
        asyncio.run(check(used))
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
runner.run(check(used))
runner.run(used.aclose())
runner.close()
"""
    done = subprocess.run([sys.executable, "-c", program, postgres_url], capture_output=True, text=True, check=True)
    before, unused, used, parent = done.stdout.splitlines()
    assert "forked" in used
    assert (before, unused, parent) == ("ready", "ready", "ready")


def test_a_missing_driver_names_the_extra() -> None:
    program = """
import sys
sys.modules["asyncpg"] = None
from rollout_control_server.ledger import open_ledger
open_ledger("postgresql://localhost/x")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'rollout-control[postgres]'" in done.stderr.splitlines()[-1]
