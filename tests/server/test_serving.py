"""`run_server`, where a process of `rollout-control serve` cannot show it."""

import contextlib
from typing import Any

from rollout_control_server.serving import run_server


def test_a_start_that_fails_is_not_announced() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "the ledger's disk is gone"})

    announced: list[str] = []
    with contextlib.suppress(SystemExit):  # with which some versions of uvicorn end a start that failed
        run_server(app, "127.0.0.1", 0, on_listening=announced.append)
    assert announced == []
