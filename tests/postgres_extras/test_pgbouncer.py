"""PostgresLedger through a PgBouncer in transaction mode keeps every promise."""

import asyncio
import uuid

import asyncpg
import pytest
from postgres_server import PostgresServer
from rollout_control_server.errors import LedgerUnavailableError
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.ledger.conformance import SharedLedgerConformance
from rollout_control_server.samples import sample_commit


@pytest.fixture
def url(pgbouncer_url: str) -> str:
    return f"{pgbouncer_url}?schema=test_{uuid.uuid4().hex}&prepared_statements=off"


class TestThroughPgBouncer(SharedLedgerConformance):
    @pytest.fixture(autouse=True)
    def storage(self, url: str) -> None:
        self.url = url

    def open_ledger(self) -> CaptureLedger:
        return open_ledger(self.url)


async def test_more_handles_than_server_connections(url: str) -> None:
    """Each statement may run on another server connection than the one before."""
    ledgers = [open_ledger(url) for _ in range(8)]
    commits = [sample_commit(f"r{index % 16}", f"c{index}") for index in range(1600)]
    outcomes = await asyncio.gather(*(ledgers[index % 8].record(commit) for index, commit in enumerate(commits)))
    assert outcomes == [True] * len(commits)
    for index in range(16):
        assert (await ledgers[index % 8].manifest(f"r{index}")).count(b'"model_call_id"') == 100
    for ledger in ledgers:
        await ledger.aclose()


async def test_a_stuck_lock_leaves_no_server_connection_in_a_transaction(
    url: str, installed_postgres: PostgresServer
) -> None:
    schema = url.split("schema=")[1].split("&", maxsplit=1)[0]
    async with open_ledger(url + "&operation_timeout_s=1") as ledger:
        await ledger.record(sample_commit("r", "c"))
        holder = await asyncpg.connect(installed_postgres.url)
        async with holder.transaction():
            await holder.execute(f"SELECT FROM {schema}.rollout FOR UPDATE")
            with pytest.raises(LedgerUnavailableError):
                await ledger.record(sample_commit("r", "d"))
            assert await ledger.record(sample_commit("other", "c")) is True
        assert await ledger.record(sample_commit("r", "d")) is True
        query = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
        assert await holder.fetchval(query) == 0
        await holder.close()
