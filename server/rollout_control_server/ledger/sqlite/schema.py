"""The layout of a ledger's file, how a new one is made, and how one is known."""

import os
import uuid
from pathlib import Path
from typing import Final

import apsw

from rollout_control_server.errors import LedgerRefusedError
from rollout_control_server.ledger.sqlite.connections import (
    CHECKSUM_BYTES,
    check_reserved_bytes,
    connect,
    transaction,
)

__all__ = [
    "MAX_ROWS",
    "SCHEMA",
    "SEQ_BITS",
    "VERSION",
    "create_ledger",
    "is_marked_as_ledger",
    "mark_as_ledger",
    "schema_version",
    "use_wal",
]

APPLICATION_ID: Final = 0x52434C47
"""`RCLG`, in the file's header: what `file` and other programs know a ledger by."""

_APPLICATION_ID_AT: Final = 68
_HEADER_BYTES: Final = 100

VERSION: Final = 3
"""The version of the layout, in the header's `user_version`."""

SEQ_BITS: Final = 24
MAX_ROWS: Final = 2**SEQ_BITS
"""Rows of one rollout. A row's id is its rollout's generation, shifted by SEQ_BITS, and its place in the rollout.

So the rows of a rollout lie together and in order, whatever other rollouts record between them, and numbers without a
gap show that none is missing.
"""

_PAGE_BYTES: Final = 8192
"""Of a new file. A page takes seven calls of the usual size, of which a page of 4096 bytes would take three."""

SCHEMA: Final = (
    # A rollout that has rows has a generation; a fence has none, and the time when it was set.
    """
    CREATE TABLE rollout (
      rollout_id TEXT PRIMARY KEY,
      generation INTEGER,
      retired_at REAL, -- Unix time in seconds, as all times
      imported_at REAL,
      imported_rows INTEGER, -- how many of the rows the import brought
      failures INTEGER, -- null: none
      CHECK ((generation IS NULL) <> (retired_at IS NULL))
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX rollout_with_failures ON rollout (rollout_id) WHERE failures > 0",
    # One row of a manifest, a record or a failure.
    f"""
    CREATE TABLE call (
      call_rowid INTEGER PRIMARY KEY, -- generation << {SEQ_BITS} | place in the rollout
      generation INTEGER AS (call_rowid >> {SEQ_BITS}) VIRTUAL,
      json TEXT NOT NULL, -- what the manifest shows
      recorded_at REAL, -- null: a file of version 2 or older did not keep it
      model_call_id TEXT NOT NULL,
      reason TEXT, -- of a failure row; null: a record, which alone uses the columns below
      parent_seq INTEGER, -- place of the call whose staging chain, with this call's staging key, is this call's
      staging_chain TEXT, -- JSON; null: the chain of parent_seq, if any, and this call's staging key
      chain_digest BLOB, -- of the whole staging chain
      fingerprint ANY, -- of the lookup; null: the call has none
      fingerprint_version INTEGER,
      context_len INTEGER,
      context_digest ANY,
      unserved TEXT -- JSON of fields that only an export shows
    ) STRICT
    """,
    "CREATE UNIQUE INDEX recorded_call ON call (generation, model_call_id) WHERE reason IS NULL",
    "CREATE UNIQUE INDEX failed_call ON call (generation, model_call_id, reason) WHERE reason IS NOT NULL",
    "CREATE INDEX parent ON call (generation, fingerprint, fingerprint_version) WHERE fingerprint IS NOT NULL",
    # Generations that no rollout has any more, and whose rows are still to be removed. In older versions the table has
    # another name, so that a delete by a program of theirs fails, too.
    "CREATE TABLE purge_queue (generation INTEGER PRIMARY KEY) STRICT",
    # The last generation that was given to a rollout; none is ever given twice.
    "CREATE TABLE newest_generation (generation INTEGER NOT NULL) STRICT",
    "INSERT INTO newest_generation VALUES (0)",
)


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
        connection = connect(unfinished, create=True)
        try:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            connection.reserve_bytes("main", CHECKSUM_BYTES)
            use_wal(connection, path)
            with transaction(connection, 0):
                for statement in SCHEMA:
                    connection.execute(statement)
                mark_as_ledger(connection, VERSION)
            check_reserved_bytes(connection, path)
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


def use_wal(connection: apsw.Connection, path: Path) -> None:
    """Puts the file into WAL mode, where it is in another.

    Raises:
        LedgerRefusedError: The file system does not let it.
        apsw.BusyError: Somebody uses the file in the other mode.
    """
    if connection.pragma("journal_mode") != "wal" and connection.pragma("journal_mode", "wal") != "wal":
        raise LedgerRefusedError(
            f"{path} cannot be put into WAL mode: its file system has no memory that processes share. Put the ledger "
            "on a local disk, or use PostgresLedger (postgresql://...)"
        )


def mark_as_ledger(connection: apsw.Connection, version: int) -> None:
    """Writes into the header that this is a ledger, and of which version."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {version}")


def is_marked_as_ledger(path: Path) -> bool:
    """Tells whether the header of a file that SQLite cannot read says that it is a ledger, so that it is damaged."""
    # SQLite's own file, because a file of Python's would release this process's locks when it is closed.
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        return file.xFileSize() >= _HEADER_BYTES and file.xRead(4, _APPLICATION_ID_AT) == APPLICATION_ID.to_bytes(4)
    finally:
        file.xClose()


def schema_version(connection: apsw.Connection, path: Path) -> int:
    """Returns the version of the ledger's layout.

    Raises:
        LedgerRefusedError: The file is no ledger.
    """
    application_id = connection.pragma("application_id")
    if path.stat().st_size == 0:
        raise LedgerRefusedError(f"{path} is empty, and a ledger never is: remove it, and a new ledger is made")
    if application_id != APPLICATION_ID:
        raise LedgerRefusedError(
            f"{path} is the database of another program (application id {application_id:#x}): "
            "name another file for the ledger"
        )
    version: int = connection.execute("PRAGMA user_version").get
    return version


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


def _sync_directory(directory: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
