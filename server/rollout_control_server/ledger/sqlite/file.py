"""Which file a handle has open, and whether that file can hold a ledger."""

import os
import re
from pathlib import Path
from typing import Final

from rollout_control_server.errors import LedgerRefusedError, LedgerUnavailableError

__all__ = ["LedgerFile", "refuse_unknown_file_system"]

_KNOWN_FILE_SYSTEMS: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay"}
)
"""Where processes of one machine share the memory of a WAL, and what is synced stays.

The rest is refused, because nobody can list what is not fit: a network file system can have any name, and every FUSE
file system is a program of its own. On macOS and Windows, where this is not asked, APFS and NTFS are fit.
"""


class LedgerFile:
    """The file that a handle has open, with its WAL and shared memory, known by device and inode.

    SQLite goes on acknowledging into a file that was unlinked or renamed, and so into nothing.

    Args:
        path: The file, whose WAL is open.
        found: What the path named before it was opened.

    Raises:
        LedgerUnavailableError: The file was replaced meanwhile.
    """

    def __init__(self, path: Path, found: os.stat_result) -> None:
        self.path: Final = path
        # SQLite keeps the other two beside the file itself, where the path is a symbolic link.
        self.wal: Final = f"{path.resolve()}-wal"
        self._paths: Final = (str(path), self.wal, f"{path.resolve()}-shm")
        self._identity: Final = self._stat()
        if self._identity[0] != (found.st_dev, found.st_ino):
            raise LedgerUnavailableError(f"{path} was replaced while it was opened: try again")

    def check(self) -> None:
        """Returns if the paths still name the files that this handle has open.

        Raises:
            LedgerUnavailableError: They don't. They may again, when the files are moved back.
        """
        try:
            same = self._stat() == self._identity
        except OSError:
            same = False
        if not same:
            raise LedgerUnavailableError(
                f"{self.path} or its -wal or -shm is no longer the file that this handle opened: it was moved, removed "
                "or replaced. Move all three back and the handle goes on; if they were deleted, the rows that they "
                "held are lost, and only a new handle starts a new ledger"
            )

    def _stat(self) -> list[tuple[int, int]]:
        return [(found.st_dev, found.st_ino) for found in map(os.stat, self._paths)]


def refuse_unknown_file_system(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
    """Refuses a file on a file system that is not known to be fit for a WAL.

    Only Linux says which one it is (proc(5), mountinfo); elsewhere this refuses nothing.

    Raises:
        LedgerRefusedError: The file would lie on another file system.
    """
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    kind = _kind_of_file_system(path.resolve().parent, lines)
    if kind is not None and kind not in _KNOWN_FILE_SYSTEMS:
        raise LedgerRefusedError(
            f"{path} would lie on a file system of kind {kind!r}, which is not known to keep SQLite's WAL whole: "
            "put the ledger on a local disk (ext4, xfs, btrfs, zfs), or use PostgresLedger (postgresql://...). If you "
            "know that processes share memory-mapped files on it, and that it keeps what it has synced, open the "
            "ledger as sqlite:///FILE?any_file_system=yes"
        )


def _kind_of_file_system(directory: Path, mountinfo: list[str]) -> str | None:
    """Returns the kind of file system of the mount that a directory is in, or None if no line tells."""
    kind = None
    longest = -1
    for line in mountinfo:
        mount, separator, source = line.partition(" - ")
        fields = mount.split(" ")
        if not separator or len(fields) < 5:
            continue
        mount_point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        # Of mounts on one point, the last hides the others.
        if len(mount_point) >= longest and directory.is_relative_to(mount_point):
            kind, longest = source.split(" ")[0], len(mount_point)
    return kind
