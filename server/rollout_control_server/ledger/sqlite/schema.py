"""The layout of a ledger's file, and opening a connection to it."""

import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rollout_control_server.errors import LedgerRefusedError
from rollout_control_server.ledger.sqlite.faults import storage_faults

__all__ = ["APPLICATION_ID", "SCHEMA_VERSION", "SEQ_BITS", "connect", "prepare_schema"]

APPLICATION_ID: Final = 0x52434C47
"""`RCLG`, in the file's header: what `file` and other programs know a ledger by."""

_OLDEST_SQLITE: Final = (3, 38, 0)

SEQ_BITS: Final = 24
"""A row's id is its rollout's generation, shifted by this, and its place in the rollout.

So the rows of a rollout lie together and in order, whatever other rollouts record between them.
"""

_TO_VERSION_1: Final = (
    # A rollout that has rows has a generation; a fence has none, and its time. So a fence costs its id and 10 bytes.
    """
    CREATE TABLE rollout (
      rollout_id TEXT PRIMARY KEY,
      generation INTEGER,
      fenced_at INTEGER, -- Unix time in milliseconds
      CHECK ((generation IS NULL) <> (fenced_at IS NULL))
    ) STRICT, WITHOUT ROWID
    """,
    # One row of a manifest. The size of an average one decides how many fit a page: four, of 4096 bytes. So the lookup
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

_MIGRATIONS: Final = (_TO_VERSION_1,)
"""Each brings a file from the schema version that is its index to the next. Version 0 is an empty database."""

SCHEMA_VERSION: Final = len(_MIGRATIONS)


def connect(path: Path, *, create: bool, busy_timeout_s: float) -> sqlite3.Connection:
    """Opens a connection that never checkpoints by itself; the caller serialises its use.

    Raises:
        LedgerUnavailableError: The file is not there and `create` is false, or cannot be opened now.
    """
    mode = "rwc" if create else "rw"
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
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
        # Some builds overwrite what is deleted, which doubles a purge's work. Nothing here is secret.
        connection.execute("PRAGMA secure_delete = OFF")
        # SQLite's authors advise against memory-mapped files where other processes write.
        connection.execute("PRAGMA mmap_size = 0")
        # The commit that begins the WAL anew cuts the rest off, see the writer.
        connection.execute("PRAGMA journal_size_limit = 0")
        connection.execute("PRAGMA cache_size = -4000")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Makes an empty file a ledger, brings an older ledger to this version, and refuses everything else.

    Raises:
        LedgerRefusedError: The file is no ledger, or one of a newer version.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        oldest = ".".join(map(str, _OLDEST_SQLITE))
        raise LedgerRefusedError(
            f"this Python has SQLite {sqlite3.sqlite_version}, and SqliteLedger needs {oldest} or newer: "
            "use another Python, or PostgresLedger"
        )
    with storage_faults(path):
        try:
            version = _schema_version(connection, path)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise LedgerRefusedError(f"{path} is no SQLite database: name another file for the ledger") from error
            raise
        if version == SCHEMA_VERSION:
            return
        if version == 0:
            connection.execute("PRAGMA page_size = 4096")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise LedgerRefusedError(
                f"{path} lies on a file system that cannot share memory between processes, which SQLite's WAL needs: "
                "put the ledger on a local disk, or use PostgresLedger"
            )
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Read again under the write lock: another process may have done it meanwhile.
            for migration in _MIGRATIONS[_schema_version(connection, path) :]:
                for statement in migration:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _schema_version(connection: sqlite3.Connection, path: Path) -> int:
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if application_id != APPLICATION_ID:
        empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
        if not empty or application_id != 0 or version != 0:
            raise LedgerRefusedError(
                f"{path} is the database of another program (application id {application_id:#x}): "
                "name another file for the ledger"
            )
        return 0
    if not 0 < version <= SCHEMA_VERSION:
        raise LedgerRefusedError(
            f"{path} has schema version {version}, and this program knows versions up to {SCHEMA_VERSION}: "
            "upgrade rollout-control, or name another file for the ledger"
        )
    return version
