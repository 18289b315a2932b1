"""The event loop that a ledger's handle belongs to, in a thread of its own."""

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from rollout_control_server.errors import LedgerClosedError

__all__ = ["LedgerLoop"]

_Result = TypeVar("_Result")


class LedgerLoop:
    """Runs coroutines in one event loop, for callers in any thread and in any event loop.

    Gym exports and imports rows by synchronous calls, some of them on the thread of its running event loop. Waiting
    there for a coroutine of that same loop would never end. A database connection also belongs to one event loop, and
    Gym may ask from several. So the ledger's handle lives in this loop, and every caller waits for it.

    The thread starts with the first coroutine, and ends with `stop` or with this object.
    """

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    async def wait_for(self, operation: Coroutine[Any, Any, _Result]) -> _Result:
        """Returns what the operation returns; a caller that is cancelled cancels it."""
        return await asyncio.wrap_future(self._submit(operation))

    async def carry_through(self, operation: Coroutine[Any, Any, _Result]) -> _Result:
        """Returns what the operation returns; it goes on when its caller is cancelled."""
        waiting = asyncio.wrap_future(self._submit(operation))
        # asyncio reports an error that nobody has asked for, as nobody does when the caller is cancelled.
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(waiting)

    def block_on(self, operation: Coroutine[Any, Any, _Result]) -> _Result:
        """Returns what the operation returns; the calling thread does nothing else until then."""
        return self._submit(operation).result()

    async def stop(self) -> None:
        """Ends the loop and its thread. What is called afterwards raises LedgerClosedError."""
        with self._starting:
            self._stopped = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)

    def _submit(self, operation: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        with self._starting:
            if self._stopped:
                operation.close()
                raise LedgerClosedError("this GymCaptureLedger is closed")
            if self._loop is None:
                runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
                self._loop = runner.get_loop()
                self._thread = threading.Thread(target=_run, args=(runner,), name="capture-ledger", daemon=True)
                self._thread.start()
                weakref.finalize(self, _stop_abandoned, self._loop)
            return asyncio.run_coroutine_threadsafe(operation, self._loop)


def _run(runner: asyncio.Runner) -> None:
    with runner:  # At its end it cancels the tasks that are left, and closes the loop.
        runner.get_loop().run_forever()


def _stop_abandoned(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
