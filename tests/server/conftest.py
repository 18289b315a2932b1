import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollout_control_server import MemoryLedger, create_app
from served import SERVE, TOKEN, Control, ServerProcess, control_client, serving


class Switch:
    """An application that is another one for each test: starting a server takes longer than most tests."""

    app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


@pytest.fixture(scope="session")
def switched_server() -> Iterator[tuple[Switch, str]]:
    switch = Switch()
    with serving(switch, lifespan="off") as base_url:
        yield switch, base_url


@pytest.fixture
def control(switched_server: tuple[Switch, str]) -> Iterator[Control]:
    """A control plane over a new MemoryLedger."""
    switch, base_url = switched_server
    ledger = MemoryLedger()
    switch.app = create_app(ledger, TOKEN)
    with control_client(base_url) as http:
        yield Control(base_url, ledger, http)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts `rollout-control serve` on a new file, with the arguments given, and ends it with the test."""
    ledger_url = f"sqlite:///{tmp_path}/ledger.sqlite"
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> ServerProcess:
            process = subprocess.Popen(
                [*SERVE, "--ledger", ledger_url, *arguments],
                env={**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": TOKEN},
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(lambda: (process.kill(), process.communicate()))
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "on http://" in line, line + process.stderr.read()
            return ServerProcess(process, line.split()[-1])

        yield start
