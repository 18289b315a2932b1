"""The manifests of many rollouts: in a few requests where the server can do that, else one by one."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, NamedTuple, Self

from rollout_control_spec import RolloutRetiredError

from rollout_control_client._generated.models import RolloutManifest
from rollout_control_client.errors import RequestFailedError
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


class ManifestIterator:
    """Gives each rollout's outcome exactly once, as it arrives; what `RolloutControlClient.manifests` returns.

    Attributes:
        total: How many outcomes there are in all, for whoever shows progress.
    """

    def __init__(self, outcomes: AsyncGenerator[ManifestOutcome, None], total: int) -> None:
        self.total = total
        self._outcomes = outcomes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ManifestOutcome:
        return await anext(self._outcomes)

    async def aclose(self) -> None:
        """Ends the iteration and every request that runs for it."""
        await self._outcomes.aclose()


class ManifestReader:
    """Reads manifests by the operation that the server has, which it finds out with its first request.

    Args:
        read_many: Reads several manifests by one request (spec, getRolloutManifests).
        read_one: Reads one by a request of its own.
    """

    def __init__(
        self, read_many: Callable[[list[str]], Awaitable[Part]], read_one: Callable[[str], Awaitable[ManifestOutcome]]
    ) -> None:
        self._read_many = read_many
        self._read_one = read_one
        self._has_bulk: bool | None = None
        self._has_read_one = False

    async def outcomes(self, rollout_ids: list[str], max_concurrency: int) -> AsyncGenerator[ManifestOutcome, None]:
        """Iterates over the outcomes of rollouts; holds at most as many answers as run at a time, twice."""
        waiting = deque(rollout_ids)
        running: set[asyncio.Task[Part]] = set()

        def start_requests() -> None:
            ids_a_request, at_a_time = self._plan(max_concurrency)
            while waiting and len(running) < at_a_time:
                batch = [waiting.popleft() for _ in range(min(ids_a_request, len(waiting)))]
                running.add(asyncio.create_task(self._read(batch)))

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
                    for outcome in part.outcomes:
                        yield outcome
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

    async def _read(self, rollout_ids: list[str]) -> Part:
        if self._has_bulk is False:
            return Part([await self._read_alone(rollout_id) for rollout_id in rollout_ids], [])
        try:
            part = await self._read_many(rollout_ids)
        except RequestFailedError as error:
            if self._has_bulk or error.status not in NO_SUCH_OPERATION:
                raise
            self._has_bulk = False
            return Part([], rollout_ids)
        self._has_bulk = True
        return part

    async def _read_alone(self, rollout_id: str) -> ManifestOutcome:
        try:
            outcome = await self._read_one(rollout_id)
        except RequestFailedError:
            if not self._has_read_one:
                # What said that there is no such operation may have been no server of ours at all, but a proxy.
                self._has_bulk = None
            raise
        self._has_read_one = True
        return outcome
