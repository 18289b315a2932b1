"""Shows what PostgresLedger does when its primary, its standby or the way to them fails, and counts what was lost.

Run by `nox -s failover`. It needs PostgreSQL's binaries, pg_basebackup among them, and Linux; it writes a table.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncpg
from nodes import Node, wait_for
from rollout_control_client import RolloutControlClient, RolloutControlError
from rollout_control_server.errors import LedgerUnavailableError
from rollout_control_server.ledger import open_ledger
from rollout_control_server.samples import sample_commit
from rollout_control_spec import RolloutRetiredError
from workers import Counts, acknowledgements, judge, writers

TOKEN = "failover"
OPERATION_TIMEOUT_S = 4
MAX_CONNECTIONS = 8
"""Of each handle: three writers and `serve`, or seven writers and `serve`."""


class Servers:
    """A primary with a synchronous standby, and a `serve` whose answers are looked at all the time."""

    def __init__(self, binaries: Path) -> None:
        self.primary, self.standby = Node.create_empty(binaries), Node.create_empty(binaries)
        self.primary.initialise()
        self.primary.run()
        self.standby.follow(self.primary)
        self.primary.wait_for_standby(synchronous=True)
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        self.url = (
            f"postgresql://postgres@{hosts}/postgres?operation_timeout_s={OPERATION_TIMEOUT_S}"
            f"&max_connections={MAX_CONNECTIONS}"
        )

    def fail_over(self) -> None:
        """Promotes the standby; what was the primary is no more than its files."""
        self.primary, self.standby = self.standby, self.primary
        self.primary.promote()

    def mend(self) -> None:
        """Makes the former primary a synchronous standby."""
        self.standby.follow(self.primary)
        self.primary.wait_for_standby(synchronous=True)

    def stop(self) -> None:
        for node in (self.primary, self.standby):
            node.stop()


class Connections(threading.Thread):
    """Counts the connections of clients to a server, of its own connection's apart, until it is stopped."""

    def __init__(self, servers: Servers) -> None:
        super().__init__(daemon=True)
        self.servers = servers
        self.most = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        while not self.stopped.wait(0.3):
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                self.most = max(self.most, self.servers.primary.value(query) - 1)


class Reader(threading.Thread):
    """Asks `serve` for the manifest of a rollout and of a retired one, and counts what is neither right nor 503."""

    def __init__(self, servers: Servers) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.right = self.wrong = self.errors = 0
        environment = {**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": TOKEN}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rollout_control_console", "serve", "--port", "0", "--ledger", servers.url],
            env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"on (http://\S+)", line):
                self._base_url = found[1]
                break
        threading.Thread(target=self._process.stderr.read, daemon=True).start()
        asyncio.run(self._prepare(servers.url))

    async def _prepare(self, url: str) -> None:
        async with open_ledger(url) as ledger:
            for call in range(3):
                await ledger.record(sample_commit("kept", f"c{call}"))
            await ledger.record(sample_commit("retired", "c"))
            await ledger.retire(["retired"])

    def run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        async with RolloutControlClient(self._base_url, TOKEN, request_timeout_s=10) as client:
            while not self.stopped.is_set():
                try:
                    right = len((await client.manifest("kept")).records) == 3
                    self.right += right
                    self.wrong += not right
                    try:
                        await client.manifest("retired")
                        self.wrong += 1
                    except RolloutRetiredError:
                        self.right += 1
                except RolloutControlError:
                    self.errors += 1
                await asyncio.sleep(0.05)

    def end(self) -> None:
        self.stopped.set()
        self.join()
        self._process.terminate()
        self._process.wait()


@contextmanager
def under_load(servers: Servers, directory: Path, name: str, writer_count: int = 3) -> Iterator[tuple[Counts, "Load"]]:
    """Runs writers, `serve` and who watches them around a fault, and judges what is there when it is over."""
    counts = Counts()
    reader, connections = Reader(servers), Connections(servers)
    reader.start()
    connections.start()
    try:
        with writers(servers.url, directory, name, writer_count) as notes:
            load = Load(notes, reader)
            load.wait_for_writes(200)
            yield counts, load
            load.wait_for_writes(200)
    finally:
        reader.end()
        connections.stopped.set()
        connections.join()

    async def compare() -> None:
        async with open_ledger(servers.url) as ledger:
            await judge(ledger, notes, counts)

    asyncio.run(compare())
    counts.wrong_manifests += reader.wrong
    counts.errors += reader.errors
    counts.most_connections = connections.most


class Load:
    """The writers of one scenario, and the reader."""

    def __init__(self, notes: list[Path], reader: Reader) -> None:
        self.notes = notes
        self.reader = reader

    def wait_for_writes(self, count: int) -> None:
        """Returns when so many further writes were acknowledged."""
        enough = acknowledgements(self.notes) + count
        wait_for(lambda: acknowledgements(self.notes) >= enough, timeout_s=120)


def kill_and_promote(servers: Servers, directory: Path, times: int) -> Counts:
    with under_load(servers, directory, "kill") as (counts, load):
        for _ in range(times):
            servers.primary.kill()
            servers.fail_over()
            load.wait_for_writes(50)
            servers.mend()
            load.wait_for_writes(50)
    return counts


def hang_the_primary(servers: Servers, directory: Path) -> Counts:
    with under_load(servers, directory, "hang") as (counts, load):
        servers.primary.hang()
        servers.fail_over()
        load.wait_for_writes(200)
        servers.standby.kill()
        servers.mend()
    return counts


def drop_packets(servers: Servers, directory: Path) -> Counts:
    with under_load(servers, directory, "drop") as (counts, load):
        if not servers.primary.drop_packets():
            counts.remarks.append("NOT RUN: this machine does not let packets be dropped")
            return counts
        servers.fail_over()
        load.wait_for_writes(200)
        servers.standby.kill()
        subprocess.run(["ip", "xfrm", "policy", "flush"], check=True)
        servers.mend()
    return counts


def lose_the_standby(servers: Servers, directory: Path, for_s: float) -> Counts:
    with under_load(servers, directory, "lost", writer_count=7) as (counts, load):
        servers.standby.kill()
        before = load.reader.right
        # There is no event to wait for: what counts is what happens while nothing is acknowledged.
        time.sleep(for_s)
        counts.remarks.append(f"{load.reader.right - before} reads answered rightly while writes waited {for_s:.0f} s")
        servers.standby.follow(servers.primary)
        servers.primary.wait_for_standby(synchronous=True)
    return counts


def former_primary_returns(servers: Servers, directory: Path) -> Counts:
    with under_load(servers, directory, "back") as (counts, load):
        servers.primary.kill()
        servers.fail_over()
        load.wait_for_writes(100)
        # Its standby is another server now; it waits for nobody, which is the worse case.
        (servers.standby.data / "postgresql.auto.conf").write_text("")
        servers.standby.run()
        load.wait_for_writes(300)
        # The writers look at all hosts every half minute, and note what they know on a server that lags behind.
        noted = "SELECT count(*) FROM rollout_control.timeline WHERE timeline > 1"
        wait_for(lambda: servers.standby.value(noted) == 1)
        refusal = asyncio.run(refusal_of(servers.standby.url))
        counts.remarks.append(f"a handle that knows the former primary only: {refusal}")
        servers.standby.kill()
        servers.mend()
    return counts


async def refusal_of(url: str) -> str:
    async with open_ledger(url + "?operation_timeout_s=2") as ledger:
        try:
            await ledger.manifest("kept")
        except LedgerUnavailableError as error:
            return "refused, " + ("naming both timelines" if "is on timeline" in str(error) else str(error))
    return "not refused"


def cancel_the_wait(servers: Servers, directory: Path) -> Counts:
    cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with under_load(servers, directory, "cancel") as (counts, load):
        servers.standby.kill()
        wait_for(
            lambda: servers.primary.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") > 0
        )
        before = acknowledgements(load.notes)
        cancelled = 0
        ends_at = time.monotonic() + 5
        while time.monotonic() < ends_at:
            cancelled += servers.primary.value(cancel)
        acknowledged = acknowledgements(load.notes) - before
        counts.remarks.append(f"{cancelled} waits cancelled, {acknowledged} writes acknowledged meanwhile")
        servers.standby.follow(servers.primary)
        servers.primary.wait_for_standby(synchronous=True)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, required=True, help="the folder of PostgreSQL's programs")
    parser.add_argument("--kills", type=int, default=10, help="how often the primary is killed (default: 10)")
    parser.add_argument("--lost-for-s", type=float, default=60, help="how long the standby is gone (default: 60)")
    parser.add_argument("--only", action="append", help="run this scenario alone")
    arguments = parser.parse_args()
    scenarios: dict[str, tuple[str, Callable[[Servers, Path], Counts]]] = {
        "kill": (
            f"primary killed, standby promoted, {arguments.kills} times",
            lambda servers, directory: kill_and_promote(servers, directory, arguments.kills),
        ),
        "hang": ("primary hangs (SIGSTOP), standby promoted", hang_the_primary),
        "drop": ("packets of the primary dropped, standby promoted", drop_packets),
        "lost": (
            f"standby gone for {arguments.lost_for_s:.0f} s, seven writers",
            lambda servers, directory: lose_the_standby(servers, directory, arguments.lost_for_s),
        ),
        "back": ("former primary comes back beside the new one", former_primary_returns),
        "cancel": ("waits for the standby cancelled", cancel_the_wait),
    }
    print(
        "| fault | acknowledged | missing | twice | fences gone | wrong manifests | errors | longest gap "
        "| most connections |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    bad = False
    remarks: list[str] = []
    for name, (title, scenario) in scenarios.items():
        if arguments.only and name not in arguments.only:
            continue
        servers = Servers(arguments.binaries)
        try:
            with tempfile.TemporaryDirectory() as directory:
                counts = scenario(servers, Path(directory))
        finally:
            servers.stop()
        bound = MAX_CONNECTIONS * (8 if name == "lost" else 4)
        lost = counts.missing + counts.twice + counts.fences_gone + counts.wrong_manifests
        bad = bad or lost > 0 or counts.most_connections > bound
        print(
            f"| {title} | {counts.acknowledged} | {counts.missing} | {counts.twice} | {counts.fences_gone} | "
            f"{counts.wrong_manifests} | {counts.errors} | {counts.longest_gap_s:.1f} s | "
            f"{counts.most_connections} of {bound} |",
            flush=True,
        )
        remarks += [f"- {title}: {remark}." for remark in counts.remarks]
    print("", *remarks, sep="\n")
    return bad


if __name__ == "__main__":
    sys.exit(main())
