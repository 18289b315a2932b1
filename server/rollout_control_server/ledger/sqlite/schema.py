"""The layout of a ledger's file, how one is made, and how one is known."""

import os
import sqlite3
import uuid
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rollout_control_server.errors import LedgerRefusedError

__all__ = [
    "APPLICATION_ID",
    "BLOCK_ROWS",
    "MIGRATIONS",
    "PAGE_BYTES",
    "SEQ_BITS",
    "connect",
    "create_ledger",
    "open_ledger_file",
]

APPLICATION_ID: Final = 0x52434C47
"""`RCLG`, in the file's header: what `file` and other programs know a ledger by."""

SEQ_BITS: Final = 24
"""A row's id is its rollout's generation, shifted by this, and its place in the rollout.

So the rows of a rollout lie together and in order, whatever other rollouts record between them.
"""

PAGE_BYTES: Final = 8192
"""Of a new file. A page takes eight calls of the usual size, which the columns of `call` are laid out for.

A manifest is read page by page, and a record writes one whole.
"""

BLOCK_ROWS: Final = 16
"""How many rows of a rollout enter the finder together: those with places 0 to 15, 16 to 31, and so on."""

_TO_VERSION_1: Final = (
    # A rollout that has rows has a generation; a fence has none, and its time. So a fence costs its id and 14 bytes.
    """
    CREATE TABLE rollout (
      rollout_id TEXT PRIMARY KEY,
      generation INTEGER,
      fenced_at INTEGER, -- Unix time in milliseconds
      CHECK ((generation IS NULL) <> (fenced_at IS NULL))
    ) STRICT, WITHOUT ROWID
    """,
    # One row of a manifest. The size of an average one decides how many fit a page: eight, of 8192 bytes. So the lookup
    # keeps a digest as 32 bytes, and its fingerprint only where the record doesn't have it.
    """
    CREATE TABLE call (
      call_rowid INTEGER PRIMARY KEY, -- generation << 24 | seq
      json TEXT NOT NULL,
      failed INTEGER, -- 1 for a failure row
      parent_seq INTEGER, -- set when staging_chain is null and not just this call's own key
      staging_chain TEXT, -- JSON; null: the chain of the parent_seq, if any, and this call's own key
      context_len INTEGER, -- null: the call has no lookup
      context_digest ANY,
      fingerprint ANY -- null: the lookup's is the record's continuation_fingerprint
    ) STRICT
    """,
    # Finds a rollout's rows by a 32-bit hash of the call id or of the fingerprint; every find is verified. One table
    # for both, so that a record touches one page of it.
    """
    CREATE TABLE finder (
      generation INTEGER NOT NULL,
      key INTEGER NOT NULL,
      seq INTEGER NOT NULL,
      PRIMARY KEY (generation, key, seq)
    ) STRICT, WITHOUT ROWID
    """,
    # Generations that no rollout has any more, and whose rows are still to be removed.
    "CREATE TABLE purge (generation INTEGER PRIMARY KEY) STRICT",
    "CREATE TABLE newest_generation (generation INTEGER NOT NULL) STRICT",
    "INSERT INTO newest_generation VALUES (0)",
)

_TO_VERSION_2: Final = (
    # The keys of 16 rows of a rollout are inserted together, once those are there, so that most records touch no page
    # of this table. It has another name, so that a program of version 1 that has the file open stops writing to it.
    "ALTER TABLE finder RENAME TO block_finder",
    """
    DELETE FROM block_finder WHERE seq >= (
      SELECT (max(call_rowid) & 16777215) + 1 & ~15 FROM call
      WHERE call_rowid BETWEEN generation << 24 AND generation << 24 | 16777215
    )
    """,
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_TO_VERSION_1, _TO_VERSION_2)
"""The statements that bring a file from the schema version that is their index to the next.

A new file runs through all of them, so it is laid out as a migrated one.
"""


def connect(path: Path, *, create: bool = False, busy_timeout_s: float) -> sqlite3.Connection:
    """Opens a connection that never checkpoints by itself; the caller serialises its use."""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        # The sync of the WAL at every commit is what makes an acknowledged write outlive a power cut.
        connection.execute("PRAGMA synchronous = FULL")
        # Checkpoints are made by the writer only, see there.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        # The commit that begins the WAL anew cuts the rest off, see there too.
        connection.execute("PRAGMA journal_size_limit = 0")
        # Some builds overwrite what is deleted, which doubles a purge's work. Nothing here is secret.
        connection.execute("PRAGMA secure_delete = OFF")
        # SQLite's authors advise against memory-mapped files where other processes write.
        connection.execute("PRAGMA mmap_size = 0")
        connection.execute("PRAGMA cache_size = -2000")  # KiB
    except BaseException:
        connection.close()
        raise
    return connection


def create_ledger(path: Path) -> None:
    """Makes a ledger at the path, unless there is a file.

    The file gets its name when it is whole, so nobody ever meets half a ledger.

    Raises:
        LedgerRefusedError: The directory is not there, the file system lacks what a ledger needs, or the WAL of another
            file of this name is there.
        OSError: The directory takes no files.
    """
    if not path.parent.is_dir():
        raise LedgerRefusedError(f"there is no directory {path.parent}: make it, or name another file for the ledger")
    _refuse_leftovers(path)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")
    try:
        connection = connect(unfinished, create=True, busy_timeout_s=0)
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise LedgerRefusedError(
                    f"{path} lies on a file system without memory that processes share, which SQLite's WAL needs: "
                    "put the ledger on a local disk, or use PostgresLedger (postgresql://...)"
                )
            _migrate(connection, 0)
        finally:
            # Also copies the WAL into the file and syncs it: this is its only connection.
            connection.close()
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return
    finally:
        for leftover in (unfinished, *unfinished.parent.glob(f"{unfinished.name}-*")):
            leftover.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _refuse_leftovers(path: Path) -> None:
    """Refuses the WAL of a ledger whose file is gone: a new file would be mixed with its pages.

    Raises:
        LedgerRefusedError: There is one.
    """
    for leftover in (path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        # In this order: another process that makes the ledger now makes the file first.
        if leftover.exists() and not path.exists():
            raise LedgerRefusedError(
                f"{leftover} is there, and the ledger {path} that it belongs to is not: put the file back, or, if its "
                f"rows are not needed, remove {path.name}-wal and {path.name}-shm"
            )


def open_ledger_file(path: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """Opens a ledger's file, brings an older ledger to this version, and refuses what is no ledger.

    Raises:
        LedgerRefusedError: The file is no ledger, or one of a newer version.
    """
    try:
        connection = connect(path, busy_timeout_s=busy_timeout_s)
        try:
            _prepare_schema(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise LedgerRefusedError(f"{path} is no SQLite database: name another file for the ledger") from error
        raise
    return connection


def _prepare_schema(connection: sqlite3.Connection, path: Path) -> None:
    if _check_schema(connection, path) < len(MIGRATIONS):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Asked again under the write lock: another process may have migrated it.
            _migrate(connection, _check_schema(connection, path))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _check_schema(connection: sqlite3.Connection, path: Path) -> int:
    """Returns the ledger's schema version.

    Raises:
        LedgerRefusedError: The file is no ledger, or one of a newer version.
    """
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    if path.stat().st_size == 0:
        raise LedgerRefusedError(f"{path} is empty, and a ledger never is: remove it, and a new ledger is made")
    if application_id != APPLICATION_ID:
        raise LedgerRefusedError(
            f"{path} is the database of another program (application id {application_id:#x}): "
            "name another file for the ledger"
        )
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise LedgerRefusedError(
            f"{path} has schema version {version}, and this program knows versions up to {len(MIGRATIONS)}: "
            "upgrade rollout-control, or name another file for the ledger"
        )
    return version


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    for migration in MIGRATIONS[version:]:
        for statement in migration:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _sync_directory(directory: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
