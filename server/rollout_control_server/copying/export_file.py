"""The export file: the rollouts of a ledger as JSON lines, compressed by gzip where its name ends in `.gz`.

docs/copy.md describes the format for other programs.
"""

import contextlib
import gzip
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from rollout_control_server.copying.sources import CopySource, FoundRollout
from rollout_control_server.errors import LedgerCorruptError, LedgerRefusedError, LedgerUnavailableError
from rollout_control_server.ledger.checked_rows import (
    CheckedCommit,
    check_commit,
    check_failure,
    decode_commit,
    decode_failure,
)
from rollout_control_server.ledger.results import LedgerRow, RolloutEntry, RolloutExport
from rollout_control_server.ledger.staging_chains import StagingChains
from rollout_control_server.records import CallFailure, CallRecord, CaptureCommit, ParentLookup

__all__ = ["ExportFile", "write_export_file"]

FORMAT: Final = {"format": "rollout-control-export", "version": 1}


class _Row(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A row: either `record`, with its chain and lookup, or `failure`."""

    recorded_at: float | None
    record: dict[str, Any] | None = None
    failure: CallFailure | None = None
    staging_chain: list[str] | None = None
    lookup: ParentLookup | None = None
    unserved: dict[str, Any] = {}


class _Rollout(msgspec.Struct, forbid_unknown_fields=True):
    """A line: one rollout."""

    rollout_id: str
    retired_at: float | None
    rows: list[_Row]


class _End(msgspec.Struct, forbid_unknown_fields=True):
    """The last line, which a file that was cut off has not."""

    rollouts: int
    rows: int


class ExportFile:
    """An export file as the source of a copy.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    async def scan(self) -> AsyncIterator[FoundRollout]:
        """As `CopySource.scan`.

        Raises:
            LedgerCorruptError: The file is damaged or was cut off.
            LedgerRefusedError: It is no export file, or one of a newer version.
            LedgerUnavailableError: It cannot be read.
        """
        before = ""
        read = _End(0, 0)
        ended = False
        for number, line in self._lines():
            with self._damage_at(number):
                if ended:
                    raise ValueError("something follows the last line")
                if not line.startswith(b'{"rollout_id"'):
                    ended = msgspec.json.decode(line, type=_End) == read
                    if not ended:
                        raise ValueError("the file's last line counts other rollouts or rows")
                    continue
                export = _decode(line)
                if export.rollout_id <= before:
                    raise ValueError("the rollouts are not in the order of their ids")
            before = export.rollout_id
            read = _End(read.rollouts + 1, read.rows + len(export.rows))
            yield FoundRollout(_entry_of(export), _returning(export))
        if not ended:
            raise LedgerCorruptError(f"{self.name} was cut off: its last line is missing")

    def check_format(self) -> None:
        """Returns if the file begins as an export file of the version that this program reads.

        Raises:
            LedgerError: As `scan`.
        """
        next(self._lines(), None)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yields the lines after the first, which must name the format."""
        try:
            with _open(self.path, "rb") as file:
                try:
                    found = msgspec.json.decode(file.readline())
                except msgspec.DecodeError:
                    found = None
                if not isinstance(found, dict) or found.get("format") != FORMAT["format"]:
                    raise LedgerRefusedError(f"{self.name} is no export file of rollout-control")
                if found != FORMAT:
                    raise LedgerRefusedError(
                        f"{self.name} is an export file of version {found.get('version')!r:.80}; this program reads "
                        f"version {FORMAT['version']}"
                    )
                yield from enumerate(file, 2)
        except EOFError as error:
            raise LedgerCorruptError(f"{self.name} was cut off: {error}") from error
        except gzip.BadGzipFile as error:
            raise LedgerCorruptError(f"{self.name} is no gzip file, or a damaged one: {error}") from error
        except OSError as error:
            raise LedgerUnavailableError(f"cannot read {self.name}: {error.strerror or error}") from error

    @contextlib.contextmanager
    def _damage_at(self, line: int) -> Iterator[None]:
        try:
            yield
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise LedgerCorruptError(f"line {line} of {self.name} is damaged: {error}") from error


async def write_export_file(source: CopySource, path: Path, advance: Callable[[int], None]) -> tuple[int, int, int]:
    """Writes all rollouts of a source to a new file, which appears under its name when it is whole.

    Each rollout is as of one moment, and the file as a whole is not, where the source is in use.

    Args:
        source: Where the rollouts are.
        path: The file; one that is there is replaced.
        advance: Called with 1 for each rollout.

    Returns:
        How many live rollouts, rows and fences it has.

    Raises:
        LedgerUnavailableError: The file cannot be written. What was under its name before is untouched.
        LedgerError: The source cannot be read.
    """
    live = rows = fences = 0
    # Of the same suffix, which decides about the compression.
    partial = path.with_name(f".partial-{path.name}")
    try:
        with _open(partial, "wb") as file:
            file.write(msgspec.json.encode(FORMAT) + b"\n")
            async for found in source.scan():
                export = await found.export()
                advance(1)
                if export.rows or export.retired_at is not None:
                    live, rows = live + bool(export.rows), rows + len(export.rows)
                    fences += export.retired_at is not None
                    file.write(_encode(export) + b"\n")
            file.write(msgspec.json.encode(_End(live + fences, rows)) + b"\n")
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    except OSError as error:
        raise LedgerUnavailableError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return live, rows, fences


def _open(path: Path, mode: str) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(path, mode) if path.name.endswith(".gz") else path.open(mode))


def _encode(export: RolloutExport) -> bytes:
    rows = []
    chains: dict[str, tuple[str, ...]] = {}
    for row, recorded_at in export.rows:
        if isinstance(row, CheckedCommit):
            commit = decode_commit(row)
            usual = (*chains.get(commit.record.parent_call_id or "", ()), commit.record.staging_key)
            chains[commit.record.model_call_id] = commit.staging_chain
            rows.append(
                _Row(
                    recorded_at,
                    record=msgspec.to_builtins(commit.record) | commit.further_fields,
                    staging_chain=None if commit.staging_chain == usual else list(commit.staging_chain),
                    lookup=commit.lookup,
                    unserved=commit.unserved_fields,
                )
            )
        else:
            failure, unserved = decode_failure(row)
            rows.append(_Row(recorded_at, failure=failure, unserved=unserved))
    return msgspec.json.encode(_Rollout(export.rollout_id, export.retired_at, rows))


def _decode(line: bytes) -> RolloutExport:
    rollout = msgspec.json.decode(line, type=_Rollout)
    rows = []
    checked = StagingChains()
    chains: dict[str, tuple[str, ...]] = {}
    for row in rollout.rows:
        if row.record is not None:
            record = msgspec.convert(row.record, CallRecord)
            chain = (*chains.get(record.parent_call_id or "", ()), record.staging_key)
            if row.staging_chain is not None:
                chain = tuple(row.staging_chain)
            chains[record.model_call_id] = chain
            further = {name: value for name, value in row.record.items() if name not in CallRecord.__struct_fields__}
            commit = CaptureCommit(rollout.rollout_id, record, chain, row.lookup, further, row.unserved)
            rows.append(LedgerRow(check_commit(commit, checked), row.recorded_at))
        elif row.failure is not None:
            failure = check_failure(rollout.rollout_id, row.failure.model_call_id, row.failure.reason, row.unserved)
            rows.append(LedgerRow(failure, row.recorded_at))
        else:
            raise ValueError("a row has neither a record nor a failure")
    return RolloutExport(rollout.rollout_id, rollout.retired_at, rows)


def _entry_of(export: RolloutExport) -> RolloutEntry:
    """Returns the listing's entry of a rollout in a file, which has no time of its last change."""
    if export.retired_at is not None:
        return RolloutEntry(export.rollout_id, "retired", None, None, None, None, export.retired_at, None)
    calls = sum(isinstance(row.row, CheckedCommit) for row in export.rows)
    times = [row.recorded_at for row in export.rows] or [None]
    failures = len(export.rows) - calls
    return RolloutEntry(export.rollout_id, "live", calls, failures, times[0], times[-1], None, None)


def _returning(export: RolloutExport) -> Callable[[], Awaitable[RolloutExport]]:
    async def read() -> RolloutExport:
        return export

    return read
