"""Reading all of a ledger's file to find what is damaged: pages, their order, rows, chains, indexes and counts."""

import contextlib
import time
from collections.abc import Generator, Iterator
from typing import Any, Final

import apsw

from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger.checked_rows import CheckedFailure
from rollout_control_server.ledger.exports import check_stored
from rollout_control_server.ledger.results import Damage, RolloutExport, Verification, VerifyProgress
from rollout_control_server.ledger.sqlite.connections import CHECKSUM_VFS
from rollout_control_server.ledger.sqlite.faults import WRONG_CHECKSUM, storage_faults
from rollout_control_server.ledger.sqlite.file import LedgerFile
from rollout_control_server.ledger.sqlite.reading import open_same_file
from rollout_control_server.ledger.sqlite.reads import read_export, reading
from rollout_control_server.ledger.sqlite.rows import pack_digest
from rollout_control_server.ledger.sqlite.schema import MAX_ROWS, SEQ_BITS

__all__ = ["verify"]

_PAGES_AT_ONCE: Final = 256
_IDS_AT_ONCE: Final = 256
_PAGE_RETRIES: Final = 4
_PAGE_RETRY_S: Final = 0.02
"""Pages whose checksums are wrong are read again this often, so long after: a checkpoint may be writing one now."""
_SHOWN_PAGES: Final = 20
_STRUCTURE_ERRORS: Final = 100
"""SQLite's own check ends after this many faults, because each can bring many others along."""

_MAX_GENERATION: Final = 2 ** (63 - SEQ_BITS)

# These read the indexes alone, not the rows that the indexes lead to.
_RECORDED: Final = """
  SELECT model_call_id, call_rowid FROM call INDEXED BY recorded_call WHERE generation = ? AND reason IS NULL
"""
_FAILED: Final = """
  SELECT model_call_id, reason, call_rowid FROM call INDEXED BY failed_call
  WHERE generation = ? AND reason IS NOT NULL
"""
_PARENTS: Final = """
  SELECT fingerprint, fingerprint_version, call_rowid FROM call INDEXED BY parent
  WHERE generation = ? AND fingerprint IS NOT NULL
"""


def verify(file: LedgerFile, progress: VerifyProgress) -> Verification:
    """Reads the whole file, by a connection of its own, and says what is damaged.

    Raises:
        LedgerUnavailableError: Something could not be read now.
    """
    with storage_faults(file.path), contextlib.closing(open_same_file(file)) as connection:
        return _Verifying(file, connection, progress).run()


class _Verifying:
    """One verification.

    Args:
        file: The ledger's file.
        connection: A connection of its own.
        progress: What is called with how far it has come.
    """

    def __init__(self, file: LedgerFile, connection: apsw.Connection, progress: VerifyProgress) -> None:
        self._file: Final = file
        self._connection: Final = connection
        self._progress: Final = progress
        self._damages: Final[list[Damage]] = []
        self._rollouts = 0
        self._rows = 0
        self._generations: Final[set[int]] = set()

    def run(self) -> Verification:
        newest = self._newest_generation()
        if self._verify_pages():
            self._verify_structure()
        self._verify_rollouts()
        self._verify_generations(newest)
        return Verification(self._rollouts, self._rows, self._damages)

    @contextlib.contextmanager
    def _noting(self, *rollout_ids: str) -> Iterator[None]:
        """Notes the damage that the block meets, with the rollouts that it touches."""
        try:
            with storage_faults(self._file.path):
                yield
        except LedgerCorruptError as error:
            self._damages.append(Damage(str(error), list(rollout_ids)))

    def _newest_generation(self) -> int:
        """Returns the last generation that was given when the verification began."""
        with self._noting():
            found = self._connection.execute("SELECT generation FROM newest_generation").fetchall()
            if len(found) != 1:
                raise LedgerCorruptError(f"the ledger has {len(found)} newest generations, and not one")
            newest: Any = found[0][0]
            if not 0 <= newest < _MAX_GENERATION:
                raise LedgerCorruptError(f"the ledger's newest generation cannot be {newest}")
            return int(newest)
        return -1

    def _verify_pages(self) -> bool:
        """Reads each page of the file, pages that nothing uses included, and tells whether all checksums are right.

        What is in the WAL is read by the other steps; SQLite checks the checksum of each of its frames.
        """
        page_bytes = self._connection.pragma("page_size")
        wrong: list[int] = []
        # SQLite's own file, because a file of Python's would release this process's locks when it is closed.
        file = apsw.VFSFile(
            CHECKSUM_VFS, str(self._file.path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0]
        )
        try:
            pages = file.xFileSize() // page_bytes
            for page in range(pages):
                if not _is_page_right(file, page, page_bytes):
                    wrong.append(page)
                if page % _PAGES_AT_ONCE == 0 or page == pages - 1:
                    self._progress("pages", page + 1, pages)
            for _ in range(_PAGE_RETRIES):
                if not wrong:
                    break
                time.sleep(_PAGE_RETRY_S)
                # A crash in the midst of a checkpoint leaves half a page, whose whole is still in the WAL.
                with contextlib.suppress(apsw.BusyError, apsw.ReadOnlyError):
                    self._connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)
                wrong = [page for page in wrong if not _is_page_right(file, page, page_bytes)]
        finally:
            file.xClose()
        if wrong:
            numbers = ", ".join(str(page + 1) for page in wrong[:_SHOWN_PAGES])
            self._damages.append(
                Damage(
                    f"the checksums of {len(wrong)} of the {pages} pages are wrong: page "
                    f"{numbers}{', ...' if len(wrong) > _SHOWN_PAGES else ''}",
                    [],
                )
            )
        return not wrong

    def _verify_structure(self) -> None:
        """Has SQLite check the trees of pages, and each index against its table."""
        self._progress("structure", 0, None)
        with self._noting():
            for (line,) in self._connection.execute(f"PRAGMA integrity_check({_STRUCTURE_ERRORS})"):
                if line != "ok":
                    self._damages.append(Damage(line.removeprefix("*** in database main ***\n"), []))

    def _verify_rollouts(self) -> None:
        total: int | None = None
        with self._noting():
            total = self._connection.execute("SELECT count(*) FROM rollout").get
        for rollout_id in self._rollout_ids():
            with self._noting(rollout_id), reading(self._connection):
                self._verify_rollout(rollout_id)
            self._rollouts += 1
            if self._rollouts % _IDS_AT_ONCE == 0 or self._rollouts == total:
                self._progress("rollouts", self._rollouts, total)

    def _rollout_ids(self) -> Iterator[str]:
        """Yields all ids; where some cannot be read, those before them in order, then those behind them backwards."""
        last = yield from self._ids_from("", "> ? ORDER BY rollout_id")
        if last is not None:
            # Less than a blob is every text.
            for rollout_id in self._ids_from(b"", "< ? ORDER BY rollout_id DESC"):
                if rollout_id <= last:
                    break
                yield rollout_id

    def _ids_from(self, start: str | bytes, condition: str) -> Generator[str, None, str | None]:
        """Yields the ids, and returns the last one that could be read, or None if that is the last there is."""
        last: Any = start
        more = True
        while more:
            ids: list[str] = []
            failure: LedgerCorruptError | None = None
            try:
                with storage_faults(self._file.path):
                    for (rollout_id,) in self._connection.execute(
                        f"SELECT rollout_id FROM rollout WHERE rollout_id {condition} LIMIT {_IDS_AT_ONCE}", (last,)
                    ):
                        if ids and (rollout_id > ids[-1]) != (condition[0] == ">"):
                            raise LedgerCorruptError("the rollouts of the ledger are not in order")
                        ids.append(rollout_id)
            except LedgerCorruptError as error:
                failure = error
            yield from ids
            last = ids[-1] if ids else last
            if failure is not None:
                self._damages.append(Damage(f"the ids next to {last!r} cannot be read: {failure}", []))
                return last or ""
            more = len(ids) == _IDS_AT_ONCE
        return None

    def _verify_rollout(self, rollout_id: str) -> None:
        """Verifies one rollout, within a reading."""
        connection = self._connection
        found: Any = connection.execute(
            "SELECT generation, failures, imported_rows FROM rollout WHERE rollout_id = ?", (rollout_id,)
        ).fetchone()
        if found is None:
            return
        generation, failures, imported_rows = found
        if generation is None:
            check_stored(read_export(connection, rollout_id))
            return
        if generation in self._generations:
            raise LedgerCorruptError(f"rollout {rollout_id!r} of the ledger has the rows of another")
        self._generations.add(generation)
        export = read_export(connection, rollout_id)
        check_stored(export)
        self._rows += len(export.rows)
        if connection.execute("SELECT 1 FROM newest_generation WHERE generation < ?", (generation,)).fetchall():
            raise LedgerCorruptError(f"the generation of rollout {rollout_id!r} of the ledger will be given again")
        if connection.execute("SELECT 1 FROM purge_queue WHERE generation = ?", (generation,)).fetchall():
            raise LedgerCorruptError(f"the rows of rollout {rollout_id!r} of the ledger are about to be purged")
        counted = sum(isinstance(row, CheckedFailure) for row, _ in export.rows)
        if (failures or 0) != counted:
            raise LedgerCorruptError(
                f"rollout {rollout_id!r} of the ledger is listed with {failures or 0} failures, and has {counted}"
            )
        if (imported_rows or 0) > len(export.rows):
            raise LedgerCorruptError(f"rollout {rollout_id!r} of the ledger has lost imported rows")
        self._verify_indexes(generation, export)

    def _verify_indexes(self, generation: int, export: RolloutExport) -> None:
        recorded: set[tuple[Any, ...]] = set()
        failed: set[tuple[Any, ...]] = set()
        parents: set[tuple[Any, ...]] = set()
        for rowid, (row, _) in enumerate(export.rows, generation << SEQ_BITS):
            if isinstance(row, CheckedFailure):
                failed.add((row.model_call_id, row.reason, rowid))
                continue
            recorded.add((row.model_call_id, rowid))
            if row.lookup is not None:
                parents.add((pack_digest(row.lookup.fingerprint), row.fingerprint_version, rowid))
        for name, statement, expected in (
            ("recorded_call", _RECORDED, recorded),
            ("failed_call", _FAILED, failed),
            ("parent", _PARENTS, parents),
        ):
            if set(self._connection.execute(statement, (generation,))) != expected:
                raise LedgerCorruptError(f"the index {name} of the ledger lacks rows of {export.rollout_id!r}")

    def _verify_generations(self, newest: int) -> None:
        """Looks for rows that belong to no rollout and do not wait for the purge either."""
        lost = 0
        with self._noting():
            strange: Any = self._connection.execute(
                "SELECT count(*) FROM purge_queue, newest_generation WHERE purge_queue.generation NOT BETWEEN 1 "
                "AND newest_generation.generation"
            ).get
            if strange:
                raise LedgerCorruptError(f"the purge has {strange} generations in its queue that were never given")
        with self._noting():
            generation = self._next_generation(-1)
            while generation is not None and generation <= newest:
                if generation not in self._generations and not self._is_purged(generation):
                    lost += 1
                generation = self._next_generation(generation)
        if lost:
            self._damages.append(Damage(f"the ledger has the rows of {lost} rollouts whose ids are lost", []))

    def _next_generation(self, generation: int) -> int | None:
        """Returns the next generation that has a row."""
        found: Any = self._connection.execute(
            "SELECT generation FROM call WHERE call_rowid >= ? ORDER BY call_rowid LIMIT 1",
            ((generation + 1) << SEQ_BITS,),
        ).fetchone()
        if found is None or found[0] > generation:
            return None if found is None else found[0]
        raise LedgerCorruptError("the rows of the ledger are not in order")

    def _is_purged(self, generation: int) -> bool:
        """Tells whether the rows of a generation wait for the purge, or are gone by now."""
        return bool(
            self._connection.execute(
                "SELECT EXISTS (SELECT 1 FROM purge_queue WHERE generation = :generation) OR NOT EXISTS "
                f"(SELECT 1 FROM call WHERE call_rowid BETWEEN :generation << {SEQ_BITS} "
                f"AND (:generation << {SEQ_BITS}) + {MAX_ROWS - 1})",
                {"generation": generation},
            ).get
        )


def _is_page_right(file: apsw.VFSFile, page: int, page_bytes: int) -> bool:
    """Tells whether a page, counted from 0, has the checksum of its content."""
    try:
        file.xRead(page_bytes, page * page_bytes)
    except apsw.IOError as error:
        if getattr(error, "extendedresult", None) != WRONG_CHECKSUM:
            raise
        return False
    return True
