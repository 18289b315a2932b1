"""The three servers that are compared, each one process: `python -m bench.servers KIND FOLDER`.

They differ in the application only: the same server, event loop and settings serve each, until the standard input ends.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rollout_control_server import create_app, open_ledger
from rollout_control_server.serving import run_server
from rollout_control_spec import CONTROL_ROUTE_PREFIX

Kind = Literal["ours", "peer", "limit"]

TOKEN = "the-token-of-the-benchmarks"
AUTHORIZATION = f"Bearer {TOKEN}"


def manifest_path(rollout_id: str) -> str:
    return f"{CONTROL_ROUTE_PREFIX}/rollouts/{rollout_id}/manifest"


@contextlib.contextmanager
def serving(kind: Kind, folder: Path) -> Iterator["ServerProcess"]:
    """Starts one of the servers over a folder that holds `ours.sqlite` and `peer/`."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.servers", kind, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            base_url = process.stdout.readline().strip()
            if not base_url:
                raise RuntimeError(f"the server {kind} ended before it listened")
            yield ServerProcess(base_url, process.pid)
        finally:
            process.stdin.close()


class ServerProcess:
    def __init__(self, base_url: str, pid: int) -> None:
        self.base_url = base_url
        self.pid = pid
        self.host, _, port = base_url.removeprefix("http://").rpartition(":")
        self.port = int(port)


def _application(kind: str, folder: Path) -> Any:
    if kind == "ours":
        return create_app(open_ledger(f"sqlite:///{folder}/ours.sqlite"), TOKEN)
    if kind == "peer":
        from bench.peer import peer_app

        return peer_app(folder / "peer", TOKEN)
    return _bytes_from_memory(asyncio.run(_manifests(folder)))


async def _manifests(folder: Path) -> dict[str, bytes]:
    async with open_ledger(f"sqlite:///{folder}/ours.sqlite") as ledger:
        ids = (folder / "ids").read_text().split()
        return {manifest_path(rollout_id): await ledger.manifest(rollout_id) for rollout_id in ids}


def _bytes_from_memory(bodies: dict[str, bytes]) -> Any:
    """Returns the least that an ASGI application can do to answer with these bodies."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = bodies[scope["path"]]
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return application


def main() -> None:
    kind, folder = sys.argv[1:]

    async def standard_input_ends() -> None:
        await asyncio.to_thread(sys.stdin.read)

    run_server(
        _application(kind, Path(folder)),
        "127.0.0.1",
        0,
        on_listening=lambda url: print(url, flush=True),
        until=standard_input_ends,
    )


if __name__ == "__main__":
    main()
