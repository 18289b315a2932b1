"""PostgresLedger over TLS."""

import uuid

import asyncpg
import pytest
from postgres_server import PostgresServer
from rollout_control_server.errors import LedgerError
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.ledger.conformance import SharedLedgerConformance


def tls_url(server: PostgresServer, authority: str) -> str:
    certificate = server.directory / f"{authority}.crt"
    certificate.chmod(0o644)
    return (
        f"postgresql://postgres@localhost:{server.port}/postgres?sslmode=verify-full&sslrootcert={certificate}"
        f"&application_name=over-tls&schema=test_{uuid.uuid4().hex}"
    )


class TestOverTls(SharedLedgerConformance):
    @pytest.fixture(autouse=True)
    def storage(self, installed_postgres: PostgresServer) -> None:
        self.url = tls_url(installed_postgres, "ca")

    def open_ledger(self) -> CaptureLedger:
        return open_ledger(self.url)


async def test_the_connections_are_encrypted(installed_postgres: PostgresServer) -> None:
    operator = await asyncpg.connect(installed_postgres.url)
    async with open_ledger(tls_url(installed_postgres, "ca")) as ledger:
        await ledger.check_ready()
        encrypted = await operator.fetch(
            "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'over-tls'"
        )
    await operator.close()
    assert encrypted
    assert all(row[0] for row in encrypted)


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_a_server_that_cannot_prove_its_name_is_not_used(installed_postgres: PostgresServer, wrong: str) -> None:
    url = tls_url(installed_postgres, "other-ca" if wrong == "authority" else "ca") + "&operation_timeout_s=1"
    async with open_ledger(url if wrong == "authority" else url.replace("localhost", "127.0.0.1")) as ledger:
        with pytest.raises(LedgerError):
            await ledger.check_ready()
