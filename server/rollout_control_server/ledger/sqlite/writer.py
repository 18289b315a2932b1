"""The one thread of a handle that writes: group commit, checkpoints and the purge."""

import asyncio
import copy
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from rollout_control_server.errors import LedgerClosedError, LedgerError, LedgerUnavailableError
from rollout_control_server.ledger.sqlite.chains import ChainCache
from rollout_control_server.ledger.sqlite.checkpoint import Checkpointer
from rollout_control_server.ledger.sqlite.faults import storage_faults
from rollout_control_server.ledger.sqlite.file import LedgerFile
from rollout_control_server.ledger.sqlite.locking import begin_immediate
from rollout_control_server.ledger.sqlite.purge import purge_is_due, purge_some
from rollout_control_server.ledger.sqlite.reader import open_same_file
from rollout_control_server.ledger.sqlite.schema import PAGE_BYTES
from rollout_control_server.ledger.sqlite.writes import RolloutStates, WriteTransaction

__all__ = ["Writer"]

logger = logging.getLogger("rollout_control_server.ledger")

_T = TypeVar("_T")
_Outcome = Any
"""What a job returned, or the exception that it raised."""

_MAX_JOBS: Final = 128
"""Of 256 tasks, half prepare their next record while those of the other half are committed."""

_PURGE_S: Final = 0.001
_FIRST_PURGE_SHARE: Final = 0.05
_LAST_PURGE_SHARE: Final = 0.2
_PURGE_SHARE_GROWTH: Final = 0.01
"""How much of its time the writer purges, and by how much more each second that a purge goes on.

So reads and writes hardly notice a step's end, and where rollouts are removed all the time, the purge keeps up.
"""
_PURGE_RETRY_S: Final = 0.5
_PURGE_LOOK_S: Final = 1.0
"""How often, at most, a handle that has written looks for what another one left to be purged."""
_WAL_LOOK_BYTES: Final = 2**20
"""By how much the WAL may grow, about, until its size is looked at."""


class _Job(NamedTuple):
    run: Callable[[WriteTransaction], Any]
    future: asyncio.Future[Any]


class _Connections(NamedTuple):
    writing: sqlite3.Connection
    lock_holder: sqlite3.Connection


class Writer:
    """Commits what tasks hand in, as many as have queued up in one transaction.

    A transaction costs one sync of the disk however many jobs it holds. Every job has its own outcome; outcomes go back
    to each event loop in one call.

    The thread and its connections come with the first job. It is a daemon: a process that ends without closing its
    ledger must not hang, and what was acknowledged is durable.
    """

    def __init__(self, file: LedgerFile, chains: ChainCache, busy_timeout_s: float) -> None:
        self._file: Final = file
        self._chains: Final = chains
        self._busy_timeout_s: Final = busy_timeout_s
        self._lock: Final = threading.Lock()
        self._queue: Final[queue.SimpleQueue[_Job | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._connections: _Connections | None = None
        self._states = RolloutStates()
        self._next_purge: float | None = None
        self._purge_begun: float | None = None
        self._next_purge_look: float | None = None
        self._last_purge_look = 0.0
        self._bytes_since_wal_look = 0
        self._untidy = False
        self._checkpointer: Final = Checkpointer(file, busy_timeout_s)

    async def run(self, job: Callable[[WriteTransaction], _T]) -> _T:
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
            self._keep_house()
        self._close_connections()

    def _next_entries(self) -> list[_Job | None]:
        """Waits for something to do, and returns all that has queued up; nothing when the purge, or a look, is due."""
        try:
            due = self._next_purge_look if self._next_purge is None else self._next_purge
            timeout = None if due is None else max(0, due - time.perf_counter())
            first = self._queue.get(timeout=timeout)
        except queue.Empty:
            return []
        return [first, *(self._queue.get() for _ in range(min(_MAX_JOBS - 1, self._queue.qsize())))]

    def _commit(self, jobs: list[_Job]) -> list[_Outcome]:
        """Commits the jobs and returns the outcome of each."""
        try:
            return self._transaction(jobs)
        except LedgerUnavailableError as error:
            self._close_connections()
            return [copy.copy(error) for _ in jobs]
        except Exception as error:
            # One of them is at fault, or the pages that it needs: each alone, so that none fails its neighbours.
            return [error] if len(jobs) == 1 else [outcome for job in jobs for outcome in self._commit([job])]

    def _transaction(self, jobs: list[_Job]) -> list[_Outcome]:
        with storage_faults(self._file.path):
            connection = self._open().writing
            changes = connection.total_changes
            begin_immediate(connection, self._busy_timeout_s)
            try:
                transaction = WriteTransaction(connection, self._states, self._chains)
                outcomes: list[_Outcome] = []
                for job in jobs:
                    try:
                        outcomes.append(job.run(transaction))
                    except LedgerError as error:  # it had not changed anything
                        outcomes.append(error)
                transaction.flush()
                connection.execute("COMMIT")
            except BaseException:
                self._states = RolloutStates()
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        # Again, for the file may have gone meanwhile, and with it what was just committed.
        self._file.check()
        transaction.committed()
        # A change writes a page at most, but for what is too large for one.
        self._bytes_since_wal_look += (connection.total_changes - changes) * PAGE_BYTES + transaction.new_bytes
        if transaction.has_abandoned_rows:
            self._next_purge_look = time.perf_counter()
        elif self._next_purge_look is None:
            self._next_purge_look = self._last_purge_look + _PURGE_LOOK_S
        return outcomes

    def _open(self) -> _Connections:
        self._file.check()
        if self._connections is None:
            writing = open_same_file(self._file, busy_timeout_s=self._busy_timeout_s)
            self._connections = _Connections(writing, open_same_file(self._file, busy_timeout_s=self._busy_timeout_s))
            for connection in self._connections:
                connection.execute("PRAGMA busy_timeout = 0")  # see begin_immediate
            self._states = RolloutStates()
        return self._connections

    def _close_connections(self) -> None:
        """Lets the next write open new ones: one that met a read-only file stays read-only."""
        for connection in self._connections or ():
            connection.close()
        self._connections = None

    def _purge_is_due(self) -> bool:
        return self._next_purge is not None and self._next_purge <= time.perf_counter()

    def _keep_house(self) -> None:
        """Purges a little and checkpoints, if that is due.

        A task that records one call after another waits for this, so it rarely asks the system for anything.
        """
        try:
            with storage_faults(self._file.path):
                purge = self._purge_is_due()
                connections = self._open() if purge else self._connections
                if connections is None:
                    self._next_purge_look = None
                    return
                connection, lock_holder = connections
                now = time.perf_counter()
                if purge:
                    self._purge_a_little(connection)
                elif self._next_purge is None and self._next_purge_look is not None and now >= self._next_purge_look:
                    self._last_purge_look, self._next_purge_look = now, None
                    if purge_is_due(connection):
                        self._next_purge = now
                if self._bytes_since_wal_look >= _WAL_LOOK_BYTES or self._next_purge is not None:
                    self._bytes_since_wal_look = 0
                    self._checkpointer.run_if_due(connection, lock_holder)
            self._untidy = False
        except Exception as error:
            # Whatever it is must not end the thread that everybody's writes wait for.
            if not self._untidy:
                logger.warning("the ledger %s is not purged for now", self._file.path, exc_info=error)
            self._untidy = True
            self._close_connections()
            if self._next_purge is not None:
                self._next_purge = time.perf_counter() + _PURGE_RETRY_S

    def _purge_a_little(self, connection: sqlite3.Connection) -> None:
        begun = time.perf_counter()
        if self._purge_begun is None:
            self._purge_begun = begun
        purge_some(connection, _PURGE_S, self._busy_timeout_s)
        share = min(_FIRST_PURGE_SHARE + _PURGE_SHARE_GROWTH * (begun - self._purge_begun), _LAST_PURGE_SHARE)
        ended = time.perf_counter()
        if purge_is_due(connection):
            self._next_purge = ended + (ended - begun) * (1 / share - 1)
        else:
            self._next_purge = self._purge_begun = None


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
