"""Iterating over what comes in parts, an answer at a time."""

from collections import deque
from collections.abc import AsyncGenerator
from typing import Generic, NoReturn, Self, TypeVar

__all__ = ["PartIterator"]

T = TypeVar("T")


class PartIterator(Generic[T]):
    """Gives the items of each part one by one.

    Args:
        parts: The parts, as they arrive.
    """

    def __init__(self, parts: AsyncGenerator[list[T], None]) -> None:
        self._parts = parts
        self._arrived: deque[T] = deque()

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "this iterator is asynchronous: write 'async for', or use SyncRolloutControlClient in code without asyncio"
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._arrived:
            self._arrived.extend(await anext(self._parts))
        return self._arrived.popleft()

    async def next_part(self) -> list[T]:
        """Waits until there are items, and returns all that have arrived; nothing at the end."""
        while not self._arrived:
            try:
                self._arrived.extend(await anext(self._parts))
            except StopAsyncIteration:
                break
        part = list(self._arrived)
        self._arrived.clear()
        return part

    async def aclose(self) -> None:
        """Ends the iteration and every request that runs for it."""
        self._arrived.clear()
        await self._parts.aclose()
