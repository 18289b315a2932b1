"""A role that lacks a privilege is told by `check_ready`, whichever it lacks: a ledger that is ready takes writes."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from postgres_server import PostgresServer
from rollout_control_server.errors import LedgerRefusedError
from rollout_control_server.ledger import open_ledger
from rollout_control_server.samples import sample_commit

TABLES = ("rollout", "call_record", "call_failure", "purge_queue", "removal", "superseded_attempt", "timeline")


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres.url)
    yield connection
    await connection.close()


@pytest.fixture
async def schema(postgres: PostgresServer) -> str:
    name = f"test_{uuid.uuid4().hex}"
    async with open_ledger(f"{postgres.url}?schema={name}") as ledger:
        await ledger.check_ready()
    return name


@pytest.fixture
async def role(database: Any, schema: str) -> AsyncIterator[str]:
    """A role with the privileges that docs/postgres.md grants."""
    name = f"role_{uuid.uuid4().hex}"
    for statement in (
        f"CREATE ROLE {name} LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO {name}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {name}",
        f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {name}",
    ):
        await database.execute(statement)
    yield name
    await database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def url_of(postgres: PostgresServer, role: str, schema: str) -> str:
    return f"postgresql://{role}@127.0.0.1:{postgres.port}/postgres?schema={schema}&operation_timeout_s=2"


async def test_the_documented_grants_are_enough(postgres: PostgresServer, role: str, schema: str) -> None:
    async with open_ledger(url_of(postgres, role, schema)) as ledger:
        await ledger.check_ready()
        await ledger.record(sample_commit("r", "c"))
        await ledger.record_failure("r", "f", "reason")
        await ledger.import_([await ledger.export("r")])
        assert (await ledger.retire_idle(["r"], 0)).removed == ["r"]
        assert (await ledger.delete(["r"])).absent == ["r"]


@pytest.mark.parametrize("table", TABLES)
async def test_each_privilege_on_each_table_is_asked_for(
    postgres: PostgresServer, database: Any, role: str, schema: str, table: str
) -> None:
    """Also where the handle has connected before the privilege was taken."""
    async with open_ledger(url_of(postgres, role, schema)) as ledger:
        for privilege in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            await ledger.check_ready()
            await database.execute(f"REVOKE {privilege} ON {schema}.{table} FROM {role}")
            with pytest.raises(LedgerRefusedError, match=f"lacks {privilege} on table {table}"):
                await ledger.check_ready()
            await database.execute(f"GRANT {privilege} ON {schema}.{table} TO {role}")


async def test_the_tables_are_all_of_them(database: Any, schema: str) -> None:
    """So that the test above leaves none out; no work needs more than reading the version."""
    rows = await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    assert {row[0] for row in rows} == {*TABLES, "schema_version"}


async def test_the_sequence_and_each_function_are_asked_for(
    postgres: PostgresServer, database: Any, role: str, schema: str
) -> None:
    functions = await database.fetch(
        "SELECT oid::regprocedure::text, proname FROM pg_proc WHERE pronamespace = $1::text::regnamespace", schema
    )
    assert len(functions) > 20
    async with open_ledger(url_of(postgres, role, schema)) as ledger:
        await ledger.check_ready()
        await database.execute(f"REVOKE USAGE ON SEQUENCE {schema}.generation FROM {role}")
        with pytest.raises(LedgerRefusedError, match="lacks USAGE on sequence generation"):
            await ledger.check_ready()
        await database.execute(f"GRANT USAGE ON SEQUENCE {schema}.generation TO {role}")
        for signature, name in functions:
            await database.execute(f"REVOKE EXECUTE ON FUNCTION {signature} FROM {role}")
            with pytest.raises(LedgerRefusedError, match=f"EXECUTE on function {name}|function {name}"):
                await ledger.check_ready()
            await database.execute(f"GRANT EXECUTE ON FUNCTION {signature} TO {role}")


async def test_a_schema_that_the_role_may_not_use_is_refused(
    postgres: PostgresServer, database: Any, role: str, schema: str
) -> None:
    await database.execute(f"REVOKE USAGE ON SCHEMA {schema} FROM {role}")
    async with open_ledger(url_of(postgres, role, schema)) as ledger:
        with pytest.raises(LedgerRefusedError, match="privilege"):
            await ledger.check_ready()


async def test_a_version_that_the_role_may_not_read_is_refused(
    postgres: PostgresServer, database: Any, role: str, schema: str
) -> None:
    await database.execute(f"REVOKE SELECT ON {schema}.schema_version FROM {role}")
    async with open_ledger(url_of(postgres, role, schema)) as ledger:
        with pytest.raises(LedgerRefusedError, match="privilege"):
            await ledger.check_ready()
