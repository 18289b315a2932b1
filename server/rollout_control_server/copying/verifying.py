"""Comparing two ledgers, or a ledger and an export file, rollout by rollout."""

from collections.abc import AsyncIterator, Callable

from rollout_control_server.copying.sources import CopySource

__all__ = ["differing_rollouts"]


async def differing_rollouts(
    source: CopySource,
    destination: CopySource,
    *,
    into_existing: bool = False,
    advance: Callable[[int], None] = lambda rollouts: None,
) -> AsyncIterator[str]:
    """Yields the ids of the rollouts that are not the same in both: rows, their order and times, and fences.

    Args:
        source: One side.
        destination: The other.
        into_existing: Whether the destination may have rollouts that the source does not have.
        advance: Called with 1 for each rollout of the source that was compared.

    Raises:
        LedgerError: One of them cannot be read.
    """
    theirs = aiter(destination.scan())
    there = await anext(theirs, None)
    async for found in source.scan():
        while there is not None and there.entry.rollout_id < found.entry.rollout_id:
            if not into_existing:
                yield there.entry.rollout_id
            there = await anext(theirs, None)
        if there is None or there.entry.rollout_id != found.entry.rollout_id:
            yield found.entry.rollout_id
        else:
            if await found.export() != await there.export():
                yield found.entry.rollout_id
            there = await anext(theirs, None)
        advance(1)
    while there is not None and not into_existing:
        yield there.entry.rollout_id
        there = await anext(theirs, None)
