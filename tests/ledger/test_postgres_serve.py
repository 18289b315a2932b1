"""`rollout-control serve` on PostgreSQL: what it refuses when it starts, and what it survives later."""

import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from postgres_server import PostgresServer, running_postgres
from served import TOKEN


@pytest.fixture(scope="module")
def postgres_with_passwords() -> Iterator[PostgresServer]:
    """A server with a role `writer`, who needs the password `right`."""
    with running_postgres() as server:
        access = server.data / "pg_hba.conf"
        access.write_text("host all writer 127.0.0.1/32 scram-sha-256\n" + access.read_text())
        server.execute("CREATE ROLE writer LOGIN PASSWORD 'right'")
        server.execute("SELECT pg_reload_conf()")
        yield server


def serve(ledger_url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rollout_control_console", "serve", "--port", "0", "--ledger", ledger_url],
        env={**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": TOKEN},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("user", "database", "said"),
    [
        ("writer:wr0ng", "postgres", "the server does not let this role in"),
        ("writer:right", "postgres", "the role lacks a privilege"),
        ("postgres", "no_such_database", "there is no such database"),
    ],
)
def test_what_will_not_mend_itself_ends_it_at_its_start(
    postgres_with_passwords: PostgresServer, user: str, database: str, said: str
) -> None:
    server = serve(f"postgresql://{user}@127.0.0.1:{postgres_with_passwords.port}/{database}")
    _, told = server.communicate(timeout=60)
    assert server.returncode == 2
    assert told.splitlines()[-1].startswith(f"Error: the ledger cannot be used: {said}")
    assert "wr0ng" not in told
    assert "serving" not in told
    assert "Traceback" not in told


def test_it_says_where_it_serves_without_the_password(postgres_with_passwords: PostgresServer) -> None:
    server = serve(f"postgresql://postgres:hunter22@127.0.0.1:{postgres_with_passwords.port}/postgres")
    assert server.stderr is not None
    told = server.stderr.readline()
    server.terminate()
    told += server.communicate(timeout=60)[1]
    assert f"serving postgresql://postgres:***@127.0.0.1:{postgres_with_passwords.port}/postgres on http://" in told
    assert "hunter22" not in told


def test_a_server_that_runs_outlives_its_database() -> None:
    with running_postgres() as postgres:
        server = serve(f"{postgres.url}?operation_timeout_s=1")
        assert server.stderr is not None
        try:
            readiness = server.stderr.readline().split()[-1] + "/readyz"
            assert httpx.get(readiness, trust_env=False).status_code == 200
            postgres.kill()
            assert httpx.get(readiness, trust_env=False, timeout=20).status_code == 503
            postgres.start()
            assert httpx.get(readiness, trust_env=False, timeout=20).status_code == 200
        finally:
            server.kill()
            server.communicate()
