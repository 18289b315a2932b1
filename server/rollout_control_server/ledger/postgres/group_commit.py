"""Writes that wait at the same time share a transaction, and each has its own outcome."""

import asyncio
import random
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rollout_control_server.errors import LedgerError, LedgerUnavailableError
from rollout_control_server.ledger.postgres.connections import Connections, Use
from rollout_control_server.ledger.postgres.faults import LockTimeoutError
from rollout_control_server.ledger.postgres.rows import Outcome, Row

MAX_BATCH_ROWS: Final = 64
"""Each new rollout is a subtransaction, and PostgreSQL keeps 64 of a transaction at hand."""
MAX_BATCH_BYTES: Final = 1_000_000
CONTENDED_PAUSE_S: Final = 0.03
"""How long a rollout is left alone whose lock somebody else holds, at most."""


@dataclass(eq=False, slots=True)
class _Write:
    row: Row
    staging_chain: bytes | None
    deadline: float
    outcome: asyncio.Future[Outcome | LedgerError]


class GroupCommit:
    """Sends the rows of many tasks in batches, several at a time.

    A rollout's rows are in one batch at a time, in the order of their coming. A batch never waits for the lock of
    a rollout: what it cannot have it leaves, and such a rollout is tried again, by itself on a connection that may wait
    a little, or else in a later batch. So a rollout whose lock is stuck delays no other, however many there are.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._waiting: dict[str, deque[_Write]] = {}
        self._ready: dict[str, None] = {}
        self._taken: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcomes: set[asyncio.Future[Outcome | LedgerError]] = set()
        self._free_lanes = connections.share(Use.WRITE)
        self._patient_lane_is_free = True

    async def write(self, row: Row, staging_chain: bytes | None, deadline: float) -> Outcome:
        """Returns what became of the row: any outcome up to HAS_FAILED.

        Args:
            row: The row.
            staging_chain: Its staging chain, for when the database asks for it.
            deadline: The event loop's time.

        Raises:
            LedgerError: As `Connections.call` raises it.
        """
        outcome: asyncio.Future[Outcome | LedgerError] = asyncio.get_running_loop().create_future()
        self._outcomes.add(outcome)
        outcome.add_done_callback(self._outcomes.discard)
        self._waiting.setdefault(row.rollout_id, deque()).append(_Write(row, staging_chain, deadline, outcome))
        if row.rollout_id not in self._taken:
            self._ready[row.rollout_id] = None
        self._start_lane()
        try:
            async with asyncio.timeout_at(deadline):
                result = await outcome
        except TimeoutError as error:
            fault = self._connections.last_fault or "the database does not answer, or the rollout is locked"
            raise LedgerUnavailableError(f"the row could not be written in time: {fault}") from error
        if isinstance(result, LedgerError):
            # A fault is shared by a batch, and an exception cannot be raised in several tasks.
            raise type(result)(*result.args) from result
        return result

    async def drain(self) -> None:
        """Returns when every write that was begun has its outcome, which each has by its deadline."""
        while self._outcomes:
            await asyncio.wait(self._outcomes)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start_lane(self) -> None:
        if self._ready and self._free_lanes:
            self._free_lanes -= 1
            self._start(self._run_lane())

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_lane(self) -> None:
        try:
            while self._ready:
                await self._write_batch(self._take_batch(), patiently=False)
        finally:
            self._free_lanes += 1

    async def _run_patient_lane(self, rollout_id: str) -> None:
        try:
            await self._write_batch(self._take_rollout(rollout_id, MAX_BATCH_ROWS, MAX_BATCH_BYTES), patiently=True)
        finally:
            self._patient_lane_is_free = True

    def _take_batch(self) -> list[_Write]:
        batch: list[_Write] = []
        rows, size = MAX_BATCH_ROWS, MAX_BATCH_BYTES
        while self._ready and rows > 0 and size > 0:
            rollout_id = next(iter(self._ready))
            del self._ready[rollout_id]
            taken = self._take_rollout(rollout_id, rows, size)
            batch += taken
            rows -= len(taken)
            size -= sum(write.row.size() for write in taken)
        return batch

    def _take_rollout(self, rollout_id: str, rows: int, size: int) -> list[_Write]:
        """Takes the first writes of a rollout that somebody still waits for: at least one, if there is any."""
        waiting = self._waiting[rollout_id]
        taken: list[_Write] = []
        while waiting and rows > 0 and size > 0:
            write = waiting.popleft()
            if not write.outcome.done():
                taken.append(write)
                rows -= 1
                size -= write.row.size()
        if taken:
            self._taken.add(rollout_id)
        else:
            self._taken.discard(rollout_id)
            del self._waiting[rollout_id]
        return taken

    async def _write_batch(self, batch: list[_Write], *, patiently: bool) -> None:
        if not batch:
            return
        # The order in which every transaction takes its locks.
        batch.sort(key=lambda write: write.row.rollout_id)
        contended: set[str] = set()
        left: list[_Write] = []
        for write, outcome in zip(batch, await self._outcomes_of(batch, patiently=patiently), strict=True):
            if outcome is Outcome.BUSY:
                contended.add(write.row.rollout_id)
                left.append(write)
            elif outcome in (Outcome.NEEDS_CHAIN, Outcome.NOT_YET):
                # Those that follow bring theirs as well: where one row's parent is unknown, the next one's often is.
                write.row = write.row._replace(staging_chain=write.staging_chain)
                left.append(write)
            elif not write.outcome.done():
                write.outcome.set_result(outcome)
        for write in reversed(left):
            self._waiting[write.row.rollout_id].appendleft(write)
        for rollout_id in {write.row.rollout_id for write in batch}:
            if rollout_id not in contended:
                self._release(rollout_id)
            elif self._patient_lane_is_free and not patiently:
                self._patient_lane_is_free = False
                self._start(self._run_patient_lane(rollout_id))
            else:
                pause_s = random.uniform(0.1, 1.0) * CONTENDED_PAUSE_S
                asyncio.get_running_loop().call_later(pause_s, self._release, rollout_id)

    async def _outcomes_of(self, batch: list[_Write], *, patiently: bool) -> Sequence[Outcome | LedgerError]:
        try:
            rows = await self._connections.call(
                Use.CONTENDED_WRITE if patiently else Use.WRITE,
                "record_rows",
                patiently,
                *map(_column, zip(*(write.row for write in batch), strict=True)),
                deadline=max(write.deadline for write in batch),
                supersedes=True,
                wait_for_locks=False,
            )
        except LockTimeoutError:
            return [Outcome.BUSY] * len(batch)
        except LedgerUnavailableError as error:
            return [error] * len(batch)
        except LedgerError as error:
            if len(batch) == 1:
                return [error]
            # One row that the database cannot take must not fail its neighbours.
            return [outcome for write in batch for outcome in await self._outcomes_of([write], patiently=patiently)]
        return [Outcome(outcome) for outcome in rows[0][0]]

    def _release(self, rollout_id: str) -> None:
        self._taken.discard(rollout_id)
        if self._waiting[rollout_id]:
            self._ready[rollout_id] = None
            self._start_lane()
        else:
            del self._waiting[rollout_id]


def _column(values: tuple[object, ...]) -> Sequence[object] | None:
    """Returns a parameter of `record_rows`; unnest makes nulls of a null, which is faster than an array of them."""
    return None if values.count(None) == len(values) else values
