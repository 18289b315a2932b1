"""PostgresLedger under the roles that docs/postgres.md makes, by the very SQL that is printed there."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from postgres_server import PostgresServer
from rollout_control_server.errors import LedgerRefusedError
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.ledger.conformance import SharedLedgerConformance
from rollout_control_server.samples import sample_commit


@pytest.fixture
def database(installed_postgres: PostgresServer, documented_sql: Callable[[str], str]) -> Iterator[str]:
    """A database of its own, with the owner's role of the documentation; returns its URL without the user."""
    name = f"test_{uuid.uuid4().hex}"
    installed_postgres.execute(f"CREATE DATABASE {name}")
    installed_postgres.execute(
        f"REVOKE ALL ON DATABASE {name} FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC", name
    )
    installed_postgres.execute(_in_database(documented_sql("A role that owns its schema"), name), name)
    yield f"127.0.0.1:{installed_postgres.port}/{name}"
    installed_postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
    installed_postgres.execute("DROP ROLE rollout_owner; DROP ROLE IF EXISTS rollout_writer")


def _in_database(sql: str, database: str) -> str:
    """The documentation's database is `training`."""
    assert "ON DATABASE training" in sql
    return sql.replace("ON DATABASE training", f"ON DATABASE {database.rsplit('/', maxsplit=1)[-1]}")


class TestAsTheOwnerOfTheSchema(SharedLedgerConformance):
    @pytest.fixture(autouse=True)
    def storage(self, database: str) -> None:
        self.url = f"postgresql://rollout_owner@{database}"

    def open_ledger(self) -> CaptureLedger:
        return open_ledger(self.url)


async def test_the_owner_owns_nothing_else(database: str) -> None:
    async with open_ledger(f"postgresql://rollout_owner@{database}?schema=another") as ledger:
        with pytest.raises(LedgerRefusedError, match="privilege"):
            await ledger.check_ready()


def test_a_role_that_only_uses_the_schema(
    database: str, installed_postgres: PostgresServer, documented_sql: Callable[[str], str]
) -> None:
    """It cannot make or migrate it, and everything else works."""
    name = database.rsplit("/", maxsplit=1)[-1]
    writer, owner = (f"postgresql://{role}@{database}" for role in ("rollout_writer", "rollout_owner"))
    installed_postgres.execute("CREATE ROLE rollout_writer LOGIN")
    installed_postgres.execute(f"GRANT CONNECT ON DATABASE {name} TO rollout_writer")
    with pytest.raises(LedgerRefusedError, match=r"docs/postgres\.md"):
        asyncio.run(_check(writer))
    asyncio.run(_check(owner))
    installed_postgres.execute("DROP OWNED BY rollout_writer; DROP ROLE rollout_writer", name)
    installed_postgres.execute(_in_database(documented_sql("A role that only uses the schema"), name), name)
    asyncio.run(_use(writer))


async def _check(url: str) -> None:
    async with open_ledger(url) as ledger:
        await ledger.check_ready()


async def _use(url: str) -> None:
    async with open_ledger(url) as ledger:
        await ledger.check_ready()
        assert await ledger.record(sample_commit("r", "c")) is True
        assert await ledger.record_failure("r", "d", "reason") is True
        assert await ledger.has_rows("r") is True
        assert (await ledger.retire(["r", "s"])).removed == ["r"]
        assert (await ledger.delete(["r", "s"])).absent == ["r", "s"]
        assert (await ledger.forget_fences(timedelta(0)))[:2] == (0, 0)
