"""A TCP proxy before a database that fails at random: it cuts, resets and stalls, before and after what it forwards."""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator

__all__ = ["FaultProxy"]

STALL_S = 4.0
"""Longer than a ledger waits for one attempt."""


class FaultProxy:
    """Forwards connections to a port of this machine, and fails while `fault_rate` is above 0.

    For each piece of data that it has read, in either direction, it does one of:

    - forward it;
    - cut the connection instead, as when a request never arrives, or its acknowledgement is lost: the server's
      answers are where a COMMIT is acknowledged, so they have most of the faults;
    - forward it, and then reset the connection;
    - hold it back, go silent for longer than anyone waits, and then forward it all the same.

    Attributes:
        port: Where it listens.
        faults: What it did, and how often.
    """

    def __init__(self, target_port: int, seed: int) -> None:
        self.port = 0
        self.faults: Counter[str] = Counter()
        self.fault_rate = 0.0
        self._target_port = target_port
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Runs it in a thread."""
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(self._stop(server), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _stop(self, server: asyncio.Server) -> None:
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        both = (writer, upstream_writer)
        directions = [
            asyncio.ensure_future(self._forward(reader, upstream_writer, both, 0.2)),
            asyncio.ensure_future(self._forward(upstream_reader, writer, both, 1.0)),
        ]
        # When the proxy stops, asyncio's streams would log it.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in directions:
            direction.cancel()
        for side in both:
            side.transport.abort()
        await asyncio.gather(*directions, return_exceptions=True)

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: tuple[asyncio.StreamWriter, ...],
        share: float,
    ) -> None:
        """Forwards one direction of a connection; both end when this does."""
        while data := await reader.read(65536):
            fault = None
            if self._random.random() < self.fault_rate * share:
                fault = self._random.choice(("cut", "cut", "reset", "stall"))
                self.faults[fault] += 1
            if fault == "cut":
                return
            if fault == "stall":
                await asyncio.sleep(STALL_S)
            writer.write(data)
            await writer.drain()
            if fault == "reset":
                for side in both:
                    # Closing such a socket sends RST.
                    connection = side.get_extra_info("socket")
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
