"""How PostgresLedger makes, migrates and refuses the schema that it works in."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from postgres_server import PostgresServer
from rollout_control_server.errors import LedgerRefusedError, LedgerUnavailableError
from rollout_control_server.ledger import open_ledger
from rollout_control_server.ledger.postgres import PostgresLedger, schema
from rollout_control_server.records import RolloutManifest
from rollout_control_server.samples import sample_commit, sample_conversation
from rollout_control_spec import RolloutRetiredError

VERSION_1 = Path(__file__).parent / "postgres_versions" / "version_1.sql"


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[Any]:
    """A superuser's connection, as an operator has it."""
    connection = await asyncpg.connect(postgres.url)
    yield connection
    await connection.close()


@pytest.fixture
def name() -> str:
    return f"test_{uuid.uuid4().hex}"


@pytest.fixture
def ledger_in(postgres: PostgresServer) -> Callable[[str], PostgresLedger]:
    return lambda name: PostgresLedger(postgres.url, schema=name)


async def structure(database: Any, name: str) -> list[tuple[Any, ...]]:
    """Everything that makes up a schema: columns, indexes, constraints, settings, functions."""
    rows = await database.fetch(
        """
        SELECT 'column', table_name::text, column_name::text, data_type::text, is_nullable::text, collation_name::text
          FROM information_schema.columns WHERE table_schema = $1
        UNION ALL SELECT 'index', tablename::text, indexname::text, replace(indexdef, $1, ''), '', ''
          FROM pg_indexes WHERE schemaname = $1
        UNION ALL SELECT 'constraint', conrelid::regclass::text, conname::text, pg_get_constraintdef(c.oid), '', ''
          FROM pg_constraint c JOIN pg_namespace n ON n.oid = connamespace WHERE nspname = $1
        UNION ALL SELECT 'relation', relname::text, relkind::text, array_to_string(reloptions, ','), '', ''
          FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $1
        UNION ALL SELECT 'function', proname::text, replace(pg_get_functiondef(p.oid), $1, ''), '', '', ''
          FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname = $1
        """,
        name,
    )
    return sorted(tuple(str(value).replace(name, "") for value in row) for row in rows)


async def test_workers_that_start_at_once_make_one_schema(
    database: Any, name: str, ledger_in: Callable[[str], PostgresLedger]
) -> None:
    ledgers = [ledger_in(name) for _ in range(8)]
    await asyncio.gather(*(ledger.record(sample_commit("r", f"c{i}")) for i, ledger in enumerate(ledgers)))
    assert len(await ledgers[0].manifest("r")) == len(await ledgers[7].manifest("r")) > 8 * 500
    assert await database.fetch(f"SELECT version FROM {name}.schema_version") == [(schema.VERSION,)]
    for ledger in ledgers:
        await ledger.aclose()


async def test_schemas_of_one_database_are_apart(ledger_in: Callable[[str], PostgresLedger], name: str) -> None:
    async with ledger_in(name) as one, ledger_in(name + "_2") as other:
        await one.record(sample_commit("r", "c"))
        assert await other.has_rows("r") is False
        await other.retire(["r"])
        assert await one.has_rows("r") is True


@pytest.fixture
async def version_1(postgres: PostgresServer, name: str) -> str:
    """A schema that a program of version 1 has made and filled; rows of two removed rollouts wait to be purged."""
    connection = await asyncpg.connect(postgres.url)
    await connection.execute(VERSION_1.read_text().replace("rollout_control", name))
    await connection.close()
    return name


async def test_an_older_schema_is_migrated_with_its_rows(
    database: Any, version_1: str, ledger_in: Callable[[str], PostgresLedger]
) -> None:
    """And is then what a new one is; several workers may migrate at once."""
    conversation = sample_conversation("conversation", 5)
    ledgers = [ledger_in(version_1) for _ in range(4)]
    await asyncio.gather(*(ledger.check_ready() for ledger in ledgers))
    ledger = ledgers[0]
    export = await ledger.export("conversation")
    calls = [commit.record.model_call_id for commit in conversation[:4]]
    assert [row.model_call_id for row, _ in export.rows] == [*calls, "failed-1", calls[1], "failed-2"]
    assert {recorded_at for _, recorded_at in export.rows} == {None}
    manifest = msgspec.json.decode(await ledger.manifest("conversation"), type=RolloutManifest)
    assert [record.model_call_id for record in manifest.records] == calls
    assert [failure.model_call_id for failure in manifest.failures] == ["failed-1", calls[1], "failed-2"]
    found = {entry.rollout_id: (entry.state, entry.calls, entry.failures) for entry in (await ledger.rollouts())[0]}
    retired = ("retired", None, None)
    assert found == {
        "conversation": ("live", 4, 3), "never": retired, "only-failed": ("live", 0, 1), "retired": retired,
        "single": ("live", 1, 0),
    }  # fmt: skip
    never = await ledger.export("never")
    assert never.retired_at == pytest.approx(1796094583.1875)
    summary = await ledger.summary()
    assert summary[:4] == (3, 2, 2, 9)
    assert summary.oldest_recorded_at is None
    # Old rows and new ones stand together: repeated, continued and found.
    for commit in conversation:
        assert await ledger.record(commit) is True
    assert conversation[4].lookup is not None
    assert await ledger.find_parent("conversation", conversation[4].lookup.fingerprint, 2) == conversation[4]
    assert await database.fetchval(f"SELECT count(*) FROM {version_1}.call_record WHERE staging_chain IS NULL") >= 5
    for one in ledgers:
        await one.aclose()
    async with ledger_in(version_1 + "_new") as new:
        await new.check_ready()
    assert await structure(database, version_1) == await structure(database, version_1 + "_new")


OLD_RECORD = (
    "SELECT {}.record_rows($1, '{{}}', true, ARRAY['single'], ARRAY['f'::bytea], ARRAY['x'::bytea], "
    "ARRAY['{{}}'::bytea], " + ", ".join(["NULL"] * 10) + ")"
)
"""How a program of version 1 records a failure row."""


async def test_an_old_program_records_nothing_in_a_migrated_schema(
    version_1: str, postgres: PostgresServer, ledger_in: Callable[[str], PostgresLedger]
) -> None:
    """Its handles ask for a function that is gone, and then for the version. What else they call answers rightly."""
    old = await asyncpg.connect(postgres.url)
    statement = await old.prepare(OLD_RECORD.format(version_1))
    async with ledger_in(version_1) as ledger:
        before = await ledger.export("single")
        with pytest.raises(asyncpg.PostgresError):
            await statement.fetch(uuid.uuid4())
        with pytest.raises(asyncpg.UndefinedFunctionError):
            await old.fetch(OLD_RECORD.format(version_1), uuid.uuid4())
        assert await ledger.export("single") == before
        assert await old.fetchval(f"SELECT {version_1}.retire($1, ARRAY['never', 'single'])", uuid.uuid4()) == [
            "single"
        ]
        with pytest.raises(RolloutRetiredError):
            await ledger.manifest("single")
    await old.close()


async def test_an_old_write_that_waits_for_a_migration_fails(
    version_1: str, postgres: PostgresServer, ledger_in: Callable[[str], PostgresLedger]
) -> None:
    """The function that it runs no longer fits the tables."""
    old, migrating, watching = [await asyncpg.connect(postgres.url) for _ in range(3)]
    async with migrating.transaction():
        await migrating.execute(schema.script(2, version_1))
        write = asyncio.ensure_future(old.fetch(OLD_RECORD.format(version_1), uuid.uuid4()))
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)"
        while not write.done() and not await watching.fetchval(waits, old.get_server_pid()):
            pass
        await migrating.execute(schema.functions(version_1))
        await migrating.execute(f"UPDATE {version_1}.schema_version SET version = {schema.VERSION}")
    with pytest.raises((asyncpg.UndefinedColumnError, asyncpg.LockNotAvailableError)):
        await write
    async with ledger_in(version_1) as ledger:
        assert len((await ledger.export("single")).rows) == 1
    for connection in (old, migrating, watching):
        await connection.close()


async def test_a_newer_schema_is_refused(database: Any, name: str, ledger_in: Callable[[str], PostgresLedger]) -> None:
    async with ledger_in(name) as ledger:
        await ledger.check_ready()
    await database.execute(f"UPDATE {name}.schema_version SET version = {schema.VERSION + 1}")
    async with ledger_in(name) as ledger:
        with pytest.raises(LedgerRefusedError, match="upgrade rollout-control"):
            await ledger.record(sample_commit("r", "c"))
    assert await database.fetchval(f"SELECT count(*) FROM {name}.call_record") == 0


async def test_a_schema_of_something_else_is_refused(
    database: Any, name: str, ledger_in: Callable[[str], PostgresLedger]
) -> None:
    await database.execute(f"CREATE SCHEMA {name} CREATE TABLE customer (name text)")
    async with ledger_in(name) as ledger:
        with pytest.raises(LedgerRefusedError, match="name another schema"):
            await ledger.check_ready()
    assert [row[1] for row in await structure(database, name) if row[0] == "relation"] == ["customer"]


async def test_an_empty_schema_is_used(database: Any, name: str, ledger_in: Callable[[str], PostgresLedger]) -> None:
    await database.execute(f"CREATE SCHEMA {name}")
    async with ledger_in(name) as ledger:
        assert await ledger.record(sample_commit("r", "c")) is True


async def test_a_schema_that_is_dropped_under_a_handle_is_not_made_anew(
    database: Any, name: str, postgres: PostgresServer
) -> None:
    """Its acknowledged rows are gone, and an empty ledger in their place would hide it."""
    async with PostgresLedger(postgres.url, schema=name, operation_timeout_s=1) as ledger:
        await ledger.record(sample_commit("r", "c"))
        await database.execute(f"ALTER SCHEMA {name} RENAME TO {name}_away")
        with pytest.raises(LedgerUnavailableError, match="not there"):
            await ledger.manifest("r")
        assert not await database.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", name)
        await database.execute(f"ALTER SCHEMA {name}_away RENAME TO {name}")
        assert await ledger.has_rows("r") is True


@pytest.mark.parametrize("bad", ["", "Run", "a b", 'a"b', "a;b", "1a", "pg_ledger", "a" * 64, "é", "a\n", "public.x"])
def test_other_names_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="invalid schema name"):
        PostgresLedger("postgresql://localhost/x", schema=bad)


@pytest.mark.parametrize("good", ["run_7", "_x", "select", "a" * 63])
async def test_a_name_may_be_a_word_of_sql(good: str, ledger_in: Callable[[str], PostgresLedger]) -> None:
    async with ledger_in(good) as ledger:
        await ledger.record(sample_commit("r", "c"))
        assert (await ledger.retire(["r"])).removed == ["r"]


def test_a_url_takes_the_options(postgres: PostgresServer, name: str) -> None:
    url = f"{postgres.url}?schema={name}&application_name=a%20b&max_connections=6&operation_timeout_s=2.5"

    async def use() -> None:
        async with open_ledger(url + "&prepared_statements=off") as ledger:
            assert await ledger.record(sample_commit("r", "c")) is True
        async with open_ledger(f"{postgres.url}?schema={name}") as ledger:
            assert await ledger.has_rows("r") is True

    asyncio.run(use())


def test_a_url_need_not_name_a_host() -> None:
    """As libpq's: the host may be in the query, be several, or be left to the environment."""
    for url in (
        "postgresql:///db?host=/run/postgresql&schema=run_7",
        "postgresql://",
        "postgres://u@a:1,b:2/db?schema=x",
    ):
        assert isinstance(open_ledger(url), PostgresLedger)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("schema=A", "schema=NAME"),
        ("max_connections=4", r"max_connections=N \(at least 6\)"),
        ("max_connections=x", r"max_connections=N \(at least 6\)"),
        ("operation_timeout_s=0", "operation_timeout_s=SECONDS"),
        ("prepared_statements=no", "prepared_statements=on or off"),
    ],
)
def test_bad_options_are_refused_and_told_what_is_allowed(query: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        open_ledger(f"postgresql://localhost/x?{query}")


@pytest.mark.parametrize("query", ["max_connection=9", "work_mem=much", "shared_buffers=1GB"])
async def test_an_option_that_nobody_knows_is_refused_and_told_what_is_allowed(
    postgres: PostgresServer, query: str
) -> None:
    async with open_ledger(f"{postgres.url}?{query}") as ledger:
        with pytest.raises(LedgerRefusedError, match=f"{query.partition('=')[0]}.*max_connections=N"):
            await ledger.check_ready()
