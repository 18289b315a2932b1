"""Debian's PostgreSQL and PgBouncer, each started by the tests, as `nox -s postgres-extras` runs them."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest
from postgres_server import PostgresServer, free_port, identity

pytest.register_assert_rewrite("rollout_control_server.ledger.conformance")


@pytest.fixture(scope="session")
def installed_postgres() -> Iterator[PostgresServer]:
    """Debian's PostgreSQL, with TLS by a certificate for `localhost` that an authority of the tests has signed."""
    binaries = max(Path("/usr/lib/postgresql").glob("*/bin"))
    server = PostgresServer.create_of_installation(binaries)
    try:
        make_certificates(server)
        server.start(
            ssl="on",
            ssl_cert_file=server.directory / "server.crt",
            ssl_key_file=server.directory / "server.key",
        )
        yield server
    finally:
        server.stop()


def make_certificates(server: PostgresServer) -> None:
    """Makes `ca.crt`, `other-ca.crt`, and a key and certificate for the server, in its directory."""
    for name in ("ca", "other-ca"):
        openssl(server, "req -x509 -newkey rsa:2048 -nodes -days 2", "-subj", f"/CN={name}", key=name, out=name)
    openssl(server, "req -newkey rsa:2048 -nodes", "-subj", "/CN=localhost", key="server", out="request")
    (server.directory / "extensions").write_text("subjectAltName=DNS:localhost")
    openssl(server, "x509 -req -days 2 -CA ca.crt -CAkey ca.key -extfile extensions -in request.crt", out="server")


def openssl(server: PostgresServer, command: str, *more: str, out: str, key: str | None = None) -> None:
    keys = [] if key is None else ["-keyout", f"{key}.key"]
    subprocess.run(
        ["openssl", *command.split(), *more, *keys, "-out", f"{out}.crt"],
        check=True,
        capture_output=True,
        cwd=server.directory,
        umask=0o077,
        **identity(server.user),
    )


@pytest.fixture(scope="session")
def pgbouncer_url(installed_postgres: PostgresServer) -> Iterator[str]:
    """PgBouncer in transaction mode, with fewer server connections than clients."""
    with running_pgbouncer(installed_postgres) as url:
        yield url


@contextmanager
def running_pgbouncer(server: PostgresServer) -> Iterator[str]:
    port = free_port()
    configuration = server.directory / "pgbouncer.ini"
    configuration.write_text(
        f"""
[databases]
postgres = host=127.0.0.1 port={server.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
server_round_robin = 1
max_client_conn = 200
"""
    )
    command = [shutil.which("pgbouncer", path="/usr/sbin:/usr/bin"), "--quiet", configuration]
    process = subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, **identity(server.user))
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    try:
        asyncio.run(_wait_until_ready(url))
        yield url
    finally:
        process.terminate()
        process.wait()


async def _wait_until_ready(url: str) -> None:
    give_up = time.monotonic() + 20
    while True:
        try:
            await (await asyncpg.connect(url)).close()
        except OSError:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.05)
        else:
            return


@pytest.fixture(scope="session")
def documented_sql() -> Callable[[str], str]:
    """Returns the SQL of docs/postgres.md that follows a heading."""
    text = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text()
    return lambda heading: text.split(f"## {heading}\n")[1].split("```sql\n")[1].split("```")[0]
