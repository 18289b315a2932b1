"""SyncRolloutControlClient: RolloutControlClient for code without asyncio."""

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Literal, NoReturn, Self, TypeVar

import httpx
from rollout_control_spec import RolloutControlError

from rollout_control_client._generated.models import (
    IdleRemoval,
    ListedRollout,
    RolloutManifest,
    RolloutRemoval,
    RolloutSummary,
)
from rollout_control_client.client import DEFAULT_REQUEST_TIMEOUT_S, RolloutControlClient, environment
from rollout_control_client.iterators import PartIterator
from rollout_control_client.manifests import ManifestIterator, ManifestOutcome

__all__ = ["SyncIterator", "SyncManifestIterator", "SyncRolloutControlClient"]

T = TypeVar("T")


class SyncIterator(Generic[T]):
    """Gives each item once, as it arrives; what `SyncRolloutControlClient.rollouts` returns."""

    def __init__(self, items: PartIterator[T], loop: "_LoopThread") -> None:
        self._items = items
        self._loop = loop
        self._arrived: deque[T] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not self._arrived:
            # All that has arrived comes at once, since each change of the thread takes as long as several of them.
            self._arrived.extend(self._loop.run(self._items.next_part()))
        if not self._arrived:
            raise StopIteration
        return self._arrived.popleft()

    def close(self) -> None:
        """Ends the iteration and every request that runs for it."""
        self._arrived.clear()
        self._loop.run(self._items.aclose())


class SyncManifestIterator(SyncIterator[ManifestOutcome]):
    """Gives each rollout's outcome exactly once, as it arrives; what `SyncRolloutControlClient.manifests` returns.

    Attributes:
        total: How many outcomes there are in all, for whoever shows progress.
    """

    def __init__(self, manifests: ManifestIterator, loop: "_LoopThread") -> None:
        super().__init__(manifests, loop)
        self.total = manifests.total


class SyncRolloutControlClient:
    """Reads and removes the capture ledgers of a model server, in code without asyncio.

        with SyncRolloutControlClient("http://model-server:8000", token) as client:
            manifest = client.manifest("train-0007.sample-3")
            client.retire(["train-0007.sample-3"])

    It has the methods of `RolloutControlClient`, with the same arguments, errors and promises, because it runs that
    client in an event loop of its own, in a thread of its own. So it works where a loop is running, as in a notebook,
    any number of threads may share it, and in a forked process it begins anew. One that is left open is closed when it
    is garbage, or when the interpreter ends.

    Args:
        base_url: As of `RolloutControlClient`, like the other arguments.
        auth_token: The secret that is sent as bearer token.
        request_timeout_s: Seconds that one whole request may take, with all its retries.
        transport: What sends the requests, an asynchronous transport of httpx.

    Raises:
        ValueError: As of `RolloutControlClient`.
    """

    def __init__(
        self,
        base_url: str,
        auth_token: str,
        request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._client = RolloutControlClient(base_url, auth_token, request_timeout_s, transport=transport)
        self._lock: Final = threading.Lock()
        self._loop = _LoopThread()
        self._closed = False
        self._release = weakref.finalize(self, _close, self._client, self._loop)

    @classmethod
    def from_environment(
        cls,
        request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> Self:
        """See `RolloutControlClient.from_environment`."""
        return cls(*environment(), request_timeout_s, transport=transport)

    def manifest(self, rollout_id: str, *, request_timeout_s: float | None = None) -> RolloutManifest:
        """See `RolloutControlClient.manifest`."""
        return self._run(self._client.manifest(rollout_id, request_timeout_s=request_timeout_s))

    def manifests(
        self, rollout_ids: Sequence[str], *, max_concurrency: int = 32, request_timeout_s: float | None = None
    ) -> SyncManifestIterator:
        """See `RolloutControlClient.manifests`; here the loop is `for`."""
        manifests = self._client.manifests(
            rollout_ids, max_concurrency=max_concurrency, request_timeout_s=request_timeout_s
        )
        return SyncManifestIterator(manifests, self._running_loop())

    def retire(
        self, rollout_ids: Sequence[str], *, wait_s: float = 0.0, request_timeout_s: float | None = None
    ) -> RolloutRemoval:
        """See `RolloutControlClient.retire`."""
        return self._run(self._client.retire(rollout_ids, wait_s=wait_s, request_timeout_s=request_timeout_s))

    def delete(
        self, rollout_ids: Sequence[str], *, wait_s: float = 0.0, request_timeout_s: float | None = None
    ) -> RolloutRemoval:
        """See `RolloutControlClient.delete`."""
        return self._run(self._client.delete(rollout_ids, wait_s=wait_s, request_timeout_s=request_timeout_s))

    def retire_idle(
        self,
        rollout_ids: Sequence[str],
        idle_for_s: float,
        *,
        wait_s: float = 0.0,
        request_timeout_s: float | None = None,
    ) -> IdleRemoval:
        """See `RolloutControlClient.retire_idle`."""
        return self._run(
            self._client.retire_idle(rollout_ids, idle_for_s, wait_s=wait_s, request_timeout_s=request_timeout_s)
        )

    def rollouts(
        self,
        *,
        state: Literal["live", "retired"] | None = None,
        prefix: str | None = None,
        idle_for_s: float | None = None,
        changed_since: float | None = None,
        has_failures: bool | None = None,
        request_timeout_s: float | None = None,
    ) -> SyncIterator[ListedRollout]:
        """See `RolloutControlClient.rollouts`; here the loop is `for`."""
        rollouts = self._client.rollouts(
            state=state,
            prefix=prefix,
            idle_for_s=idle_for_s,
            changed_since=changed_since,
            has_failures=has_failures,
            request_timeout_s=request_timeout_s,
        )
        return SyncIterator(rollouts, self._running_loop())

    def summary(self, *, request_timeout_s: float | None = None) -> RolloutSummary:
        """See `RolloutControlClient.summary`."""
        return self._run(self._client.summary(request_timeout_s=request_timeout_s))

    def close(self) -> None:
        """Closes the connections, and the transport that was handed in. The client cannot be used afterwards."""
        self._closed = True
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a SyncRolloutControlClient, with its connections and token, cannot be pickled: make one in each process"
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            loop = self._running_loop()
        except BaseException:
            work.close()
            raise
        return loop.run(work)

    def _running_loop(self) -> "_LoopThread":
        """Returns the loop's thread: another one in a process that was forked, where the first is not running."""
        if self._closed:
            raise RolloutControlError("this SyncRolloutControlClient is closed")
        with self._lock:
            if self._loop.process_id != os.getpid():
                self._release.detach()
                self._loop = _LoopThread()
                self._release = weakref.finalize(self, _close, self._client, self._loop)
            return self._loop


class _LoopThread:
    """An event loop that runs in a thread of its own, from the first work on.

    The thread is a daemon, so that a process whose client was left open can end.
    """

    def __init__(self) -> None:
        self.process_id: Final = os.getpid()
        self._lock: Final = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the work in the loop, and returns what it returns.

        An exception in the thread that waits, such as KeyboardInterrupt, cancels the work.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Runs the last work, and ends the thread; does nothing where no thread of this process was started."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None or self.process_id != os.getpid():
            last.close()
            return
        asyncio.run_coroutine_threadsafe(last, loop).add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        # The garbage collector can run in the loop's own thread, which then ends when it has returned to the loop.
        if threading.current_thread() is not thread:
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="rollout-control-client", daemon=True
                )
                self._thread.start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _close(client: RolloutControlClient, loop: _LoopThread) -> None:
    loop.stop(client.aclose())
