"""The one thread of a handle that writes: group commit, checkpoints and the purge."""

import asyncio
import copy
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import apsw

from rollout_control_server.errors import LedgerClosedError, LedgerConflictError, LedgerUnavailableError
from rollout_control_server.ledger.sqlite.checkpoint import Checkpoints
from rollout_control_server.ledger.sqlite.connections import transaction
from rollout_control_server.ledger.sqlite.faults import storage_faults
from rollout_control_server.ledger.sqlite.file import LedgerFile
from rollout_control_server.ledger.sqlite.purge import Purge
from rollout_control_server.ledger.sqlite.reading import open_same_file

__all__ = ["Writer"]

logger = logging.getLogger("rollout_control_server.ledger")

_T = TypeVar("_T")
_Outcome = Any
"""What a job returned, or the exception that it raised."""

_MAX_JOBS: Final = 128
"""At most this many writes share a transaction. Larger groups commit no faster (bench record, 256 tasks)."""

_PURGE_S: Final = 0.001
"""How long a step of the purge takes, so that readers and writers hardly notice one."""
_FIRST_PURGE_SHARE: Final = 0.05
_LAST_PURGE_SHARE: Final = 0.5
_PURGE_SHARE_GROWTH: Final = 0.01
"""How much of its time the writer purges, and by how much more each second that a purge goes on.

A purge that ends within seconds takes little from the writes; one that goes on because rollouts are removed all the
time keeps up with them.
"""
_PURGE_LOOK_S: Final = 0.2
"""How long after a write, at most, a handle looks for rows to purge: its own, or what another process left."""
_PURGE_RETRY_S: Final = 0.5


class _Job(NamedTuple):
    run: Callable[[apsw.Connection], Any]
    future: asyncio.Future[Any]


class _Writing(NamedTuple):
    connection: apsw.Connection
    checkpoints: Checkpoints


class Writer:
    """Commits what tasks hand in, as many as have queued up in one transaction.

    A transaction costs one sync of the disk however many jobs it holds. Every job has its own outcome; outcomes go back
    to each event loop in one call.

    The thread and its connection come with the first job. It is a daemon: a process that ends without closing its
    ledger must not hang, and what was acknowledged is durable.
    """

    def __init__(self, file: LedgerFile, busy_timeout_s: float) -> None:
        self._file: Final = file
        self._busy_timeout_s: Final = busy_timeout_s
        self._lock: Final = threading.Lock()
        self._queue: Final[queue.SimpleQueue[_Job | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._writing: _Writing | None = None
        self._purge: Final = Purge(file)
        self._next_purge: float | None = None
        self._purge_begun: float | None = None
        self._maintenance_failed = False

    async def run(self, job: Callable[[apsw.Connection], _T]) -> _T:
        """Runs the job in the next transaction, and returns what it returned once that is durable."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._stopped:
                raise LedgerClosedError(f"this handle of the ledger {self._file.path} is closed: open another")
            self._queue.put(_Job(job, future))
            self._start()
        return await future

    def purge_soon(self) -> None:
        """Begins to purge; called before the first job."""
        with self._lock:
            self._next_purge = time.perf_counter()
            self._start()

    def stop(self) -> threading.Thread | None:
        """Refuses new jobs, and returns the thread that finishes those it has, if there is one."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)
            return self._thread

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="sqlite-ledger-writer", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        stopping = False
        while not stopping:
            jobs = []
            for entry in self._next_entries():
                if entry is None:
                    stopping = True
                else:
                    jobs.append(entry)
            if jobs:
                _deliver(jobs, self._commit(jobs))
            self._do_maintenance()
        self._close_connection()

    def _next_entries(self) -> list[_Job | None]:
        """Waits for something to do, and returns all that has queued up; nothing when a step of the purge is due."""
        try:
            timeout = None if self._next_purge is None else max(0, self._next_purge - time.perf_counter())
            first = self._queue.get(timeout=timeout)
        except queue.Empty:
            return []
        return [first, *(self._queue.get() for _ in range(min(_MAX_JOBS - 1, self._queue.qsize())))]

    def _commit(self, jobs: list[_Job]) -> list[_Outcome]:
        """Commits the jobs and returns the outcome of each."""
        try:
            return self._transaction(jobs)
        except LedgerUnavailableError as error:
            self._close_connection()
            return [copy.copy(error) for _ in jobs]
        except Exception as error:
            # One of them is at fault, or the pages that it needs: each alone, so that none fails its neighbours.
            return [error] if len(jobs) == 1 else [outcome for job in jobs for outcome in self._commit([job])]

    def _transaction(self, jobs: list[_Job]) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        with storage_faults(self._file.path):
            connection = self._open().connection
            with transaction(connection, self._busy_timeout_s):
                for job in jobs:
                    try:
                        outcomes.append(job.run(connection))
                    except LedgerConflictError as error:  # it has changed nothing
                        outcomes.append(error)
        # Again, for the file may have gone meanwhile, and with it what was just committed.
        self._file.check()
        if self._next_purge is None:
            self._next_purge = time.perf_counter() + _PURGE_LOOK_S
        return outcomes

    def _open(self) -> _Writing:
        self._file.check()
        if self._writing is None:
            connection = open_same_file(self._file)
            self._writing = _Writing(connection, Checkpoints(connection, self._file))
        return self._writing

    def _close_connection(self) -> None:
        """Lets the next write open a new one: one that met a read-only file stays read-only."""
        if self._writing is not None:
            self._writing.connection.close()
        self._writing = None

    def _do_maintenance(self) -> None:
        """Purges a little and checkpoints, if that is due."""
        try:
            if self._next_purge is not None and self._next_purge <= time.perf_counter():
                self._purge_a_little()
            if self._writing is not None:
                with storage_faults(self._file.path):
                    self._writing.checkpoints.run_if_due()
            self._maintenance_failed = False
        except Exception as error:
            # Whatever it is must not end the thread that everybody's writes wait for.
            if not self._maintenance_failed:
                logger.warning(
                    "the ledger %s is neither purged nor checkpointed for now", self._file.path, exc_info=error
                )
            self._maintenance_failed = True
            self._close_connection()
            if self._next_purge is not None:
                self._next_purge = time.perf_counter() + _PURGE_RETRY_S

    def _purge_a_little(self) -> None:
        begun = time.perf_counter()
        with storage_faults(self._file.path):
            connection = self._open().connection
        if not self._purge.run(connection, _PURGE_S, self._busy_timeout_s):
            self._next_purge = self._purge_begun = None
            return
        if self._purge_begun is None:
            self._purge_begun = begun
        share = min(_FIRST_PURGE_SHARE + _PURGE_SHARE_GROWTH * (begun - self._purge_begun), _LAST_PURGE_SHARE)
        ended = time.perf_counter()
        self._next_purge = ended + (ended - begun) * (1 / share - 1)


def _deliver(jobs: list[_Job], outcomes: list[_Outcome]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], _Outcome]]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        by_loop.setdefault(job.future.get_loop(), []).append((job.future, outcome))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, settled)
        except RuntimeError:
            # The loop is closed, and with it everybody who waited.
            continue


def _settle(settled: list[tuple[asyncio.Future[Any], _Outcome]]) -> None:
    for future, outcome in settled:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
