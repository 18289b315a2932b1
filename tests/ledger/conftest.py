"""What the tests of ledgers share: storage for each kind of ledger, the real thing."""

import uuid
from collections.abc import Iterator

import pytest
from postgres_server import PostgresServer, running_postgres

pytest.register_assert_rewrite("rollout_control_server.ledger.conformance")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests that leave it running."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """The ledger URL of a schema that no other test uses."""
    return f"{postgres.url}?schema=test_{uuid.uuid4().hex}"
