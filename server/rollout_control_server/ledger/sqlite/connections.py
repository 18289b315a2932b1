"""Connections to a ledger's file, through the file layer that keeps a checksum in every page."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw
import apsw.sqlite_extra

from rollout_control_server.errors import LedgerCorruptError, LedgerRefusedError

__all__ = ["CHECKSUM_BYTES", "CHECKSUM_VFS", "check_reserved_bytes", "connect", "register_checksums", "transaction"]

CHECKSUM_BYTES: Final = 8
"""What SQLite's checksum extension wants reserved at the end of each page, and writes and verifies there."""

CHECKSUM_VFS: Final = "cksmvfs"
"""The name of the file layer that the extension registers."""

_OPENING_MS: Final = 5000
_LOOK_S: Final = 0.001
_registering: Final = threading.Lock()


def connect(path: Path, *, create: bool = False) -> apsw.Connection:
    """Opens a connection that checkpoints only when it is told to; the caller serialises its use.

    It waits for locks, as another process holds them for a moment when it is the first or the last to have the file
    open. Once it is open, set its busy timeout to what its work needs.

    Raises:
        LedgerRefusedError: This build of APSW has no checksum extension.
    """
    register_checksums()
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = apsw.Connection(f"file:{quote(str(path))}", flags=flags, vfs=CHECKSUM_VFS)
    try:
        connection.set_busy_timeout(_OPENING_MS)
        # The sync of the WAL at every commit is what makes an acknowledged write outlive a power cut.
        connection.execute("PRAGMA synchronous = FULL")
        connection.wal_autocheckpoint(0)
        # SQLite's authors advise against memory-mapped files where other processes write.
        connection.execute("PRAGMA mmap_size = 0")
        connection.execute("PRAGMA cache_size = -2000")  # KiB
    except BaseException:
        connection.close()
        raise
    return connection


def check_reserved_bytes(connection: apsw.Connection, path: Path) -> None:
    """Sees that the connection verifies the checksums: it does where the file's header reserves bytes for them.

    Raises:
        LedgerCorruptError: The header reserves something else.
    """
    reserved = connection.reserve_bytes("main")
    if reserved != CHECKSUM_BYTES:
        raise LedgerCorruptError(
            f"the header of the ledger {path} reserves {reserved} bytes of each page, and not the {CHECKSUM_BYTES} of "
            "the checksums: it is damaged, or another program has written the file anew, as a restored dump is. "
            "docs/sqlite.md says which ways of backing up keep a ledger whole"
        )


@contextmanager
def transaction(connection: apsw.Connection, timeout_s: float) -> Iterator[None]:
    """Holds the write lock, once that is free, and commits at the end, or rolls back what an error leaves.

    SQLite's own waiting soon looks only every 100 ms. Where several processes write all the time, it finds the lock
    held at each look, and may fail while the others commit thousands of rows. So this looks every millisecond.

    Raises:
        apsw.BusyError: Another process has held the lock whenever this looked, for `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            break
        except apsw.BusyError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.5, 1.5) * _LOOK_S)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # An error of the disk has rolled back already; a second error would hide the first.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def register_checksums() -> None:
    """Makes SQLite's checksum extension known to APSW, and leaves the process's default file layer as it was.

    Raises:
        LedgerRefusedError: This build of APSW has no checksum extension.
    """
    with _registering:
        if CHECKSUM_VFS in apsw.vfs_names():
            return
        if not apsw.sqlite_extra.has("cksumvfs"):
            raise LedgerRefusedError(
                "this APSW was built without SQLite's checksum extension, which a ledger's file needs: install APSW "
                "from its wheel on PyPI (pip install --force-reinstall --only-binary apsw apsw)"
            )
        default = apsw.vfs_names()[0]
        with apsw.Connection(":memory:") as any_connection:
            apsw.sqlite_extra.load(any_connection, "cksumvfs")
        any_connection.close()
        apsw.set_default_vfs(default)
