"""The manifests of many rollouts: in a few requests where the server can do that, else one by one."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, NamedTuple

from rollout_control_spec import RolloutRetiredError

from rollout_control_client._generated.models import RolloutManifest
from rollout_control_client.errors import RequestFailedError
from rollout_control_client.iterators import PartIterator
from rollout_control_client.optional_operations import NO_SUCH_OPERATION

__all__ = ["ManifestIterator", "ManifestOutcome"]

ManifestOutcome = tuple[str, RolloutManifest | RolloutRetiredError]
"""A rollout's id, and its manifest or, if it is retired, the error that says so."""

IDS_A_REQUEST: Final = 256
"""Few enough that the server works on the next answer while this one is decoded."""

BULK_REQUESTS_AT_A_TIME: Final = 2


class Part(NamedTuple):
    """What one request has dealt with, and the ids that are still to be asked for."""

    outcomes: list[ManifestOutcome]
    remaining: list[str]


class ManifestIterator(PartIterator[ManifestOutcome]):
    """Gives each rollout's outcome exactly once, as it arrives; what `RolloutControlClient.manifests` returns.

    Attributes:
        total: How many outcomes there are in all, for whoever shows progress.
    """

    def __init__(self, parts: AsyncGenerator[list[ManifestOutcome], None], total: int) -> None:
        super().__init__(parts)
        self.total = total


class ManifestReader:
    """Reads manifests by the operation that the server has, which it finds out with its first request.

    Args:
        read_many: Reads several manifests by one request of at most so many seconds (spec, getRolloutManifests).
        read_one: Reads one by a request of its own.
    """

    def __init__(
        self,
        read_many: Callable[[list[str], float], Awaitable[Part]],
        read_one: Callable[[str, float], Awaitable[ManifestOutcome]],
    ) -> None:
        self._read_many = read_many
        self._read_one = read_one
        self._has_bulk: bool | None = None
        self._has_read_one = False

    async def parts(
        self, rollout_ids: list[str], max_concurrency: int, request_timeout_s: float
    ) -> AsyncGenerator[list[ManifestOutcome], None]:
        """Iterates over the outcomes of each answer; holds at most as many answers as run at a time, twice."""
        waiting = deque(rollout_ids)
        running: set[asyncio.Task[Part]] = set()

        def start_requests() -> None:
            ids_a_request, at_a_time = self._plan(max_concurrency)
            while waiting and len(running) < at_a_time:
                batch = [waiting.popleft() for _ in range(min(ids_a_request, len(waiting)))]
                running.add(asyncio.create_task(self._read(batch, request_timeout_s)))

        try:
            start_requests()
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                parts = [task.result() for task in done]
                running.difference_update(done)
                for part in parts:
                    waiting.extendleft(reversed(part.remaining))
                start_requests()
                for part in parts:
                    yield part.outcomes
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _plan(self, max_concurrency: int) -> tuple[int, int]:
        """Returns how many ids a request names, and how many requests run at a time."""
        if self._has_bulk is None:
            return IDS_A_REQUEST, 1
        if self._has_bulk:
            return IDS_A_REQUEST, min(max_concurrency, BULK_REQUESTS_AT_A_TIME)
        return 1, max_concurrency

    async def _read(self, rollout_ids: list[str], request_timeout_s: float) -> Part:
        if self._has_bulk is False:
            return Part([await self._read_alone(rollout_id, request_timeout_s) for rollout_id in rollout_ids], [])
        try:
            part = await self._read_many(rollout_ids, request_timeout_s)
        except RequestFailedError as error:
            if self._has_bulk or error.status not in NO_SUCH_OPERATION:
                raise
            self._has_bulk = False
            return Part([], rollout_ids)
        self._has_bulk = True
        return part

    async def _read_alone(self, rollout_id: str, request_timeout_s: float) -> ManifestOutcome:
        try:
            outcome = await self._read_one(rollout_id, request_timeout_s)
        except RequestFailedError:
            if not self._has_read_one:
                # What said that there is no such operation may have been no server of ours at all, but a proxy.
                self._has_bulk = None
            raise
        self._has_read_one = True
        return outcome
