"""Noticing that a WAL has come back from a crash with fewer commits than were acknowledged.

SQLite takes the first damaged frame of a WAL for the end of what was written, and drops the commits behind it without
an error. But the processes that wrote them have left their shared memory (`-shm`), whose header says how many frames
were committed. It is written after a commit is synced, so it never says too many; after a power cut it may be gone, or
say too few. SQLite's WAL format (https://sqlite.org/walformat.html) describes both headers.
"""

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from rollout_control_server.ledger.sqlite.connections import connect

__all__ = ["connect_and_recover"]

logger = logging.getLogger("rollout_control_server.ledger")

_SHM_HEADER_BYTES: Final = 48
_WAL_HEADER_BYTES: Final = 32
_opening: Final = threading.Lock()


class _Committed(NamedTuple):
    """How many frames of which WAL were committed.

    Attributes:
        frames: How many.
        salt: The second salt of the WAL's header, random for each beginning of the WAL.
    """

    frames: int
    salt: int


def connect_and_recover(path: Path) -> apsw.Connection:
    """Opens a connection, as `connect` does, and logs an error if SQLite recovers less of the WAL than was committed.

    Raises:
        LedgerRefusedError: This build of APSW has no checksum extension.
    """
    with _opening:
        committed = _committed_frames(path)
        connection = connect(path)
        if committed is None:
            return connection
        try:
            frames, _ = connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)
        except (apsw.BusyError, apsw.ReadOnlyError):
            return connection
        except BaseException:
            connection.close()
            raise
    if frames < committed.frames and _has_salt(path, committed.salt):
        logger.error(
            "the WAL of ledger %s is damaged: of %d frames that were committed, SQLite has read %d, so the writes that "
            "were acknowledged last are lost. Run rollout-control verify, and see docs/sqlite.md",
            path,
            committed.frames,
            max(frames, 0),
        )
    return connection


def _committed_frames(path: Path) -> _Committed | None:
    """Returns what the shared memory says, if there is one that nobody in this process has open.

    Closing a file releases the locks that this process holds on it by other connections; where there are some, SQLite
    recovers nothing.
    """
    if os.name != "posix" or any(Path(each.filename) == path.resolve() for each in apsw.connections()):
        return None
    try:
        with Path(f"{path.resolve()}-shm").open("rb") as file:
            header, again = file.read(_SHM_HEADER_BYTES), file.read(_SHM_HEADER_BYTES)
    except OSError:
        return None
    # Twice, so that a header that is being written is not taken for one.
    if header != again or len(header) < _SHM_HEADER_BYTES:
        return None
    frames = int.from_bytes(header[16:20], sys.byteorder)
    return _Committed(frames, int.from_bytes(header[36:40])) if frames else None


def _has_salt(path: Path, salt: int) -> bool:
    """Tells whether the WAL is still that of the salt: begun anew, it has another, which differs in half of its bits.

    The one bit that may be damaged is allowed for.
    """
    try:
        with Path(f"{path.resolve()}-wal").open("rb") as file:
            header = file.read(_WAL_HEADER_BYTES)
    except OSError:
        return False
    return len(header) == _WAL_HEADER_BYTES and (int.from_bytes(header[20:24]) ^ salt).bit_count() <= 1
