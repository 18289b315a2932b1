"""Running an application on a socket of this process."""

import asyncio
import contextlib
import ctypes
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import uvicorn

from rollout_control_server.asgi import ASGIApp
from rollout_control_server.ledger.base import CaptureLedger

__all__ = ["run_server"]

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

LAST_REQUESTS_S: Final = 10
"""Seconds that running requests have to end once a signal has come; a client that stalls must not hold the server."""


class _AnnouncingServer(uvicorn.Server):
    """Says when connections are accepted, which is later than the socket is bound."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()


def run_server(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    on_listening: Callable[[str], None],
    ledger: CaptureLedger | None = None,
    until: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serves an application until SIGINT or SIGTERM, then finishes what it has begun, within ten seconds.

    Args:
        app: The application; its lifespan is run.
        host: The name or address to listen on.
        port: The port; 0 takes a free one.
        on_listening: Called once with the base URL when connections are accepted.
        ledger: The application's ledger, which is asked first whether it can take a write.
        until: Serves until this returns, besides the signals.

    Raises:
        LedgerError: The ledger cannot take a write.
        OSError: The address cannot be listened on.
    """
    _keep_memory()
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.create_server(address[:2], family=family) as listener:
        bound_host, bound_port = listener.getsockname()[:2]
        shown_host = f"[{bound_host}]" if family == socket.AF_INET6 else bound_host
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=LAST_REQUESTS_S,
        )
        server = _AnnouncingServer(config, lambda: on_listening(f"http://{shown_host}:{bound_port}"))

        async def serve() -> None:
            if ledger is not None:
                # In the loop that serves: a ledger may belong to the one that first used it.
                await ledger.check_ready()
            stopper: asyncio.Task[Any] | None = None
            if until is not None:
                stopper = asyncio.ensure_future(_stop_after(until, server))
            await server.serve(sockets=[listener])
            if stopper is not None:
                stopper.cancel()

        # uvicorn raises the signal that ended it once more, after everything is closed.
        with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(serve())


def _keep_memory() -> None:
    """Lets glibc keep 64 MiB that a long answer has used, for the next one (mallopt(3)).

    By default it gives most of it back after each answer, and the next one takes it page by page: a megabyte's manifest
    takes more than twice as long then.
    """
    if sys.platform == "linux":
        # Not there in other C libraries, which do otherwise.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_TRIM_THRESHOLD, 64 * 2**20)
            mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)


async def _stop_after(until: Callable[[], Awaitable[None]], server: uvicorn.Server) -> None:
    try:
        await until()
    finally:
        server.should_exit = True
