"""A ledger that waits for storage that does not answer, and owes the failure rows that it could not write."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from rollout_control_server.backoff import pauses
from rollout_control_server.errors import LedgerClosedError, LedgerUnavailableError
from rollout_control_server.ledger import CaptureLedger
from rollout_control_server.ledger.results import RolloutExport, RolloutPage
from rollout_control_server.records import CaptureCommit, RolloutRemoval

__all__ = ["LEDGER_UNAVAILABLE_REASON", "PatientLedger"]

logger = logging.getLogger("rollout_control_server.gym")

_Result = TypeVar("_Result")

LEDGER_UNAVAILABLE_REASON: Final = "ledger_unavailable"
"""The reason of a failure row for a call whose record the ledger could not take when the call had been generated."""

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class PatientLedger:
    """Operations of a ledger for a model server, which cannot ask its agents to come back later.

    A failure row that the storage would not take is owed. Until it is written, which is tried again and again, this
    process answers for that rollout neither a manifest nor a parent, and writes nothing else of it.

    All methods are called in one event loop.

    Args:
        ledger: The ledger; it is closed by `close`.
        outage_wait_s: Seconds that one operation waits for storage that does not answer, before it fails.
    """

    def __init__(self, ledger: CaptureLedger, outage_wait_s: float) -> None:
        self._ledger = ledger
        self._outage_wait_s = outage_wait_s
        self._owed: dict[str, dict[str, str]] = {}
        self._writes: set[asyncio.Task[None]] = set()
        self._settler: asyncio.Task[None] | None = None

    @property
    def process_shared(self) -> bool:
        """As `CaptureLedger.process_shared`."""
        return self._ledger.process_shared

    @property
    def owed_failures(self) -> int:
        """How many failure rows are owed."""
        return sum(len(calls) for calls in list(self._owed.values()))

    async def find_parent(self, rollout_id: str, fingerprint: str, fingerprint_version: int) -> CaptureCommit | None:
        """As `CaptureLedger.find_parent`."""
        return await self._patiently(
            rollout_id, lambda: self._ledger.find_parent(rollout_id, fingerprint, fingerprint_version)
        )

    async def has_rows(self, rollout_id: str) -> bool:
        """As `CaptureLedger.has_rows`."""
        return await self._patiently(rollout_id, lambda: self._ledger.has_rows(rollout_id))

    async def manifest(self, rollout_id: str) -> bytes:
        """As `CaptureLedger.manifest`, without waiting: a reader can come back later."""
        await self._settle(rollout_id)
        return await self._ledger.manifest(rollout_id)

    async def record(self, commit: CaptureCommit) -> None:
        """As `CaptureLedger.record`; where the storage does not take it, a failure row is owed."""
        self._count_write()
        record = commit.record
        try:
            await self._patiently(commit.rollout_id, lambda: self._ledger.record(commit))
        except (TypeError, ValueError):  # No fault of the storage, which has changed nothing: Gym notes the failure.
            raise
        except Exception as error:
            logger.error(
                "could not record call %r of rollout %r, whose tokens are staged at %r, and owe a failure row: %s",
                record.model_call_id,
                commit.rollout_id,
                record.staging_key,
                error,
            )
            self._owe(commit.rollout_id, record.model_call_id, LEDGER_UNAVAILABLE_REASON)
            raise

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """As `CaptureLedger.record_failure`; where the storage does not take it, the row is owed.

        Raises:
            LedgerUnavailableError: At once where a row of this call is owed already, because Gym notes one failure up
                to three times.
        """
        if model_call_id in self._owed.get(rollout_id, {}):
            raise LedgerUnavailableError(f"a failure row of call {model_call_id!r} is owed until the storage answers")
        self._count_write()
        try:
            await self._patiently(rollout_id, lambda: self._ledger.record_failure(rollout_id, model_call_id, reason))
        except (TypeError, ValueError):
            raise
        except Exception as error:
            logger.error("owe the failure row of call %r of rollout %r: %s", model_call_id, rollout_id, error)
            self._owe(rollout_id, model_call_id, reason)
            raise

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """As `CaptureLedger.retire`; owed rows go with the others."""
        removal = await self._ledger.retire(rollout_ids)
        self._forgive([*removal.removed, *removal.absent])
        return removal

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """As `CaptureLedger.delete`; owed rows go with the others."""
        removal = await self._ledger.delete(rollout_ids)
        self._forgive([*removal.removed, *removal.absent])
        return removal

    async def export(self, rollout_id: str) -> RolloutExport:
        """As `CaptureLedger.export`."""
        return await self._patiently(rollout_id, lambda: self._ledger.export(rollout_id))

    async def import_(self, rollouts: Sequence[RolloutExport]) -> None:
        """As `CaptureLedger.import_`; rows that are owed of these rollouts are replaced with the others."""
        await self._patiently(None, lambda: self._ledger.import_(rollouts))
        self._forgive([export.rollout_id for export in rollouts])

    async def ids_with_prefix(self, prefix: str) -> list[str]:
        """Returns the ids of live and retired rollouts that begin with the prefix."""
        found: list[str] = []
        after: str | None = None

        async def next_page() -> RolloutPage:
            return await self._ledger.rollouts(prefix=prefix, after=after)

        while True:
            page = await self._patiently(None, next_page)
            found += [entry.rollout_id for entry in page.rollouts]
            if page.next is None:
                return found
            after = page.next

    async def close(self) -> None:
        """Finishes the writes, tries once more to write what is owed, and closes the ledger."""
        await asyncio.gather(*self._writes, return_exceptions=True)
        if self._settler is not None:
            self._settler.cancel()
        for rollout_id in list(self._owed):
            try:
                await self._settle(rollout_id)
            except Exception as error:
                lost = list(self._owed.get(rollout_id, {}).items())
                logger.error("lost the owed failure rows %r of rollout %r: %s", lost, rollout_id, error)
        self._owed.clear()
        await self._ledger.aclose()

    def _count_write(self) -> None:
        """Has `close` wait for the task that is running, which writes, and logs what became of it."""
        task = asyncio.current_task()
        if task is not None:
            self._writes.add(task)
            task.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        # Logged here because the caller that waited for the write may have been cancelled.
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.info("a write was refused: %s", error)

    async def _patiently(self, rollout_id: str | None, operation: Callable[[], Awaitable[_Result]]) -> _Result:
        """Returns what the operation returns, once the rows owed of the rollout are written; waits out an outage."""
        outage: LedgerUnavailableError | None = None
        waits_s = pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        try:
            async with asyncio.timeout(self._outage_wait_s):
                while True:
                    try:
                        if rollout_id is not None:
                            await self._settle(rollout_id)
                        return await operation()
                    except LedgerClosedError:
                        raise
                    except LedgerUnavailableError as error:
                        outage = error
                    await asyncio.sleep(next(waits_s))
        except TimeoutError:
            raise LedgerUnavailableError(f"the ledger did not answer within {self._outage_wait_s} s") from outage

    def _owe(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        self._owed.setdefault(rollout_id, {}).setdefault(model_call_id, reason)
        if self._settler is None or self._settler.done():
            self._settler = asyncio.create_task(self._settle_all())

    async def _settle(self, rollout_id: str) -> None:
        """Writes the failure rows that are owed of the rollout."""
        for model_call_id, reason in list(self._owed.get(rollout_id, {}).items()):
            await self._ledger.record_failure(rollout_id, model_call_id, reason)
            logger.info("wrote the failure row of call %r of rollout %r that was owed", model_call_id, rollout_id)
            owed = self._owed.get(rollout_id, {})
            owed.pop(model_call_id, None)
            if not owed:
                self._owed.pop(rollout_id, None)

    async def _settle_all(self) -> None:
        """Tries to write the failure rows that are owed until none is."""
        waits_s = pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while self._owed:
            await asyncio.sleep(next(waits_s))
            for rollout_id in list(self._owed):
                try:
                    await self._settle(rollout_id)
                except LedgerClosedError:
                    return
                except Exception as error:
                    logger.debug("still owe failure rows of rollout %r: %s", rollout_id, error)

    def _forgive(self, rollout_ids: Sequence[str]) -> None:
        for rollout_id in rollout_ids:
            self._owed.pop(rollout_id, None)
