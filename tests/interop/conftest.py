"""A Gym model server of the test's own: with an inference worker, an agent, and a trainer's client."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from gym_model_server import TOKEN, build_app, capture_settings, gym_http_client, serving
from inference_worker import InferenceWorker
from rollout_agent import Agent
from rollout_control_client import RolloutControlClient


@pytest.fixture(autouse=True)
def control_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN", TOKEN)


@pytest.fixture
async def worker() -> AsyncGenerator[InferenceWorker, None]:
    worker = InferenceWorker()
    async with gym_http_client(), serving(worker.app) as worker.url:
        yield worker
        worker.proceed.set()


@pytest.fixture
async def start_gym(worker: InferenceWorker) -> AsyncGenerator[Callable[..., Awaitable[str]], None]:
    """`await start_gym(ledger_url)` serves a Gym model server in this process, until the test ends."""
    async with AsyncExitStack() as stack:

        async def start(ledger_url: str, *, num_workers: int = 1, **options: Any) -> str:
            app = build_app(worker.url, capture_settings(ledger_url, **options), num_workers)
            return await stack.enter_async_context(serving(app))

        yield start


@dataclass
class GymProcess:
    """A worker process of a Gym model server."""

    base_url: str
    process: asyncio.subprocess.Process

    async def stop(self) -> int:
        """Lets it finish what it serves, and close its ledger."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await self.process.wait()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@pytest.fixture
async def start_gym_process(worker: InferenceWorker) -> AsyncGenerator[Callable[..., Awaitable[GymProcess]], None]:
    """`await start_gym_process(ledger_url)` starts one of two worker processes that share a ledger."""
    async with AsyncExitStack() as stack:

        async def start(ledger_url: str) -> GymProcess:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__).with_name("gym_model_server.py")),
                *(worker.url, ledger_url, "2"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            line = b""
            while not line.startswith(b"http"):
                line = await process.stdout.readline()
                assert line, "the worker process ended before it served"
            started = GymProcess(line.decode().strip(), process)
            stack.push_async_callback(started.stop)
            return started

        yield start


@pytest.fixture
async def make_agent() -> AsyncGenerator[Callable[..., Agent], None]:
    async with httpx.AsyncClient(timeout=60) as http:
        yield lambda rollout_id, *workers: Agent(list(workers), rollout_id, http)


@pytest.fixture
async def connect() -> AsyncGenerator[Callable[..., RolloutControlClient], None]:
    """`connect(base_url)` makes a trainer's client of ours."""
    async with AsyncExitStack() as stack:

        def make(base_url: str, token: str = TOKEN) -> RolloutControlClient:
            client = RolloutControlClient(base_url, token, request_timeout_s=20)
            stack.push_async_callback(client.aclose)
            return client

        yield make


@pytest.fixture(scope="session")
def peer_vectors() -> Path:
    return Path(__file__).parents[1] / "peer_vectors"
