"""What the tests of ledgers share: storage for each kind of ledger, the real thing."""

import uuid
from collections.abc import Callable, Iterator
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
def new_ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Returns the URL of another empty ledger at each call: of a kind that processes can share, each kind in turn."""
    if request.param == "sqlite":
        return lambda: f"sqlite:///{tmp_path}/{uuid.uuid4().hex}.sqlite"
    server: PostgresServer = request.getfixturevalue("postgres")
    return lambda: f"{server.url}?schema=test_{uuid.uuid4().hex}"


@pytest.fixture
def ledger_url(new_ledger_url: Callable[[], str]) -> str:
    """The URL of an empty ledger that several processes can share, of each kind in turn."""
    return new_ledger_url()
