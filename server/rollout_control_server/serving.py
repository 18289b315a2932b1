"""Serves an application with uvicorn, on a socket of this process."""

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

SHUTDOWN_S: Final = 10
"""Seconds that running requests have to end after a signal, so that a stalled client cannot keep the server running."""


class _AnnouncingServer(uvicorn.Server):
    """Announces when it accepts connections, which is later than when the socket is bound."""

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
    """Serves an application until SIGINT or SIGTERM. Requests that are running then have ten seconds to end.

    Args:
        app: The application; its lifespan is run.
        host: The name or address to listen on.
        port: The port; 0 takes a free one.
        on_listening: Called once, with the base URL, when connections are accepted.
        ledger: The application's ledger. Nothing is served unless it can take a write.
        until: Ends the serving as a signal does, when it returns.

    Raises:
        LedgerError: The ledger cannot take a write.
        OSError: The address cannot be listened on.
    """
    _keep_freed_memory()
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
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
        server = _AnnouncingServer(config, lambda: on_listening(f"http://{shown_host}:{bound_port}"))

        async def serve() -> None:
            if ledger is not None:
                # In the loop that serves: a ledger belongs to the loop that first uses it.
                await ledger.check_ready()
            stopper: asyncio.Task[Any] | None = None
            if until is not None:
                stopper = asyncio.ensure_future(_stop_after(until, server))
            await server.serve(sockets=[listener])
            if stopper is not None:
                stopper.cancel()

        # uvicorn raises the signal that ended it once more, after it has closed everything.
        with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(serve())


def _keep_freed_memory() -> None:
    """Has glibc keep up to 64 MiB that a long answer has freed, for the next one (mallopt(3)).

    By default glibc returns most of it after each answer, and the kernel hands it out again page by page: sending a
    manifest of a megabyte then takes more than twice as long.
    """
    if sys.platform == "linux":
        # Other C libraries have no mallopt.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_TRIM_THRESHOLD, 64 * 2**20)
            mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)


async def _stop_after(until: Callable[[], Awaitable[None]], server: uvicorn.Server) -> None:
    try:
        await until()
    finally:
        server.should_exit = True
