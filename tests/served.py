"""Servers under test: in a thread of this process, where a test writes the ledger, or as a process of their own."""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import uvicorn
from rollout_control_server import CaptureLedger, create_app
from rollout_control_spec import CONTROL_ROUTE_PREFIX

TOKEN = "the-token-of-the-tests"

SERVE = [sys.executable, "-m", "rollout_control_console", "serve", "--port", "0"]


@contextlib.contextmanager
def serving(
    app: Any, lifespan: Literal["auto", "on", "off"] = "auto", root_path: str = "", port: int = 0
) -> Iterator[str]:
    """Serves an application in a thread, over a real socket, and yields its base URL."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan=lifespan, root_path=root_path)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@dataclass
class Control:
    """A served control plane, and requests to it."""

    base_url: str
    ledger: CaptureLedger
    http: httpx.Client

    def get_manifest(self, rollout_id: str, **options: Any) -> httpx.Response:
        return self.http.get(f"{CONTROL_ROUTE_PREFIX}/rollouts/{rollout_id}/manifest", **options)

    def remove(self, operation: str, *rollout_ids: str) -> httpx.Response:
        return self.http.post(f"{CONTROL_ROUTE_PREFIX}/rollouts/{operation}", json={"rollout_ids": list(rollout_ids)})

    def post(self, operation: str, body: bytes, **headers: str) -> httpx.Response:
        headers = {"content-type": "application/json"} | {key.replace("_", "-"): headers[key] for key in headers}
        return self.http.post(f"{CONTROL_ROUTE_PREFIX}/rollouts/{operation}", content=body, headers=headers)


def control_client(base_url: str) -> httpx.Client:
    """Returns a plain HTTP client that sends the token."""
    return httpx.Client(base_url=base_url, headers={"authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=30)


@contextlib.contextmanager
def controlled(ledger: Any, app: Any = None) -> Iterator[Control]:
    """Serves a ledger, in an application of its own unless one is given."""
    with serving(app or create_app(ledger, TOKEN)) as base_url, control_client(base_url) as http:
        yield Control(base_url, ledger, http)


@dataclass
class ServerProcess:
    """`rollout-control serve` as a process."""

    process: subprocess.Popen[str]
    base_url: str

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.base_url)
        return url.host, url.port or 80
