"""A server of the test's own on a loopback socket, which can do what no framework would."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rollout_control_client import RolloutControlClient

TOKEN = "s3cret-token.of~the+test/="


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


# Bytes are written as they are; a callable writes what it likes, and the connection ends when it returns.
Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class LoopbackServer:
    """Gives the answers of its script, one per request, and the last one for ever."""

    script: list[Answer]
    base_url: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.add(asyncio.current_task())
        try:
            while True:
                request = await _read_request(reader)
                self.requests.append(request)
                answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                if not isinstance(answer, bytes):
                    await answer(writer)
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass  # The test is over, or the client has gone.
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def http_answer(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> bytes:
    """The bytes of an HTTP response; underscores in names of headers stand for hyphens."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


Serve = Callable[..., Awaitable[LoopbackServer]]
Connect = Callable[..., RolloutControlClient]


@pytest.fixture(scope="session")
def token() -> str:
    return TOKEN


@pytest.fixture(scope="session")
def answer() -> Callable[..., bytes]:
    return http_answer


@pytest.fixture
async def serve() -> AsyncGenerator[Serve, None]:
    """`await serve(answer, ...)` starts a server with that script."""
    running: list[tuple[asyncio.Server, LoopbackServer]] = []

    async def start(*script: Answer) -> LoopbackServer:
        server = LoopbackServer(list(script))
        listener = await asyncio.start_server(server.serve_connection, "127.0.0.1", 0)
        running.append((listener, server))
        server.base_url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        return server

    yield start
    for listener, server in running:
        listener.close()
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks)


@pytest.fixture(params=["httpx", "aiohttp"])
def connection(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What connects to servers: httpx alone, or aiohttp, as where the extra `fast` is installed."""
    kind: str = request.param
    if kind == "httpx":
        monkeypatch.setitem(sys.modules, "rollout_control_client._aiohttp_transport", None)
    return kind


@pytest.fixture
async def connect(connection: str) -> AsyncGenerator[Connect, None]:
    """`connect(base_url, ...)` makes a client that is closed after the test."""
    clients: list[RolloutControlClient] = []

    def make(
        base_url: str = "http://control.test", request_timeout_s: float = 30.0, **options: object
    ) -> RolloutControlClient:
        client = RolloutControlClient(base_url, TOKEN, request_timeout_s, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the first pause longer than any time limit, so that a failure is final, on however slow a machine."""
    monkeypatch.setattr("rollout_control_client._exchange.FIRST_BACKOFF_S", 1e9)


@pytest.fixture(scope="session")
def peer_vectors() -> Path:
    return Path(__file__).parents[1] / "peer_vectors"


@pytest.fixture(scope="session")
def linear(peer_vectors: Path) -> bytes:
    """A manifest's body, of the rollout `linear-3`."""
    return (peer_vectors / "linear-3.manifest.json").read_bytes()
