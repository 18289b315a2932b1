"""What the tests of ledgers share: storage for each kind of ledger, the real thing."""

import uuid
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty ledger that several processes can share, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.sqlite"
    url: str = request.getfixturevalue("postgres_url")
    return url
