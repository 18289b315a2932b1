"""Both clients through Debian's nginx, before a server that is restarted meanwhile: `nox -s nginx`."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import free_port
from rollout_control_client import RolloutControlClient, RolloutManifest, SyncRolloutControlClient
from rollout_control_server import open_ledger
from rollout_control_server.samples import sample_conversation
from served import SERVE, TOKEN

IDS = [f"r{index}" for index in range(500)]
RESTART_AFTER = 100
"""So many manifests were read when the server is ended."""


class Restarted:
    """`rollout-control serve` behind nginx."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server_port, port = free_port(), free_port()
        self.base_url = f"http://127.0.0.1:{port}"
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
            f"http {{ access_log {folder}/access.log; client_body_temp_path {folder}/body; "
            f"proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; "
            f"scgi_temp_path {folder}/s; server {{ listen 127.0.0.1:{port}; "
            f"location / {{ proxy_pass http://127.0.0.1:{self.server_port}; }} }} }}\n"
        )
        self.server = self._start()
        self.nginx = subprocess.Popen(["/usr/sbin/nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])

    def _start(self) -> subprocess.Popen[str]:
        server = subprocess.Popen(
            [*SERVE[:-1], str(self.server_port), "--ledger", f"sqlite:///{self.folder}/ledger.sqlite"],
            env={**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": TOKEN},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert server.stderr is not None
        assert "on http://" in server.stderr.readline()
        return server

    def restart(self) -> None:
        self._end(self.server)
        # A request meets nginx without a server behind it, which answers 502.
        self.without_server.wait(60)
        self.server = self._start()

    def begin_restart(self) -> threading.Thread:
        self.without_server = threading.Event()
        thread = threading.Thread(target=self.restart)
        thread.start()
        return thread

    def _end(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()

    def stop(self) -> None:
        # Its worker processes would survive a SIGKILL of their master.
        self.nginx.terminate()
        self.nginx.wait()
        self._end(self.server)


@pytest.fixture
def behind_nginx(tmp_path: Path) -> Iterator[Restarted]:
    async def record() -> None:
        async with open_ledger(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger:
            for rollout_id in IDS:
                for commit in sample_conversation(rollout_id, 2):
                    await ledger.record(commit)

    asyncio.run(record())
    restarted = Restarted(tmp_path)
    yield restarted
    restarted.stop()


def test_the_synchronous_client_finishes(behind_nginx: Restarted, caplog: pytest.LogCaptureFixture) -> None:
    with SyncRolloutControlClient(behind_nginx.base_url, TOKEN, 120) as client:
        read = 0
        for rollout_id in IDS:
            if read == RESTART_AFTER:
                restart = behind_nginx.begin_restart()
                caplog.handler.addFilter(lambda record: behind_nginx.without_server.set() or True)
            assert len(client.manifest(rollout_id).records) == 2
            read += 1
        restart.join()
    assert read == len(IDS)
    assert "status 502" in caplog.text


async def test_the_asynchronous_client_finishes(behind_nginx: Restarted, caplog: pytest.LogCaptureFixture) -> None:
    async with RolloutControlClient(behind_nginx.base_url, TOKEN, 120) as client:
        manifests: list[RolloutManifest] = []
        waiting = iter(IDS)

        async def read() -> None:
            for rollout_id in waiting:
                manifests.append(await client.manifest(rollout_id))

        for _ in range(RESTART_AFTER):
            manifests.append(await client.manifest(next(waiting)))
        restart = behind_nginx.begin_restart()
        caplog.handler.addFilter(lambda record: behind_nginx.without_server.set() or True)
        await asyncio.gather(*(read() for _ in range(8)))
        await asyncio.to_thread(restart.join)
    assert len(manifests) == len(IDS)
    assert "status 502" in caplog.text
