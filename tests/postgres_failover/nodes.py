"""A primary and a standby of the program's own, on loopback, which it kills, stops and cuts off."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from postgres_server import PostgresServer, identity


class Node(PostgresServer):
    """One server, whose data may be copied from another one."""

    @classmethod
    def create_empty(cls, binaries: Path) -> "Node":
        directory = Path(tempfile.mkdtemp(prefix="rollout-control-failover-"))
        user = "postgres" if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(directory, user)
        return cls(directory, directory / "data", binaries / "postgres", user)

    def initialise(self) -> None:
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--username=postgres", "--data-checksums", self.data)

    def run(self) -> None:
        """Starts it: as a standby if it was made one, otherwise as a primary."""
        self.start(hot_standby="on", wal_level="replica", max_wal_senders=8, wal_keep_size="256MB")

    def follow(self, primary: "Node") -> None:
        """Makes it a standby of a primary, from a copy, and starts it; returns when the primary's commits reach it."""
        shutil.rmtree(self.data, ignore_errors=True)
        source = f"host=127.0.0.1 port={primary.port} user=postgres application_name=standby"
        self._run("pg_basebackup", "-D", self.data, "-R", "-X", "stream", "-c", "fast", "-d", source)
        self.run()
        wait_for(lambda: primary.value("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == 1)

    def wait_for_standby(self, *, synchronous: bool) -> None:
        """Makes commits wait for the standby, or for none."""
        names = "*" if synchronous else ""
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.execute("SELECT pg_reload_conf()")
        if synchronous:
            wait_for(lambda: self.value("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1)

    def promote(self) -> None:
        """Makes a standby the primary, whose commits wait for nobody until it has a standby."""
        self.execute("SELECT pg_promote()")
        wait_for(lambda: self.value("SELECT pg_is_in_recovery()") is False)
        self.wait_for_standby(synchronous=False)

    def hang(self) -> None:
        """Stops all its processes, as seen from outside; connections to it are accepted and never answered."""
        for process in self.processes():
            process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        for process in reversed(self.processes()):
            process.send_signal(signal.SIGCONT)

    def processes(self) -> list[psutil.Process]:
        postmaster = psutil.Process(self.pid)
        return [postmaster, *postmaster.children()]

    def value(self, query: str) -> Any:
        """Returns one value, as JSON has it."""
        import asyncio

        import asyncpg

        async def fetch() -> Any:
            connection = await asyncpg.connect(self.url, timeout=10)
            try:
                return await connection.fetchval(query)
            finally:
                connection.terminate()

        return asyncio.run(fetch())

    def drop_packets(self) -> bool:
        """Drops what is sent to it and what it sends, without an answer; returns whether this machine lets us.

        A policy of IPsec does that on a loopback interface, which must be one of this program's own: it holds for all
        that has the port's number.
        """
        if len(socket.if_nameindex()) > 1:
            # Not an interface of its own: other programs use it.
            return False
        Path("/proc/sys/net/ipv4/conf/lo/disable_policy").write_text("0")
        command = "ip xfrm policy add src 0.0.0.0/0 dst 0.0.0.0/0 proto tcp {} {} dir in action block"
        return all(
            subprocess.run(command.format(which, self.port).split(), capture_output=True, check=False).returncode == 0
            for which in ("dport", "sport")
        )

    def _run(self, program: str, *arguments: object) -> None:
        subprocess.run(
            [str(self.binary.with_name(program)), *map(str, arguments)],
            check=True, capture_output=True, cwd="/", **identity(self.user),
        )  # fmt: skip


def wait_for(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Returns when a condition of another process holds, which cannot be waited for but by asking."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError("a server did not become what it was to be")
        time.sleep(0.05)
