"""How PostgresLedger makes, migrates and refuses the schema that it works in."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest
from postgres_server import PostgresServer
from rollout_control_server.errors import LedgerRefusedError, LedgerUnavailableError
from rollout_control_server.ledger import open_ledger
from rollout_control_server.ledger.postgres import PostgresLedger, schema
from rollout_control_server.samples import sample_commit


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


async def test_an_older_schema_is_migrated_with_its_rows(
    database: Any, name: str, ledger_in: Callable[[str], PostgresLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is then what a new one is; several workers may migrate at once."""
    async with ledger_in(name) as old:
        await old.record(sample_commit("r", "c"))
        kept = await old.manifest("r")
    scripts = dict(enumerate((schema.script(version, "{schema}") for version in range(1, schema.VERSION + 1)), 1))
    assert scripts[1].count('"{schema}"') > 30
    next_version = schema.VERSION + 1
    scripts[next_version] = 'ALTER TABLE "{schema}".call_record ADD COLUMN extra bigint'
    monkeypatch.setattr(schema, "VERSION", next_version)
    monkeypatch.setattr(schema, "script", lambda version, name: scripts[version].replace("{schema}", name))
    ledgers = [ledger_in(name) for _ in range(4)]
    assert await asyncio.gather(*(ledger.manifest("r") for ledger in ledgers)) == [kept] * 4
    for ledger in ledgers:
        await ledger.aclose()
    async with ledger_in(name + "_new") as new:
        await new.check_ready()
    migrated = await structure(database, name)
    assert ("column", "call_record", "extra", "bigint", "YES", "None") in migrated
    assert migrated == await structure(database, name + "_new")


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
        ("max_connections=4", r"max_connections=N \(at least 5\)"),
        ("max_connections=x", r"max_connections=N \(at least 5\)"),
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
