"""What rollouts are copied from."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, Protocol

from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.ledger.results import RolloutEntry, RolloutExport

__all__ = ["CopySource", "FoundRollout", "LedgerSource"]


class FoundRollout(NamedTuple):
    """A rollout of a source.

    Attributes:
        entry: What the source's listing says of it, as it was before `export` is called. A rollout that changes after
            that has another entry.
        export: Reads all of it.
    """

    entry: RolloutEntry
    export: Callable[[], Awaitable[RolloutExport]]


class CopySource(Protocol):
    """A ledger or an export file.

    Attributes:
        name: How messages name it.
    """

    name: str

    def scan(self) -> AsyncIterator[FoundRollout]:
        """Yields each rollout once, in the order of the ids' ASCII bytes; not all are in memory at once.

        Raises:
            LedgerError: The source cannot be read.
        """


class LedgerSource:
    """A ledger whose rollouts are copied, and which may be in use.

    Args:
        ledger: The ledger. It is not closed here.
        name: How messages name it.
    """

    def __init__(self, ledger: CaptureLedger, name: str) -> None:
        self.name = name
        self._ledger = ledger

    async def scan(self) -> AsyncIterator[FoundRollout]:
        """As `CopySource.scan`: what is there all the time, whatever comes and goes meanwhile."""
        after: str | None = None
        while True:
            page = await self._ledger.rollouts(after=after)
            for entry in page.rollouts:
                yield FoundRollout(entry, self._exporter(entry.rollout_id))
            if page.next is None:
                return
            after = page.next

    def _exporter(self, rollout_id: str) -> Callable[[], Awaitable[RolloutExport]]:
        async def export() -> RolloutExport:
            return await self._ledger.export(rollout_id)

        return export
