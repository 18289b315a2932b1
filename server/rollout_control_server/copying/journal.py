"""What a copy notes, so that it can be run again: which rollouts it has copied, and as of which state."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from rollout_control_server.errors import LedgerRefusedError, LedgerUnavailableError
from rollout_control_server.ledger.results import RolloutEntry

__all__ = ["CopyJournal"]

_REMOVED: Final = "removed"


class CopyJournal:
    """A file that is rewritten with each pass of a copy, in the order of the rollout ids, and read beside the source.

    A line is a rollout's id and the source's entry of it when it was copied; null while that is under way. A copy that
    is killed leaves the lines of the unfinished pass in a second file, and the next pass begins by joining the two. So
    a rollout that a copy may have written to the destination is always known as this copy's.

    Args:
        path: The file. It is made with the first pass.
        source: The source's name.
        destination: The destination's name.

    Raises:
        LedgerRefusedError: The file is no journal, or is one of a copy between others.
    """

    def __init__(self, path: Path, source: str, destination: str) -> None:
        self._path = path
        self._header = msgspec.json.encode({"source": source, "destination": destination}) + b"\n"
        self._new: IO[bytes] | None = None
        if path.exists():
            with path.open("rb") as file:
                if file.readline() != self._header:
                    raise LedgerRefusedError(
                        f"{path} is not the journal of a copy from {source} to {destination}; name another --journal"
                    )

    @property
    def _unfinished(self) -> Path:
        return self._path.with_name(f"{self._path.name}.pass")

    def begin_pass(self) -> Iterator[tuple[str, RolloutEntry | None]]:
        """Returns what the passes before have copied, in the order of the ids, and begins the file of this pass.

        Raises:
            LedgerUnavailableError: The journal cannot be written.
        """
        try:
            if self._unfinished.exists():
                self._join_unfinished()
            self._new = self._unfinished.open("wb")
            self._new.write(self._header)
        except OSError as error:
            raise _unusable(self._path, error) from error
        return self.lines()

    def lines(self) -> Iterator[tuple[str, RolloutEntry | None]]:
        """Returns what the passes before the one that is under way have copied, in the order of the ids."""
        return ((rollout_id, entry) for rollout_id, entry, _ in _read(self._path))

    def copying(self, rollout_ids: Iterable[str]) -> None:
        """Notes that these rollouts are about to be written to the destination; returns when that is durable."""
        self._write((rollout_id, None) for rollout_id in rollout_ids)
        if self._new is not None:
            os.fsync(self._new.fileno())

    def settle(self, outcomes: Iterable[tuple[str, RolloutEntry | None]]) -> None:
        """Notes of rollouts, in the order of their ids, as of which entry the destination has them.

        None where the destination has a rollout no more, because the source has not.
        """
        self._write((rollout_id, _REMOVED if entry is None else entry) for rollout_id, entry in outcomes)

    def end_pass(self) -> None:
        """Puts the file of this pass in the place of the one before."""
        if self._new is not None:
            self._new.close()
            self._new = None
        try:
            self._join_unfinished(with_previous=False)
        except OSError as error:
            raise _unusable(self._path, error) from error

    def close(self) -> None:
        """Leaves what an unfinished pass has noted to the next."""
        if self._new is not None:
            self._new.close()
            self._new = None

    def _write(self, lines: Iterable[tuple[str, Any]]) -> None:
        if self._new is None:
            raise ValueError("no pass has begun")
        try:
            self._new.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
            self._new.flush()
        except OSError as error:
            raise _unusable(self._path, error) from error

    def _join_unfinished(self, *, with_previous: bool = True) -> None:
        """Replaces the journal by the lines of the newer file, and what the older has after the last of them."""
        joined = self._path.with_name(f"{self._path.name}.joined")
        last = ""
        with joined.open("wb") as file:
            file.write(self._header)
            for line in _settled(self._unfinished):
                file.write(msgspec.json.encode(line) + b"\n")
                last = max(last, line[0])
            if with_previous:
                file.writelines(msgspec.json.encode(line) + b"\n" for line in self.lines() if line[0] > last)
            file.flush()
            os.fsync(file.fileno())
        joined.replace(self._path)
        self._unfinished.unlink()


def _read(path: Path) -> Iterator[tuple[str, RolloutEntry | None, bool]]:
    """Yields each line of a file, up to one that was cut off, and whether it says that the rollout was removed."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.readline()
        for line in file:
            try:
                rollout_id, entry = msgspec.json.decode(line)
            except (msgspec.DecodeError, ValueError):
                return
            yield rollout_id, RolloutEntry(*entry) if isinstance(entry, list) else None, entry == _REMOVED


def _settled(path: Path) -> Iterator[tuple[str, RolloutEntry | None]]:
    """Yields each rollout of a pass once, in the order of the ids: as it was copied, or null where that is not known.

    Each batch notes its rollouts before they are written and afterwards. Of the last batch, the second may be missing.
    """
    under_way: dict[str, None] = {}
    for rollout_id, entry, removed in _read(path):
        if entry is None and not removed:
            under_way[rollout_id] = None
            continue
        under_way.pop(rollout_id, None)
        if not removed:
            yield rollout_id, entry
    yield from under_way.items()


def _unusable(path: Path, error: OSError) -> LedgerUnavailableError:
    return LedgerUnavailableError(f"cannot write the copy's journal {path}: {error.strerror or error}")
