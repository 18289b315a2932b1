"""A DSN with several hosts, of which some don't answer, and the bound of a handle's connections."""

import asyncio
import socket
import uuid
from collections.abc import Iterator

import asyncpg
import pytest
from postgres_server import PostgresServer, free_port
from rollout_control_server.errors import LedgerUnavailableError
from rollout_control_server.ledger import open_ledger
from rollout_control_server.samples import sample_commit, sample_conversation


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are accepted by the system and never answered, as of a server that hangs."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def schema() -> str:
    return f"test_{uuid.uuid4().hex}"


@pytest.mark.parametrize("form", ["authority", "query"])
async def test_a_host_that_hangs_holds_up_nobody(
    postgres: PostgresServer, silent_port: int, schema: str, form: str
) -> None:
    """Whether it comes first or last, and a host that refuses besides."""
    for ports in ((silent_port, free_port(), postgres.port), (postgres.port, silent_port)):
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        url = f"postgresql://postgres@{hosts}/postgres?schema={schema}"
        if form == "query":
            names, numbers = ",".join("127.0.0.1" for _ in ports), ",".join(map(str, ports))
            url = f"postgresql:///postgres?schema={schema}&user=postgres&host={names}&port={numbers}"
        async with open_ledger(url) as ledger:
            assert await ledger.record(sample_commit("r", "c")) is True
            await ledger.check_ready()


async def test_where_no_host_can_be_used_each_says_why(silent_port: int) -> None:
    """By its number: no message names an address."""
    url = f"postgresql://postgres@127.0.0.1:{silent_port},127.0.0.1:{free_port()}/postgres?operation_timeout_s=1"
    async with open_ledger(url) as ledger:
        with pytest.raises(LedgerUnavailableError, match=r"host 1 of 2: .*host 2 of 2: ") as raised:
            await ledger.manifest("r")
    assert "127.0.0.1" not in str(raised.value)


async def test_connections_whose_statements_hang_are_counted_and_writes_leave_reads_alone(
    postgres: PostgresServer, schema: str
) -> None:
    """Here every record waits for a lock of a whole table, far longer than its caller does."""
    url = f"{postgres.url}?schema={schema}&application_name={schema}&max_connections=6&operation_timeout_s=1"
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"
    async with open_ledger(url) as ledger:
        await ledger.record(sample_commit("r", "c"))
        holder, watcher = await asyncpg.connect(postgres.url), await asyncpg.connect(postgres.url)
        # Functions wait for locks no longer than 250 ms; a trigger that sleeps stands for a standby that is gone.
        await holder.execute(
            f"CREATE FUNCTION {schema}.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM pg_advisory_xact_lock_shared(hashtext(current_setting('application_name'))); RETURN NULL; END $$; "
            f"CREATE TRIGGER hold AFTER INSERT ON {schema}.call_record EXECUTE FUNCTION {schema}.hold(); "
            f"ALTER FUNCTION {schema}.record_rows RESET lock_timeout; SELECT pg_advisory_lock(hashtext('{schema}'))"
        )
        for turn in range(3):
            writes = [ledger.record(sample_commit(f"w{turn}-{number}", "c")) for number in range(20)]
            outcomes = await asyncio.gather(*writes, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {LedgerUnavailableError}
            assert await ledger.has_rows("r") is True
            assert await watcher.fetchval(count, schema) <= 6
        await holder.execute(f"SELECT pg_advisory_unlock(hashtext('{schema}'))")
        async with asyncio.timeout(60):
            while True:
                try:
                    assert await ledger.record(sample_commit("w0-0", "c")) is True
                    break
                except LedgerUnavailableError:
                    continue
        await holder.close()
        await watcher.close()


async def test_rows_that_bring_their_own_chain_are_written_as_others_are(postgres: PostgresServer, schema: str) -> None:
    """Calls whose parents are not in the ledger, many of one rollout at once, in one transaction or few."""
    commits = sample_conversation("r", 80)[40:]
    async with open_ledger(f"{postgres.url}?schema={schema}") as ledger:
        await ledger.record(sample_commit("other", "c"))
        connection = await asyncpg.connect(postgres.url)
        assert await asyncio.gather(*(ledger.record(commit) for commit in reversed(commits))) == [True] * 40
        transactions = await connection.fetchval(f"SELECT count(DISTINCT xmin::text) FROM {schema}.call_record")
        await connection.close()
        assert transactions <= 5
        for commit in commits:
            assert commit.lookup is not None
            assert await ledger.find_parent("r", commit.lookup.fingerprint, 2) == commit


async def test_nothing_starts_after_a_handle_is_closed(postgres: PostgresServer, schema: str) -> None:
    """A removal that was in flight leaves its purge to others, and no connection."""
    ledger = open_ledger(f"{postgres.url}?schema={schema}&application_name={schema}")
    for number in range(20):
        await ledger.record(sample_commit(f"r{number}", "c"))
    removals = [asyncio.ensure_future(ledger.retire([f"r{number}"])) for number in range(20)]
    await asyncio.sleep(0)
    await ledger.aclose()
    outcomes = await asyncio.gather(*removals, return_exceptions=True)
    assert all(not isinstance(outcome, BaseException) for outcome in outcomes)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert [task for task in tasks if "rollout_control" in repr(task.get_coro())] == []
    connection = await asyncpg.connect(postgres.url)
    async with asyncio.timeout(30):
        while await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", schema):
            pass
    await connection.close()
