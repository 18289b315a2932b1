"""Deletes the rows of removed rollouts, in the background of a handle that is in use."""

import asyncio
import logging
from typing import Final

from rollout_control_server.errors import LedgerError
from rollout_control_server.ledger.postgres.connections import Connections, Use

logger = logging.getLogger("rollout_control_server.ledger")

CHUNK_ROWS: Final = 1000
LOOK_EVERY_S: Final = 60.0
"""How often a handle in use looks for what others have left, because they crashed or were closed."""


class Purger:
    """Runs a task while there is something to purge, and none otherwise.

    Between two chunks it rests for as long as a chunk took, so that it takes half of one connection's time at most.
    """

    def __init__(self, connections: Connections, chunk_timeout_s: float) -> None:
        self._connections = connections
        self._chunk_timeout_s = chunk_timeout_s
        self._task: asyncio.Task[None] | None = None
        self._look_again = False
        self._looked_at = float("-inf")
        self._forgot_at = float("-inf")
        self._closed = False

    def nudge(self, *, removed: bool = False) -> None:
        """Starts purging, if rows were removed, or if nobody has looked for some time."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        if removed or loop.time() - self._looked_at > LOOK_EVERY_S:
            self._looked_at = loop.time()
            self._look_again = True
            if self._task is None or self._task.done():
                self._task = loop.create_task(self._run())

    async def aclose(self) -> None:
        """Stops after at most one chunk, and starts nothing any more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._look_again:
            self._look_again = False
            found = True
            while found:
                begun = loop.time()
                try:
                    rows = await self._connections.call(
                        Use.PURGE, "purge", CHUNK_ROWS, deadline=begun + self._chunk_timeout_s
                    )
                    found = rows[0][0]
                    if not found and begun - self._forgot_at >= LOOK_EVERY_S:
                        self._forgot_at = begun
                        await self._connections.call(
                            Use.PURGE, "forget_attempts", deadline=begun + self._chunk_timeout_s
                        )
                except LedgerError as error:
                    # What is not purged now is found again later; nobody waits for it.
                    logger.warning("the rows of removed rollouts could not be purged: %s", error)
                    return
                await asyncio.sleep(loop.time() - begun)
