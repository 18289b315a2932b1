"""Copying what a source has to a ledger, in passes that each copy what has changed since the one before."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from rollout_control_server.copying.journal import CopyJournal
from rollout_control_server.copying.sources import CopySource, LedgerSource
from rollout_control_server.errors import LedgerRefusedError
from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.ledger.checked_rows import CheckedCommit
from rollout_control_server.ledger.results import LedgerRow, RolloutEntry, RolloutExport

__all__ = ["CopyCounts", "MixedLedgersError", "copy_rollouts"]

_BATCH_ROLLOUTS: Final = 500
_BATCH_BYTES: Final = 4 * 2**20
"""A batch ends with the rollout that reaches one of these; larger batches copy no faster, and take more memory."""


class MixedLedgersError(LedgerRefusedError):
    """The destination has rollouts that are not from this copy. Nothing was copied."""


@dataclass
class CopyCounts:
    """What a pass of a copy has done.

    Attributes:
        rollouts: Live rollouts that were written to the destination.
        rows: Their rows.
        fences: Retired rollouts that were written.
        unchanged: Rollouts that the destination had already.
        cleared: Rollouts of an earlier pass that the source has no more.
        refused: Ids of rollouts that the destination has, and not from this copy; they were left as they are.
    """

    rollouts: int = 0
    rows: int = 0
    fences: int = 0
    unchanged: int = 0
    cleared: int = 0
    refused: list[str] = field(default_factory=list)


async def copy_rollouts(
    source: CopySource,
    destination: CaptureLedger,
    journal: CopyJournal,
    *,
    into_existing: bool = False,
    advance: Callable[[int], None] = lambda rollouts: None,
) -> CopyCounts:
    """Makes one pass: has the destination hold what the source holds now.

    What the journal knows as copied, and has not changed in the source, is passed over. What the source has no more is
    cleared. A rollout that the journal does not know, and the destination has, is taken to be from this copy if it is
    equal to the source's, or the beginning of it. A pass that was killed leaves whole rollouts only, and can be made
    again. Nobody else should write to the destination meanwhile.

    Args:
        source: Where the rollouts are. Where it is in use, what changes after a rollout was read is for the next pass.
        destination: Where they go.
        journal: What the passes before have copied.
        into_existing: Whether the destination may have rollouts of its own.
        advance: Called with 1 for each rollout of the source, when it is dealt with.

    Raises:
        LedgerError: The source cannot be read, or the destination cannot be written. Batches that were written before
            stay.
        MixedLedgersError: Without `into_existing`: the destination has rollouts of its own.
    """
    counts = CopyCounts()
    before = _Cursor(journal.begin_pass())
    try:
        there = _AsyncCursor(LedgerSource(destination, "the destination").scan())
        if not into_existing:
            await _refuse_foreign_rollouts(source, destination, journal)
        batch = _Batch(destination, journal, counts)
        async for found in source.scan():
            rollout_id = found.entry.rollout_id
            for gone in before.pass_to(rollout_id):
                await batch.clear(gone)
            known = before.take(rollout_id)
            exists = await there.reach(rollout_id)
            if known is not None and known[0] == found.entry:
                await batch.keep(found.entry)
            else:
                export = await found.export()
                existing = await destination.export(rollout_id) if known is None and exists else None
                if existing is not None and existing == export:
                    await batch.keep(found.entry)
                elif existing is not None and not _begins(existing, export):
                    counts.refused.append(rollout_id)
                else:
                    await batch.copy(found.entry, export)
            advance(1)
        for gone in before.pass_to(None):
            await batch.clear(gone)
        await batch.write()
        journal.end_pass()
    finally:
        journal.close()
    return counts


class _Batch:
    """Rollouts in the order of their ids that one import writes to the destination."""

    def __init__(self, destination: CaptureLedger, journal: CopyJournal, counts: CopyCounts) -> None:
        self._destination = destination
        self._journal = journal
        self._counts = counts
        self._exports: list[RolloutExport] = []
        self._outcomes: list[tuple[str, RolloutEntry | None]] = []
        self._bytes = 0

    async def keep(self, entry: RolloutEntry) -> None:
        """Passes over a rollout that the destination has as of this entry."""
        self._counts.unchanged += 1
        await self._add(entry.rollout_id, entry)

    async def copy(self, entry: RolloutEntry, export: RolloutExport) -> None:
        """Writes a rollout; one that has gone since its entry was read is cleared."""
        if not export.rows and export.retired_at is None:
            await self.clear(export.rollout_id)
            return
        self._counts.rollouts += export.retired_at is None
        self._counts.rows += len(export.rows)
        self._counts.fences += export.retired_at is not None
        self._exports.append(export)
        self._bytes += sum(map(_size_of_row, export.rows))
        await self._add(entry.rollout_id, entry)

    async def clear(self, rollout_id: str) -> None:
        """Clears a rollout that the source has no more."""
        self._counts.cleared += 1
        self._exports.append(RolloutExport(rollout_id, None, []))
        await self._add(rollout_id, None)

    async def _add(self, rollout_id: str, entry: RolloutEntry | None) -> None:
        self._outcomes.append((rollout_id, entry))
        if len(self._outcomes) >= _BATCH_ROLLOUTS or self._bytes >= _BATCH_BYTES:
            await self.write()

    async def write(self) -> None:
        """Writes what there is."""
        if self._exports:
            self._journal.copying(export.rollout_id for export in self._exports)
            await self._destination.import_(self._exports)
        self._journal.settle(self._outcomes)
        self._exports, self._outcomes, self._bytes = [], [], 0


class _Cursor:
    """A journal's rollouts, read beside those of the source."""

    def __init__(self, lines: Iterator[tuple[str, RolloutEntry | None]]) -> None:
        self._lines = lines
        self._next = next(lines, None)

    def pass_to(self, rollout_id: str | None) -> Iterator[str]:
        """Yields the ids that come before this one, or all that are left."""
        while self._next is not None and (rollout_id is None or self._next[0] < rollout_id):
            yield self._next[0]
            self._next = next(self._lines, None)

    def take(self, rollout_id: str) -> tuple[RolloutEntry | None] | None:
        """Returns the entry of a rollout that is in the journal, which may be null; None where it is not in it."""
        if self._next is None or self._next[0] != rollout_id:
            return None
        entry = self._next[1]
        self._next = next(self._lines, None)
        return (entry,)


class _AsyncCursor:
    """A ledger's rollouts, read beside those of the source."""

    def __init__(self, found: AsyncIterator[tuple[RolloutEntry, object]]) -> None:
        self._found = found
        self._at = ""
        self._ended = False

    async def reach(self, rollout_id: str) -> bool:
        """Goes on to this id, and tells whether the ledger has it."""
        while not self._ended and self._at < rollout_id:
            try:
                entry, _ = await anext(self._found)
                self._at = entry.rollout_id
            except StopAsyncIteration:
                self._ended = True
        return not self._ended and self._at == rollout_id


async def _refuse_foreign_rollouts(source: CopySource, destination: CaptureLedger, journal: CopyJournal) -> None:
    """Looks for a rollout of the destination that is neither in the source nor in the journal, or is another there."""
    if not (await destination.rollouts(limit=1)).rollouts:
        return
    copied = _Cursor(journal.lines())
    at_source = aiter(source.scan())
    found = await anext(at_source, None)
    async for theirs in LedgerSource(destination, "the destination").scan():
        rollout_id = theirs.entry.rollout_id
        for _ in copied.pass_to(rollout_id):
            pass
        if copied.take(rollout_id) is not None:
            continue
        while found is not None and found.entry.rollout_id < rollout_id:
            found = await anext(at_source, None)
        if found is not None and found.entry.rollout_id == rollout_id:
            if found.entry[:-1] == theirs.entry[:-1] or _begins(await theirs.export(), await found.export()):
                continue
            raise MixedLedgersError(f"the destination has another rollout {rollout_id!r} than {source.name}")
        raise MixedLedgersError(f"the destination has rollout {rollout_id!r}, which {source.name} does not have")


def _begins(existing: RolloutExport, export: RolloutExport) -> bool:
    """Tells whether a rollout is an earlier state of another: its rows are the first of the other's."""
    if existing.retired_at is not None:
        return existing == export
    return existing.rows == export.rows[: len(existing.rows)] and export.retired_at is None


def _size_of_row(row: LedgerRow) -> int:
    return len(row.row.record_json if isinstance(row.row, CheckedCommit) else row.row.failure_json)
