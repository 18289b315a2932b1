"""SqliteLedger: a handle on a ledger's file."""

import asyncio
import os
import weakref
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from rollout_control_server.errors import (
    LedgerClosedError,
    LedgerCorruptError,
    LedgerRefusedError,
    LedgerUnavailableError,
)
from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.ledger.checked_rows import CheckedCommit, CheckedFailure
from rollout_control_server.ledger.results import (
    FenceCount,
    IdleRemoval,
    ManifestsRead,
    RolloutExport,
    RolloutFilter,
    RolloutPage,
    RolloutSummary,
    Verification,
    VerifyProgress,
)
from rollout_control_server.ledger.sqlite import reads, writes
from rollout_control_server.ledger.sqlite.faults import storage_faults
from rollout_control_server.ledger.sqlite.file import LedgerFile, refuse_unknown_file_system
from rollout_control_server.ledger.sqlite.migration import open_ledger_file
from rollout_control_server.ledger.sqlite.purge import purge_is_due
from rollout_control_server.ledger.sqlite.reading import Reader
from rollout_control_server.ledger.sqlite.schema import create_ledger
from rollout_control_server.ledger.sqlite.verify import verify
from rollout_control_server.ledger.sqlite.writer import Writer
from rollout_control_server.records import RolloutRemoval

__all__ = ["SqliteLedger"]

_FENCES_AT_ONCE: Final = 4096
_BYTES_OF_A_FENCE: Final = 20
"""What a fence costs on disk beside its id: cell and record headers, and the time."""


class SqliteLedger(CaptureLedger):
    """Capture ledgers in one SQLite file, for the processes of one machine. docs/sqlite.md describes it.

    The constructor opens the file, or makes it, without an event loop; from then on the handle serves any of them.
    What a method has returned for outlives a power cut, and every other handle on the file sees it.

    Args:
        path: The file. Its directory must exist, on a local disk.
        busy_timeout_s: Seconds that a write waits while another process holds the file's write lock. Reads don't wait.
        create: Whether a file that is not there is made.
        any_file_system: Whether the file may lie on a file system that is not known to share a WAL's memory between
            processes and to keep what it has synced.

    Raises:
        LedgerCorruptError: The file is damaged.
        LedgerRefusedError: The file is not a ledger, is newer than this program, or lies on a file system that is not
            known to be fit.
        LedgerUnavailableError: The file can't be opened now.
        ValueError: `busy_timeout_s` is negative.
    """

    process_shared = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout_s: float = 5.0,
        create: bool = True,
        any_file_system: bool = False,
    ) -> None:
        if busy_timeout_s < 0:
            raise ValueError(f"busy_timeout_s must not be negative, and is {busy_timeout_s}")
        self._path: Final = Path(path).absolute()
        if not any_file_system:
            refuse_unknown_file_system(self._path)
        with storage_faults(self._path):
            if self._path.is_dir():
                raise LedgerRefusedError(f"{self._path} is a directory: name a file for the ledger")
            if not self._path.exists():
                if not create:
                    raise LedgerRefusedError(f"there is no ledger {self._path}: name one that is there")
                create_ledger(self._path)
            before = self._path.stat()
            connection = open_ledger_file(self._path, busy_timeout_s)
            try:
                purge = purge_is_due(connection)
                self._file: Final = LedgerFile(self._path, before)
            except BaseException:
                connection.close()
                raise
        self._pid: Final = os.getpid()
        self._reader: Final = Reader(self._file, connection)
        self._writer: Final = Writer(self._file, busy_timeout_s)
        self._closed = False
        # A handle that is dropped without being closed leaves neither thread nor connection behind.
        self._release: Final = weakref.finalize(self, _release, self._pid, self._writer, self._reader)
        if purge:
            self._writer.purge_soon()

    async def check_ready(self) -> None:
        """Returns if the file can be written now: it takes the write lock, and writes nothing."""
        self._check_usable()
        await self._writer.run(writes.check_writable)

    async def aclose(self) -> None:
        """Commits what was accepted, then closes the file."""
        self._check_process()
        self._closed = True
        # In a thread: what was accepted is committed, and the last handle on a file copies the WAL into it.
        await asyncio.to_thread(self._close)

    async def _record(self, commit: CheckedCommit) -> bool:
        self._check_usable()
        return await self._writer.run(lambda connection: writes.record(connection, commit))

    async def _record_failure(self, failure: CheckedFailure) -> bool:
        self._check_usable()
        return await self._writer.run(lambda connection: writes.record_failure(connection, failure))

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
        return await self._reader.run(
            lambda connection, at_most: reads.find_parent(
                connection, rollout_id, fingerprint, fingerprint_version, self._chains, at_most=at_most
            )
        )

    async def _retire(self, rollout_ids: list[str]) -> RolloutRemoval:
        self._check_usable()
        return await self._writer.run(lambda connection: writes.retire(connection, rollout_ids))

    async def _retire_idle(self, rollout_ids: list[str], idle_for_s: float) -> IdleRemoval:
        self._check_usable()
        return await self._writer.run(lambda connection: writes.retire_idle(connection, rollout_ids, idle_for_s))

    async def _delete(self, rollout_ids: list[str]) -> RolloutRemoval:
        self._check_usable()
        return await self._writer.run(lambda connection: writes.delete(connection, rollout_ids))

    async def _forget_fences(self, older_than: timedelta) -> FenceCount:
        self._check_usable()
        forgotten = kept = kept_bytes = 0
        last_id: str | None = ""
        while last_id is not None:
            step = await self._writer.run(
                partial(
                    writes.forget_fences,
                    older_than_s=older_than.total_seconds(),
                    after_id=last_id,
                    limit=_FENCES_AT_ONCE,
                )
            )
            forgotten += step.forgotten
            kept += step.kept
            kept_bytes += step.kept_id_bytes + step.kept * _BYTES_OF_A_FENCE
            if step.last_id is not None and step.last_id <= last_id:
                raise LedgerCorruptError(f"the rollouts of the ledger {self._path} are not in order")
            last_id = step.last_id
        return FenceCount(forgotten, kept, kept_bytes)

    async def _export(self, rollout_id: str) -> RolloutExport:
        self._check_usable()
        return await self._reader.run_in_thread(lambda connection, _: reads.export(connection, rollout_id))

    async def _import(self, rollouts: list[RolloutExport]) -> None:
        self._check_usable()
        await self._writer.run(lambda connection: writes.import_rollouts(connection, rollouts))

    async def _list_rollouts(self, matching: RolloutFilter, limit: int, after: str | None) -> RolloutPage:
        self._check_usable()
        return await self._reader.run_in_thread(
            lambda connection, _: reads.rollouts(connection, matching, limit, after)
        )

    async def _summary(self) -> RolloutSummary:
        self._check_usable()
        return await self._reader.run_in_thread(lambda connection, _: reads.summary(connection))

    async def _verify(self, progress: VerifyProgress) -> Verification:
        self._check_usable()
        return await asyncio.to_thread(verify, self._file, progress)

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


def _release(pid: int, writer: Writer, reader: Reader) -> None:
    # A process that was forked off must not touch the connections, not even to close them.
    if os.getpid() == pid:
        writer.stop()
        reader.close()
