"""Opening a ledger's file, and bringing one of an older version to this one.

A file of version 1 or 2 is migrated in three steps. A process that is killed at any moment leaves the file before or
after a step, or in the second, which can be repeated; the next process that opens the file goes on from there:

1. Its tables get other names, and the version one that no program has. So a program of the older version that has the
   file open can neither write nor read any more, and none opens it.
2. The pages get their checksums (VACUUM, twice), while nobody else has the file open: SQLite puts checksums into pages
   when it copies them from the WAL into the file, and a program of an older version would copy them without.
3. The rows are copied into this version's tables, and the older ones are dropped.
"""

import logging
import random
import time
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from rollout_control_server.errors import LedgerCorruptError, LedgerRefusedError, LedgerUnavailableError
from rollout_control_server.ledger.sqlite.connections import (
    CHECKSUM_BYTES,
    check_reserved_bytes,
    transaction,
)
from rollout_control_server.ledger.sqlite.recovery import connect_and_recover
from rollout_control_server.ledger.sqlite.rows import INSERT_CALL, pack_digest, seq_of
from rollout_control_server.ledger.sqlite.schema import (
    SCHEMA,
    VERSION,
    is_marked_as_ledger,
    mark_as_ledger,
    schema_version,
    use_wal,
)
from rollout_control_server.ledger.staging_chains import chain_digest
from rollout_control_server.records import CallFailure, CallRecord

__all__ = ["open_ledger_file"]

logger = logging.getLogger("rollout_control_server.ledger")

_OLD_VERSIONS: Final = (1, 2)
_MOVED: Final = 1000 + VERSION
_CHECKSUMMED: Final = 1001 + VERSION
"""These stand in the header after the first and the second step: newer than what could misread the file."""

_RENAME: Final = (
    "ALTER TABLE rollout RENAME TO old_rollout",
    "ALTER TABLE call RENAME TO old_call",
    "ALTER TABLE purge RENAME TO old_purge",
    "ALTER TABLE newest_generation RENAME TO old_newest_generation",
)
_COPY_ROLLOUTS: Final = (
    """
    INSERT INTO rollout (rollout_id, generation, retired_at, failures)
    SELECT rollout_id, generation, fenced_at / 1000.0, (
      SELECT nullif(count(*), 0) FROM old_call
      WHERE call_rowid BETWEEN old_rollout.generation << 24 AND old_rollout.generation << 24 | 16777215 AND failed
    ) FROM old_rollout
    """,
    "UPDATE newest_generation SET generation = (SELECT generation FROM old_newest_generation)",
)
_LIVE_CALLS: Final = """
  SELECT rollout_id, call_rowid, CAST(json AS BLOB), failed, parent_seq, staging_chain,
    context_len, context_digest, old_call.fingerprint
  FROM old_rollout JOIN old_call
  ON call_rowid BETWEEN generation << 24 AND generation << 24 | 16777215
  WHERE generation IS NOT NULL ORDER BY generation, call_rowid
"""
"""What waits to be purged is left behind."""

_RECORD_DECODER: Final = msgspec.json.Decoder(CallRecord)
_FAILURE_DECODER: Final = msgspec.json.Decoder(CallFailure)
_CHAIN_DECODER: Final = msgspec.json.Decoder(tuple[str, ...])


_RETRY_S: Final = 0.02
"""How long a process that waits to be alone with a file closes it between two attempts."""


class _FileInUseError(Exception):
    """Another connection to the file is open."""


class _OldCall(NamedTuple):
    """A row of the table `call` of versions 1 and 2."""

    call_rowid: int
    json: bytes
    failed: int | None
    parent_seq: int | None
    staging_chain: str | None
    context_len: int | None
    context_digest: bytes | str | None
    fingerprint: bytes | str | None


def open_ledger_file(path: Path, busy_timeout_s: float) -> apsw.Connection:
    """Opens a ledger's file, brings an older one to this version, and refuses what is no ledger.

    Raises:
        LedgerCorruptError: The file is damaged.
        LedgerRefusedError: The file is no ledger, or one of a newer version.
        LedgerUnavailableError: The file is in another journal mode, or of an older version, and in use.
    """
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection = connect_and_recover(path)
        except apsw.NotADBError as error:
            if is_marked_as_ledger(path):
                raise
            raise LedgerRefusedError(f"{path} is no SQLite database: name another file for the ledger") from error
        try:
            version = schema_version(connection, path)
            if version == VERSION:
                check_reserved_bytes(connection, path)
            elif version not in (*_OLD_VERSIONS, _MOVED, _CHECKSUMMED):
                raise LedgerRefusedError(
                    f"{path} has schema version {version}, and this program knows versions up to {VERSION}: "
                    "upgrade rollout-control, or name another file for the ledger"
                )
            if version == _MOVED:
                _add_checksums(connection)
            else:
                _use_wal(connection, path)
                if version == VERSION:
                    connection.set_busy_timeout(0)
                    return connection
                _move_tables(connection, path, version, busy_timeout_s)
        except _FileInUseError:
            connection.close()
            if time.monotonic() >= deadline:
                raise LedgerUnavailableError(
                    f"{path} is being migrated to version {VERSION}, for which no other program may have it open: stop "
                    "those of the older version, and open the ledger again"
                ) from None
            # Others that migrate it need a moment in which it is closed here.
            time.sleep(random.uniform(0.5, 1.5) * _RETRY_S)
            continue
        except BaseException:
            connection.close()
            raise
        # Checksums are verified from the next opening on.
        connection.close()


def _use_wal(connection: apsw.Connection, path: Path) -> None:
    """Puts a file back into WAL mode that a backup or another program has put into another."""
    try:
        use_wal(connection, path)
    except (apsw.BusyError, apsw.LockedError) as error:
        raise LedgerUnavailableError(
            f"{path} is in SQLite's {connection.pragma('journal_mode')} mode and in use, and a ledger is in WAL mode: "
            "close the other programs that use the file, and it is put back into WAL mode when it is opened next"
        ) from error


def _add_checksums(connection: apsw.Connection) -> None:
    """Writes each page anew with a checksum.

    Raises:
        _FileInUseError: Somebody else has the file open.
    """
    connection.set_busy_timeout(0)
    try:
        # SQLite leaves WAL mode only on the last connection.
        connection.execute("PRAGMA checksum_verification = OFF")
        if connection.pragma("journal_mode", "delete") != "delete":
            raise _FileInUseError
        connection.reserve_bytes("main", CHECKSUM_BYTES)
        # The first page says that pages have checksums, and is written last. So the first VACUUM writes the pages that
        # its cache has no room for without one, and the second, which has to read these, writes all of them with one.
        connection.execute("VACUUM")
        connection.execute("PRAGMA checksum_verification = OFF")
        connection.execute("VACUUM")
        mark_as_ledger(connection, _CHECKSUMMED)
    except (apsw.BusyError, apsw.LockedError) as error:
        raise _FileInUseError from error


def _move_tables(connection: apsw.Connection, path: Path, version: int, busy_timeout_s: float) -> None:
    """Does the first or the last step of a migration."""
    with transaction(connection, busy_timeout_s):
        # Asked again under the write lock: another process may have done it.
        if schema_version(connection, path) != version:
            return
        if version in _OLD_VERSIONS:
            logger.info("migrating the ledger %s from version %d to %d", path, version, VERSION)
            for statement in _RENAME:
                connection.execute(statement)
            connection.execute(f"DROP TABLE {'finder' if version == 1 else 'block_finder'}")
            mark_as_ledger(connection, _MOVED)
            return
        for statement in (*SCHEMA, *_COPY_ROLLOUTS):
            connection.execute(statement)
        connection.executemany(INSERT_CALL, _migrated_calls(connection))
        for table in ("rollout", "call", "purge", "newest_generation"):
            connection.execute(f"DROP TABLE old_{table}")
        mark_as_ledger(connection, VERSION)
    logger.info("migrated the ledger %s", path)


def _migrated_calls(connection: apsw.Connection) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of live rollouts as this version keeps them.

    Raises:
        LedgerCorruptError: A row is lost or damaged.
    """
    for rollout_id, rows in groupby(connection.execute(_LIVE_CALLS), key=itemgetter(0)):
        chains: dict[int, tuple[str, ...]] = {}
        for seq, (_, call_rowid, *columns) in enumerate(rows):
            if seq_of(call_rowid) != seq:
                raise LedgerCorruptError(f"rollout {rollout_id!r} of the ledger has lost rows")
            try:
                yield _migrated_call(_OldCall(call_rowid, *columns), chains)
            except (msgspec.MsgspecError, KeyError, ValueError, TypeError) as error:
                raise LedgerCorruptError(
                    f"row {seq} of rollout {rollout_id!r} of the ledger is damaged: {error}"
                ) from error


def _migrated_call(old: _OldCall, chains: dict[int, tuple[str, ...]]) -> tuple[Any, ...]:
    """Returns what INSERT_CALL takes for an older row; `chains` has the chains of the rows before it, by place."""
    json = old.json.decode()
    if old.failed:
        failure = _FAILURE_DECODER.decode(json)
        return (old.call_rowid, json, None, failure.model_call_id, failure.reason, *(None,) * 8)
    record = _RECORD_DECODER.decode(json)
    if old.staging_chain is not None:
        chain = _CHAIN_DECODER.decode(old.staging_chain)
    else:
        chain = (*(() if old.parent_seq is None else chains[old.parent_seq]), record.staging_key)
    chains[seq_of(old.call_rowid)] = chain
    fingerprint = old.fingerprint
    if old.context_len is not None and fingerprint is None and record.continuation_fingerprint is not None:
        # A lookup's fingerprint was kept once, where it is the record's own.
        fingerprint = pack_digest(record.continuation_fingerprint)
    return (
        old.call_rowid, json, None, record.model_call_id, None, old.parent_seq, old.staging_chain, chain_digest(chain),
        fingerprint, record.fingerprint_version, old.context_len, old.context_digest, None,
    )  # fmt: skip
