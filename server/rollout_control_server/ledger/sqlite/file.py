"""Which file a handle has open, and whether that file can hold a ledger."""

import os
import re
from pathlib import Path
from typing import Final

from rollout_control_server.errors import LedgerRefusedError, LedgerUnavailableError

__all__ = ["LedgerFile", "refuse_network_file_system"]

_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs",
        "fuse.gcsfuse", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs",
        "pvfs2", "smb2", "smb3", "smbfs", "wekafs",
    }
)  # fmt: skip


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


def refuse_network_file_system(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
    """Refuses a file on a file system where the WAL's shared memory is not shared by all its users.

    Only Linux says so (proc(5), mountinfo); elsewhere this refuses nothing.

    Raises:
        LedgerRefusedError: The file would lie on a network file system.
    """
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    kind = ""
    longest = -1
    directory = path.resolve().parent
    for line in lines:
        mount, _, source = line.partition(" - ")
        mount_point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount.split(" ")[4])
        # Of mounts on one point, the last hides the others.
        if len(mount_point) >= longest and directory.is_relative_to(mount_point):
            kind, longest = source.split(" ")[0], len(mount_point)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise LedgerRefusedError(
            f"{path} would lie on a network file system ({kind}), where SQLite's WAL gets corrupted: "
            "put the ledger on a local disk, or use PostgresLedger (postgresql://...)"
        )
