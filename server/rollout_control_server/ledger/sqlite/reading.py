"""Where a handle reads: short readings in the event loop, long ones in a thread."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import apsw

from rollout_control_server.ledger.sqlite.connections import check_reserved_bytes, connect
from rollout_control_server.ledger.sqlite.faults import storage_faults
from rollout_control_server.ledger.sqlite.file import LedgerFile
from rollout_control_server.ledger.sqlite.reads import LongReadError

__all__ = ["Reader", "open_same_file"]

_T = TypeVar("_T")

_SHORT_READ_ROWS: Final = 1024
_SLOW_READ_S: Final = 0.005
_SLOW_TIME_S: Final = 1.0


class Reader:
    """Reads of one handle. No read waits for a lock.

    A manifest of 10 calls takes 20 us to read. To hand that to a thread and back takes 50 us more, and more again when
    another thread wants the interpreter. What is read was mostly written minutes ago, so it is in the page cache. So a
    reading of up to some hundred rows is made where it is asked for, which holds the event loop for as long as encoding
    a response does. A longer one is made in a thread. Two consecutive short readings over _SLOW_READ_S move all
    readings to the thread for _SLOW_TIME_S, because the disk is slow or the cache is cold; a single one may be the
    fault of another process that had the processor.

    Args:
        file: The ledger's file.
        connection: The connection of short readings; the reader closes it.
    """

    def __init__(self, file: LedgerFile, connection: apsw.Connection) -> None:
        self._file: Final = file
        self._connection: Final = connection
        self._lock: Final = threading.Lock()
        self._slow_until = 0.0
        self._last_was_slow = False
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="sqlite-ledger-reader")
        self._thread_connection: apsw.Connection | None = None

    async def run(self, read: Callable[[apsw.Connection, int], _T]) -> _T:
        """Returns what `read` returns, which takes a connection and how many rows it may read.

        `read` raises LongReadError if it would take more rows than that.
        """
        begun = time.monotonic()
        if begun >= self._slow_until:
            try:
                with self._lock, storage_faults(self._file.path):
                    self._file.check()
                    return read(self._connection, _SHORT_READ_ROWS)
            except LongReadError:
                pass
            finally:
                ended = time.monotonic()
                slow = ended - begun > _SLOW_READ_S
                if slow and self._last_was_slow:
                    self._slow_until = ended + _SLOW_TIME_S
                self._last_was_slow = slow
        return await self.run_in_thread(read)

    async def run_in_thread(self, read: Callable[[apsw.Connection, int], _T]) -> _T:
        """Returns what `read` returns, which is known to take long: it may read any number of rows."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run_in_thread, read)

    def finish(self) -> None:
        """Waits for the readings in the thread, and takes no more of them."""
        self._thread.shutdown()

    def close(self) -> None:
        """Closes the connections, which nobody uses any more."""
        self._thread.shutdown(wait=False)
        with self._lock:
            if self._thread_connection is not None:
                self._thread_connection.close()
            self._connection.close()

    def _run_in_thread(self, read: Callable[[apsw.Connection, int], _T]) -> _T:
        with storage_faults(self._file.path):
            if self._thread_connection is None:
                self._thread_connection = open_same_file(self._file)
            self._file.check()
            return read(self._thread_connection, sys.maxsize)


def open_same_file(file: LedgerFile) -> apsw.Connection:
    """Opens another connection to the file that the handle has open, and to no other.

    Raises:
        LedgerUnavailableError: The path no longer names that file.
    """
    file.check()
    connection = connect(file.path)
    try:
        # A first reading opens the WAL; only now it is known which file and which WAL this connection has.
        connection.execute("SELECT 1 FROM newest_generation").fetchone()
        check_reserved_bytes(connection, file.path)
        connection.set_busy_timeout(0)
        file.check()
    except BaseException:
        connection.close()
        raise
    return connection
