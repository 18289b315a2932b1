"""What SqliteLedger does when its storage fails, each fault produced for real.

Faults that root does not meet, and those of a whole process, are met by a child process: `run_child` runs the body of
an async function in another interpreter, as another user where this one is root.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from rollout_control_server.errors import LedgerCorruptError, LedgerRefusedError, LedgerUnavailableError
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.conformance.steps import call_ids, record_all
from rollout_control_server.ledger.sqlite.connections import connect
from rollout_control_server.samples import sample_commit, sample_conversation

PAGE_BYTES = 8192

CHILD_PRELUDE = """
import asyncio, errno, logging, os, resource, signal, sys
from pathlib import Path
from rollout_control_server.errors import *
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.conformance.steps import call_ids
from rollout_control_server.ledger.sqlite.connections import register_checksums
from rollout_control_server.samples import sample_commit

async def fails(awaitable):
    try:
        await awaitable
    except LedgerUnavailableError as error:
        return str(error)
    raise AssertionError("no error")

def drop_root():
    # Not before everything is imported: nobody else may be able to read this interpreter's files.
    register_checksums()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

async def main(*arguments):
"""


def run_child(body: str, *arguments: str, prefix: tuple[str, ...] = ()) -> None:
    """Runs the body of `async def main(*arguments)`."""
    program = CHILD_PRELUDE + textwrap.indent(textwrap.dedent(body), "    ")
    program += "\nasyncio.run(main(*sys.argv[1:]))\n"
    done = subprocess.run(
        [*prefix, sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that another user can reach and write, which pytest's own is not."""
    directory = Path(tempfile.mkdtemp(prefix="rollout-control-", dir="/tmp"))
    directory.chmod(0o777)
    yield directory
    directory.chmod(0o777)
    shutil.rmtree(directory)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Has another process hold the write lock."""
    program = (
        "import apsw, sys; connection = apsw.Connection(sys.argv[1]); "
        "connection.execute('BEGIN IMMEDIATE'); print('locked', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield


async def test_a_write_waits_for_the_write_lock_and_then_fails_unchanged(path: Path) -> None:
    async with SqliteLedger(path, busy_timeout_s=0.3) as ledger:
        await record_all(ledger, [sample_commit("r", "before")])
        with locked(path):
            writes = [ledger.record(sample_commit("r", f"c{index}")) for index in range(3)]
            outcomes = await asyncio.gather(*writes, ledger.retire(["r"]), ledger.check_ready(), return_exceptions=True)
            assert all(isinstance(outcome, LedgerUnavailableError) for outcome in outcomes)
            # Reads don't wait, and see what there is.
            assert await call_ids(ledger, "r") == ["before"]
        await record_all(ledger, [sample_commit("r", "after")])
        assert await call_ids(ledger, "r") == ["before", "after"]


async def test_a_write_goes_on_when_the_lock_is_released_in_time(path: Path) -> None:
    async with SqliteLedger(path) as ledger:
        with locked(path):
            write = asyncio.ensure_future(ledger.record(sample_commit("r", "c")))
            await asyncio.sleep(0.05)
            assert not write.done()
        assert await write is True


def test_a_ledger_is_made_in_no_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LedgerRefusedError, match="there is no directory"):
        SqliteLedger(tmp_path / "missing" / "ledger.sqlite")
    with pytest.raises(LedgerRefusedError, match="is a directory"):
        SqliteLedger(tmp_path)
    with pytest.raises(LedgerRefusedError, match="there is no ledger"):
        SqliteLedger(tmp_path / "ledger.sqlite", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("leftover", ["ledger.sqlite-wal", "ledger.sqlite-shm"])
def test_no_ledger_is_made_beside_the_wal_of_one_that_is_gone(tmp_path: Path, leftover: str) -> None:
    """SQLite would take the old WAL's pages for the new file's."""
    (tmp_path / leftover).write_bytes(b"pages of another file")
    with pytest.raises(LedgerRefusedError, match=f"{leftover} is there"):
        SqliteLedger(tmp_path / "ledger.sqlite")
    assert [file.name for file in tmp_path.iterdir()] == [leftover]
    (tmp_path / leftover).unlink()
    SqliteLedger(tmp_path / "ledger.sqlite")


@pytest.mark.parametrize("how", ["removed", "moved", "replaced", "directory removed", "wal removed", "shm removed"])
async def test_a_handle_acknowledges_only_into_the_file_that_it_opened(tmp_path: Path, how: str) -> None:
    """Neither writes nor reads are answered, no new file is made, and the handle goes on when the file is back."""
    directory = tmp_path / "ledgers"
    directory.mkdir()
    path = directory / "ledger.sqlite"
    async with SqliteLedger(path) as ledger:
        await record_all(ledger, [sample_commit("r", "c1")])
        aside = tmp_path / "aside"
        aside.mkdir()
        names = {"wal removed": "*-wal", "shm removed": "*-shm"}.get(how, "*")
        moved = [Path(shutil.move(file, aside / file.name)) for file in sorted(directory.glob(names))]
        replacement: SqliteLedger | None = None
        if how == "replaced":
            replacement = SqliteLedger(path)
            await record_all(replacement, [sample_commit("r", "other")])
        elif how == "directory removed":
            directory.rmdir()
        for attempt in (
            ledger.record(sample_commit("r", "c2")),
            ledger.record_failure("r", "c3", "reason"),
            ledger.retire(["r"]),
            ledger.delete(["r"]),
            ledger.manifest("r"),
            ledger.check_ready(),
        ):
            with pytest.raises(LedgerUnavailableError, match="no longer the file that this handle opened"):
                await attempt
        if replacement is not None:
            assert await call_ids(replacement, "r") == ["other"]
            await replacement.aclose()
            shutil.rmtree(directory)
        directory.mkdir(exist_ok=True)
        assert not path.exists() or how in ("wal removed", "shm removed")
        for file in moved:
            shutil.move(file, directory / file.name)
        await record_all(ledger, [sample_commit("r", "c4")])
        assert await call_ids(ledger, "r") == ["c1", "c4"]


async def test_closing_a_handle_spares_the_file_that_replaced_its_own(path: Path) -> None:
    """SQLite removes a WAL by its name when the last connection closes."""
    old = SqliteLedger(path)
    await record_all(old, [sample_commit("r", "old")])
    for file in path.parent.glob("ledger.sqlite*"):
        file.unlink()
    async with SqliteLedger(path) as new:
        await record_all(new, [sample_commit("r", "new")])
        await old.aclose()
        await record_all(new, [sample_commit("r", "newer")])
    async with SqliteLedger(path) as again:
        assert await call_ids(again, "r") == ["new", "newer"]


async def test_a_full_disk_loses_nothing_and_service_resumes(path: Path) -> None:
    """RLIMIT_FSIZE fails writes beyond a file's size with EFBIG, as a full disk does with ENOSPC, also for root."""
    run_child(
        """
        [path] = arguments
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ledger = SqliteLedger(path)
        kept = []
        async def fill():
            for index in range(100_000):
                await ledger.record(sample_commit("r", f"c{index}"))
                kept.append(f"c{index}")
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
        await fails(fill())
        await fails(ledger.retire(["r"]))
        assert await call_ids(ledger, "r") == kept and len(kept) > 10
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert await ledger.record(sample_commit("r", "after"))
        assert await call_ids(ledger, "r") == [*kept, "after"]
        await ledger.aclose()
        async with SqliteLedger(path) as again:
            assert await call_ids(again, "r") == [*kept, "after"]
        """,
        str(path),
    )


async def test_a_disk_that_fills_up_in_a_checkpoint_loses_nothing(path: Path) -> None:
    """The WAL has room up to where the checkpoint is due, and the database has not."""
    run_child(
        """
        [path] = arguments
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ledger = SqliteLedger(path)
        kept = []
        async def record(index):
            commit = sample_commit(f"r{index % 5}", f"c{index}" + "x" * 200_000)
            await ledger.record(commit)
            kept.append(commit.record.model_call_id)
        warnings = []
        logging.getLogger("rollout_control_server.ledger").warning = lambda *args, **_: warnings.append(args)
        for index in range(110):
            await record(index)
        size = os.stat(path).st_size
        assert size > 20_000_000 and not warnings  # checkpoints were made
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            for index in range(110, 400):
                await record(index)
        except LedgerUnavailableError:
            pass
        else:
            raise AssertionError("the disk was never full")
        assert warnings  # the checkpoint met the fault before a commit did
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await record(1000)
        shown = [call for index in range(5) for call in await call_ids(ledger, f"r{index}")]
        assert sorted(shown) == sorted(kept)
        await ledger.aclose()
        async with SqliteLedger(path) as again:
            shown = [call for index in range(5) for call in await call_ids(again, f"r{index}")]
        assert sorted(shown) == sorted(kept)
        """,
        str(path),
    )


def can_mount() -> bool:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_small_file_system_that_is_full_and_one_that_is_read_only(tmp_path: Path) -> None:
    """On a tmpfs of 2 MB of its own, where this machine lets us mount one; elsewhere the other tests stand for it."""
    if not can_mount():
        pytest.skip("this machine lets us mount nothing; RLIMIT_FSIZE and a user without rights made the same faults")
    prefix = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=2m none {tmp_path} && exec "$0" "$@"')
    run_child(
        """
        [path] = arguments
        ledger = SqliteLedger(path)
        kept = []
        async def fill():
            for index in range(100_000):
                await ledger.record(sample_commit("r", f"c{index}"))
                kept.append(f"c{index}")
        async def read():
            return await call_ids(ledger, "r")
        assert "full" in await fails(fill())
        assert await read() == kept and len(kept) > 10
        assert os.system(f"mount -o remount,size=20m none {os.path.dirname(path)}") == 0
        assert await ledger.record(sample_commit("r", "after full"))
        # Files that are open for writing forbid the remount; so it is made anew over the same directory.
        await ledger.aclose()
        assert os.system(f"mount -o remount,ro none {os.path.dirname(path)}") == 0
        try:
            ledger = SqliteLedger(path)
        except LedgerUnavailableError:
            pass
        else:
            await fails(ledger.record(sample_commit("r", "read-only")))
            await ledger.aclose()
        assert os.system(f"mount -o remount,rw none {os.path.dirname(path)}") == 0
        ledger = SqliteLedger(path)
        assert await ledger.record(sample_commit("r", "after read-only"))
        assert await read() == [*kept, "after full", "after read-only"]
        await ledger.aclose()
        """,
        str(tmp_path / "ledger.sqlite"),
        prefix=prefix,
    )


def test_a_read_only_file_and_directory_are_unavailable_until_they_are_writable(open_directory: Path) -> None:
    """By a process without root: chmod stops no root."""
    run_child(
        """
        drop_root()
        [path] = arguments
        directory = Path(path).parent / "own"
        directory.mkdir()
        path = directory / "ledger.sqlite"
        async with SqliteLedger(path) as ledger:
            assert await ledger.record(sample_commit("r", "c1"))
        path.chmod(0o444)
        async with SqliteLedger(path) as ledger:
            assert await call_ids(ledger, "r") == ["c1"]
            assert "readonly" in await fails(ledger.record(sample_commit("r", "c2")))
            await fails(ledger.check_ready())
            # SQLite gives the files beside it the same mode.
            for file in directory.glob("ledger.sqlite*"):
                file.chmod(0o644)
            assert await ledger.record(sample_commit("r", "c2"))
            assert await call_ids(ledger, "r") == ["c1", "c2"]
        await SqliteLedger(path).aclose()  # the last to close, if it can write, removes the files beside
        assert [file.name for file in directory.iterdir()] == ["ledger.sqlite"]
        directory.chmod(0o555)
        for name in ("ledger.sqlite", "new.sqlite"):
            try:
                SqliteLedger(directory / name)
            except LedgerUnavailableError as error:
                assert name in str(error)
            else:
                raise AssertionError("no error")
        directory.chmod(0o755)
        async with SqliteLedger(path) as ledger:
            assert await ledger.record(sample_commit("r", "c3"))
            assert await call_ids(ledger, "r") == ["c1", "c2", "c3"]
        """,
        str(open_directory / "x"),
    )


async def test_a_corrupt_page_is_reported_as_corrupt(path: Path) -> None:
    """Never as an empty manifest; and rollouts whose pages are whole are served and recorded."""
    async with SqliteLedger(path) as ledger:
        for index in range(40):
            await record_all(ledger, sample_conversation(f"r{index}", 10))
    with closing(connect(path)) as connection:
        page = connection.execute("SELECT pageno FROM dbstat WHERE name = 'call' AND pagetype = 'leaf'").fetchall()
    with path.open("r+b") as file:
        file.seek((page[len(page) // 2][0] - 1) * PAGE_BYTES)
        file.write(b"\xff" * PAGE_BYTES)
    async with SqliteLedger(path) as ledger:
        outcomes = await asyncio.gather(*(call_ids(ledger, f"r{index}") for index in range(40)), return_exceptions=True)
        damaged = [outcome for outcome in outcomes if isinstance(outcome, LedgerCorruptError)]
        assert 1 <= len(damaged) <= 4
        assert all(len(outcome) == 10 for outcome in outcomes if not isinstance(outcome, BaseException))
        number = next(index for index, outcome in enumerate(outcomes) if isinstance(outcome, LedgerCorruptError))
        writes = [ledger.record(sample_commit(f"r{index}", "late")) for index in (number, 0, 39)]
        bad, *good = await asyncio.gather(*writes, return_exceptions=True)
        assert isinstance(bad, LedgerCorruptError)
        assert good == [True, True]


@pytest.mark.parametrize("damage", ["a page twice", "half a page"])
async def test_a_page_that_the_disk_mixed_up_is_reported_as_corrupt(path: Path, damage: str) -> None:
    """SQLite sees nothing wrong with a page that stands in another's place, nor with zeros within a row."""
    async with SqliteLedger(path) as ledger:
        await record_all(ledger, sample_conversation("r", 60))
    mix_up(path, damage)
    async with SqliteLedger(path) as ledger:
        with pytest.raises(LedgerCorruptError):
            await ledger.manifest("r")
        with pytest.raises(LedgerCorruptError):
            await ledger.manifests(["r"], 10**9)


def mix_up(path: Path, damage: str) -> None:
    with closing(connect(path)) as connection:
        leaves = "SELECT pageno FROM dbstat WHERE name = 'call' AND pagetype = 'leaf' ORDER BY pageno"
        pages = [page for (page,) in connection.execute(leaves)]
    content = bytearray(path.read_bytes())
    start = (pages[5] - 1) * PAGE_BYTES
    if damage == "a page twice":
        content[start : start + PAGE_BYTES] = content[(pages[4] - 1) * PAGE_BYTES : pages[4] * PAGE_BYTES]
    else:
        content[start + PAGE_BYTES // 2 : start + PAGE_BYTES] = bytes(PAGE_BYTES // 2)
    path.write_bytes(content)
