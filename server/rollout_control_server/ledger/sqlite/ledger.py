"""SqliteLedger: a handle on a ledger's file."""

import asyncio
import os
import sqlite3
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from rollout_control_server.errors import LedgerClosedError, LedgerUnavailableError
from rollout_control_server.ledger.base import CaptureLedger, CheckedCommit, CheckedFailure, FenceCount
from rollout_control_server.ledger.sqlite import reads
from rollout_control_server.ledger.sqlite.chains import ChainCache
from rollout_control_server.ledger.sqlite.faults import storage_faults
from rollout_control_server.ledger.sqlite.file import LedgerFile, refuse_network_file_system
from rollout_control_server.ledger.sqlite.purge import purge_is_due
from rollout_control_server.ledger.sqlite.rows import LongReadError
from rollout_control_server.ledger.sqlite.schema import connect, prepare_schema
from rollout_control_server.ledger.sqlite.writer import Writer
from rollout_control_server.ledger.sqlite.writes import FencesSeen, WriteTransaction
from rollout_control_server.records import RolloutRemoval

__all__ = ["SqliteLedger"]

_T = TypeVar("_T")

_SHORT_READ_ROWS: Final = 256
_FENCES_AT_ONCE: Final = 4096
_BYTES_OF_A_FENCE: Final = 14
"""What a fence costs on disk beside its id: cell and record headers, and the time."""


class SqliteLedger(CaptureLedger):
    """Capture ledgers in one SQLite file, for the processes of one machine. docs/sqlite.md describes it.

    The constructor opens the file, or makes it, without an event loop; from then on the handle serves any of them.
    What a method has returned for outlives a power cut, and every other handle on the file sees it.

    Args:
        path: The file. Its directory must exist, on a local disk.
        busy_timeout_s: Seconds that a write waits while another process holds the file's write lock. Reads don't wait.

    Raises:
        LedgerCorruptError: The file is damaged.
        LedgerRefusedError: The file is not a ledger, is newer than this program, or lies on a network file system.
        LedgerUnavailableError: The file can't be opened now.
        ValueError: `busy_timeout_s` is negative.
    """

    process_shared = True

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float = 5.0) -> None:
        if busy_timeout_s < 0:
            raise ValueError(f"busy_timeout_s must not be negative, and is {busy_timeout_s}")
        self._path: Final = Path(path).absolute()
        refuse_network_file_system(self._path)
        with storage_faults(self._path):
            self._reader: Final = connect(self._path, create=True, busy_timeout_s=busy_timeout_s)
            try:
                prepare_schema(self._reader, self._path)
                # Opens the WAL and its shared memory.
                purge = purge_is_due(self._reader)
                self._reader.execute("PRAGMA busy_timeout = 0")
                self._file: Final = LedgerFile(self._path)
            except BaseException:
                self._reader.close()
                raise
        self._pid: Final = os.getpid()
        self._reader_lock: Final = threading.Lock()
        self._long_reads: Final = ThreadPoolExecutor(1, thread_name_prefix="sqlite-ledger-reader")
        self._chains: Final = ChainCache()
        self._writer: Final = Writer(self._file, self._chains, busy_timeout_s)
        self._closed = False
        # A handle that is dropped without being closed leaves neither thread nor connection behind.
        self._release: Final = weakref.finalize(self, _release, self._pid, self._writer, self._reader)
        if purge:
            self._writer.purge_soon()

    async def check_ready(self) -> None:
        """Returns if the file can be written now: it takes the write lock, and writes nothing."""
        self._check_usable()
        await self._writer.run(lambda _: None)

    async def aclose(self) -> None:
        """Commits what was accepted, then closes the file."""
        self._check_process()
        self._closed = True
        thread = self._writer.stop()
        if thread is not None:
            await asyncio.to_thread(thread.join)
        await asyncio.to_thread(self._long_reads.shutdown)
        with self._reader_lock:
            self._release()

    async def _record(self, commit: CheckedCommit) -> bool:
        self._check_usable()
        return await self._writer.run(lambda transaction: transaction.record(commit))

    async def _record_failure(self, failure: CheckedFailure) -> bool:
        self._check_usable()
        return await self._writer.run(lambda transaction: transaction.record_failure(failure))

    async def _manifest(self, rollout_id: str) -> bytes:
        return await self._read(lambda connection, at_most: reads.manifest(connection, rollout_id, at_most))

    async def _has_rows(self, rollout_id: str) -> bool:
        return await self._read(lambda connection, _: reads.has_rows(connection, rollout_id))

    async def _find_parent(self, rollout_id: str, fingerprint: str, fingerprint_version: int) -> CheckedCommit | None:
        return await self._read(
            lambda connection, at_most: reads.find_parent(
                connection, rollout_id, fingerprint, fingerprint_version, self._chains, at_most=at_most
            )
        )

    async def _retire(self, rollout_ids: list[str]) -> RolloutRemoval:
        self._check_usable()
        return await self._writer.run(lambda transaction: transaction.retire(rollout_ids))

    async def _delete(self, rollout_ids: list[str]) -> RolloutRemoval:
        self._check_usable()
        return await self._writer.run(lambda transaction: transaction.delete(rollout_ids))

    async def _forget_fences(self, older_than: timedelta) -> FenceCount:
        self._check_usable()
        older_than_ms = older_than // timedelta(milliseconds=1)
        forgotten = kept = kept_bytes = 0
        last_id: str | None = ""
        while last_id is not None:
            step = await self._writer.run(partial(_forget_some_fences, older_than_ms, last_id))
            forgotten += step.forgotten
            kept += step.kept
            kept_bytes += step.kept_id_bytes + step.kept * _BYTES_OF_A_FENCE
            last_id = step.last_id
        return FenceCount(forgotten, kept, kept_bytes)

    async def _read(self, read: Callable[[sqlite3.Connection, int], _T]) -> _T:
        """Reads in the event loop what takes some tens of microseconds, and in a thread what takes longer."""
        self._check_usable()
        with self._reader_lock, storage_faults(self._path):
            self._file.check()
            try:
                return read(self._reader, _SHORT_READ_ROWS)
            except LongReadError:
                pass
        return await asyncio.get_running_loop().run_in_executor(self._long_reads, self._read_long, read)

    def _read_long(self, read: Callable[[sqlite3.Connection, int], _T]) -> _T:
        with storage_faults(self._path):
            connection = connect(self._path, create=False, busy_timeout_s=0)
            try:
                self._file.check()
                return read(connection, sys.maxsize)
            finally:
                connection.close()

    def _check_usable(self) -> None:
        self._check_process()
        if self._closed:
            raise LedgerClosedError(f"this handle of the ledger {self._path} is closed: open another")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise LedgerUnavailableError(
                f"this handle of the ledger {self._path} was opened before a fork, and SQLite's connections don't "
                "survive one: open the ledger in each process that uses it"
            )


def _forget_some_fences(older_than_ms: int, after_id: str, transaction: WriteTransaction) -> FencesSeen:
    return transaction.forget_fences(older_than_ms, after_id, _FENCES_AT_ONCE)


def _release(pid: int, writer: Writer, reader: sqlite3.Connection) -> None:
    if os.getpid() == pid:
        writer.stop()
        reader.close()
