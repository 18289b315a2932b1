"""The ledger's schema in a database: made, migrated, or refused."""

import re
from importlib.resources import files
from typing import Any, Final

from rollout_control_server.errors import LedgerRefusedError, LedgerUnavailableError

VERSION: Final = 2
"""The schema version of this program. Its tables are what schema_1.sql to schema_2.sql make, one after the other."""

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_MIGRATION_LOCK: Final = 0x726F6C6C6F757431
"""A number of our own in PostgreSQL's space of advisory locks."""


def check_name(name: str) -> str:
    """Returns the name if it can be a schema's.

    Raises:
        ValueError: It is something else than lower-case ASCII letters, digits and underscores, or PostgreSQL's own.
    """
    if _NAME.fullmatch(name) is None or name.startswith("pg_"):
        raise ValueError(
            f"invalid schema name {name[:80]!a}: use 1 to 63 lower-case ASCII letters, digits and '_', "
            "not beginning with a digit or 'pg_'"
        )
    return name


def script(version: int, name: str) -> str:
    """Returns the SQL that makes the tables of this version from those of the version before it."""
    return _read(f"schema_{version}.sql", name)


def functions(name: str) -> str:
    """Returns the SQL that puts the functions of this program in the place of those that there are."""
    drop = f"""
        DO $$
        DECLARE
          function regprocedure;
        BEGIN
          FOR function IN SELECT oid FROM pg_proc WHERE pronamespace = '"{name}"'::regnamespace LOOP
            EXECUTE 'DROP FUNCTION ' || function;
          END LOOP;
        END $$;
    """
    return drop + _read("functions.sql", name)


def _read(file: str, name: str) -> str:
    text = files(__package__).joinpath(file).read_text(encoding="utf-8")
    return text.replace("{schema}", f'"{name}"')


async def make_schema_ready(connection: Any, name: str, *, may_create: bool) -> None:
    """Makes or migrates the schema if that is needed. Several processes may do so at once.

    Args:
        connection: A connection of asyncpg.
        name: The schema's name.
        may_create: Whether to make one where there is none. Not where one has been in use: its acknowledged rows are
            gone, and an empty ledger would hide that.

    Raises:
        LedgerUnavailableError: There is none, and none may be made.
        LedgerRefusedError: The schema is newer than this program, or somebody else's.
        asyncpg.PostgresError: What PostgreSQL had against it.
    """
    # In a transaction, so that a PgBouncer without prepared statements sends all of it to one server connection.
    async with connection.transaction(isolation="read_committed"):
        if await _read_version(connection, name) == VERSION:
            return
    async with connection.transaction(isolation="read_committed"):
        wait_for_others = f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"
        # Held until the transaction's end; whoever comes second finds the work done.
        await connection.execute(f"SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '2s'; {wait_for_others}")
        found = await _read_version(connection, name)
        if found == 0:
            if not may_create:
                raise LedgerUnavailableError(
                    f"schema {name!r} is not there any more: restore it, or open another handle"
                )
            if await _tables(connection, name):
                raise LedgerRefusedError(f"schema {name!r} holds tables of something else: name another schema")
            if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", name):
                await connection.execute(f'CREATE SCHEMA "{name}"')
        for version in range(found + 1, VERSION + 1):
            await connection.execute(script(version, name))
        if found < VERSION:
            await connection.execute(functions(name))
        if found == 0:
            await connection.execute(f'INSERT INTO "{name}".schema_version VALUES ({VERSION})')
        elif found < VERSION:
            await connection.execute(f'UPDATE "{name}".schema_version SET version = {VERSION}')


async def _read_version(connection: Any, name: str) -> int:
    """Returns the version of the schema, 0 when there is none."""
    # Not to_regclass: it may answer from a cache that is older than what the migration lock has waited for.
    if "schema_version" not in await _tables(connection, name):
        return 0
    version: int = await connection.fetchval(f'SELECT version FROM "{name}".schema_version')
    if version > VERSION:
        raise LedgerRefusedError(
            f"schema {name!r} has version {version}, and this program knows versions up to {VERSION}: "
            "upgrade rollout-control, or name another schema"
        )
    return version


async def _tables(connection: Any, name: str) -> list[str]:
    rows = await connection.fetch(
        "SELECT relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1", name
    )
    return [row[0] for row in rows]
