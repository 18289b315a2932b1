"""SqliteLedger: a handle on a ledger's file."""

import asyncio
import os
import sqlite3
import weakref
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from rollout_control_server.errors import LedgerClosedError, LedgerRefusedError, LedgerUnavailableError
from rollout_control_server.ledger.base import CaptureLedger, CheckedCommit, CheckedFailure, FenceCount, ManifestsRead
from rollout_control_server.ledger.sqlite import reads
from rollout_control_server.ledger.sqlite.chains import ChainCache
from rollout_control_server.ledger.sqlite.faults import storage_faults
from rollout_control_server.ledger.sqlite.file import LedgerFile, refuse_network_file_system
from rollout_control_server.ledger.sqlite.purge import purge_is_due
from rollout_control_server.ledger.sqlite.reader import Reader
from rollout_control_server.ledger.sqlite.schema import create_ledger, open_ledger_file
from rollout_control_server.ledger.sqlite.writer import Writer
from rollout_control_server.ledger.sqlite.writes import FencesSeen, WriteTransaction
from rollout_control_server.records import RolloutRemoval

__all__ = ["SqliteLedger"]

_OLDEST_SQLITE: Final = (3, 38, 0)
"""The first with json_each in every build; STRICT tables came one before."""

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
        create: Whether a file that is not there is made.

    Raises:
        LedgerCorruptError: The file is damaged.
        LedgerRefusedError: The file is not a ledger, is newer than this program, or lies on a network file system.
        LedgerUnavailableError: The file can't be opened now.
        ValueError: `busy_timeout_s` is negative.
    """

    process_shared = True

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float = 5.0, create: bool = True) -> None:
        if busy_timeout_s < 0:
            raise ValueError(f"busy_timeout_s must not be negative, and is {busy_timeout_s}")
        _refuse_old_sqlite()
        self._path: Final = Path(path).absolute()
        refuse_network_file_system(self._path)
        with storage_faults(self._path):
            if self._path.is_dir():
                raise LedgerRefusedError(f"{self._path} is a directory: name a file for the ledger")
            if not self._path.exists():
                if not create:
                    raise LedgerRefusedError(f"there is no ledger {self._path}: name one that is there")
                create_ledger(self._path)
            before = self._path.stat()
            connection = open_ledger_file(self._path, busy_timeout_s=busy_timeout_s)
            try:
                purge = purge_is_due(connection)
                connection.execute("PRAGMA busy_timeout = 0")
                self._file: Final = LedgerFile(self._path, before)
            except BaseException:
                connection.close()
                raise
        self._pid: Final = os.getpid()
        self._chains: Final = ChainCache()
        self._reader: Final = Reader(self._file, connection)
        self._writer: Final = Writer(self._file, self._chains, busy_timeout_s)
        self._closed = False
        # A handle that is dropped without being closed leaves neither thread nor connection behind.
        self._release: Final = weakref.finalize(self, _release, self._pid, self._writer, self._reader)
        if purge:
            self._writer.purge_soon()

    async def check_ready(self) -> None:
        """Returns if the file can be written now: it takes the write lock, and writes nothing."""
        self._check_usable()
        await self._writer.run(lambda transaction: transaction.check_writable())

    async def aclose(self) -> None:
        """Commits what was accepted, then closes the file."""
        self._check_process()
        self._closed = True
        # In a thread: what was accepted is committed, and the last handle on a file copies the WAL into it.
        await asyncio.to_thread(self._close)

    async def _record(self, commit: CheckedCommit) -> bool:
        self._check_usable()
        return await self._writer.run(lambda transaction: transaction.record(commit))

    async def _record_failure(self, failure: CheckedFailure) -> bool:
        self._check_usable()
        return await self._writer.run(lambda transaction: transaction.record_failure(failure))

    async def _manifest(self, rollout_id: str) -> bytes:
        self._check_usable()
        return await self._reader.run(lambda connection, at_most: reads.manifest(connection, rollout_id, at_most))

    async def _manifests(self, rollout_ids: list[str], max_bytes: int) -> ManifestsRead:
        self._check_usable()
        return await self._reader.run_in_thread(
            lambda connection, _: reads.manifests(connection, rollout_ids, max_bytes)
        )

    async def _has_rows(self, rollout_id: str) -> bool:
        self._check_usable()
        return await self._reader.run(lambda connection, _: reads.has_rows(connection, rollout_id))

    async def _find_parent(self, rollout_id: str, fingerprint: str, fingerprint_version: int) -> CheckedCommit | None:
        self._check_usable()
        chains = self._chains
        return await self._reader.run(
            lambda connection, at_most: reads.find_parent(
                connection, rollout_id, fingerprint, fingerprint_version, chains, at_most=at_most
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

    def _close(self) -> None:
        thread = self._writer.stop()
        if thread is not None:
            thread.join()
        self._reader.finish()
        self._release()

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


def _refuse_old_sqlite() -> None:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise LedgerRefusedError(
            f"this Python has SQLite {sqlite3.sqlite_version}, and SqliteLedger needs "
            f"{'.'.join(map(str, _OLDEST_SQLITE))} or newer: use another Python, or PostgresLedger (postgresql://...)"
        )


def _forget_some_fences(older_than_ms: int, after_id: str, transaction: WriteTransaction) -> FencesSeen:
    return transaction.forget_fences(older_than_ms, after_id, _FENCES_AT_ONCE)


def _release(pid: int, writer: Writer, reader: Reader) -> None:
    # A process that was forked off must not touch the connections, not even to close them.
    if os.getpid() == pid:
        writer.stop()
        reader.close()
