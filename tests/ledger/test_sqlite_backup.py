"""The ways of backing up that docs/sqlite.md names, each done by a process that has nothing of ours open."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rollout_control_server.errors import LedgerCorruptError, LedgerUnavailableError
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.conformance.steps import record_all
from rollout_control_server.samples import sample_commit, sample_conversation

PAGE = Path(__file__).parents[2].joinpath("docs/sqlite.md").read_text()
SCRIPTS = dict(re.findall(r"```python\n# (\w+)\.py.*?\n(.*?)```", PAGE, flags=re.DOTALL))

# What a program does that has SQLite, and knows no checksums.
PLAIN = """
import sqlite3, sys
source = sqlite3.connect(sys.argv[1], isolation_level=None)
"""
PLAIN_BACKUP = PLAIN + "source.backup(sqlite3.connect(sys.argv[2]))"
PLAIN_VACUUM = PLAIN + "source.execute('VACUUM INTO ?', (sys.argv[2],))"
PLAIN_DUMP = (
    PLAIN
    + r"""
copy = sqlite3.connect(sys.argv[2])
copy.executescript("\n".join(source.iterdump()))
for name in ("application_id", "user_version"):
    copy.execute(f"PRAGMA {name} = {source.execute(f'PRAGMA {name}').fetchone()[0]}")
copy.close()
"""
)
PLAIN_LOOK = PLAIN + "print(source.execute('SELECT count(*) FROM rollout').fetchone()[0])"
READ_ONLY_LOOK = PLAIN_LOOK.replace("sys.argv[1], ", "f'file:{sys.argv[1]}?mode=ro', uri=True, ")
PLAIN_MODE = PLAIN + "source.execute('PRAGMA journal_mode = DELETE')"
CHECKSUM_MODE = """
import apsw, apsw.sqlite_extra, sys
apsw.sqlite_extra.load(apsw.Connection(""), "cksumvfs")
apsw.Connection(sys.argv[1]).pragma("journal_mode", "delete")
"""
ROLLOUTS = 900
"""Several megabytes of rows: more than SQLite's cache of 2 MB has room for."""


def run(program: str, *paths: Path) -> str:
    return subprocess.check_output([sys.executable, "-c", program, *paths], text=True).strip()


# In a process of its own, because the test's process may not open and close the files of a ledger that it has open.
KILLED = """
import asyncio, os, signal, sys
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.samples import sample_conversation
async def record():
    ledger = SqliteLedger(sys.argv[1])
    async def record_rollout(rollout_id):
        for commit in sample_conversation(rollout_id, 5):
            await ledger.record(commit)
    await asyncio.gather(*(record_rollout(f"r{index}") for index in range(int(sys.argv[2]))))
    print("recorded", flush=True)
    sys.stdin.readline()
    if sys.argv[3] == "close":
        await ledger.aclose()
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(record())
"""


@contextmanager
def ledger_in_use(path: Path, end: str) -> Iterator[None]:
    """A process that has recorded all, holds the ledger open, and at the end closes it or not, and is killed."""
    command = [sys.executable, "-c", KILLED, path, str(ROLLOUTS), end]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "recorded\n"
        yield
        process.communicate("end\n")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy.sqlite"


def check_whole(path: Path) -> None:
    """Sees that the ledger has everything, takes a write, and is opened again."""

    async def check() -> None:
        async with SqliteLedger(path, create=False) as ledger:
            found = await ledger.verify()
            assert (found.damages, found.rollouts, found.rows) == ([], ROLLOUTS, ROLLOUTS * 5)
            await record_all(ledger, sample_conversation("r7", 6))
            await ledger.delete(["r8"])
        async with SqliteLedger(path, create=False) as ledger:
            found = await ledger.verify()
            assert (found.damages, found.rollouts, found.rows) == ([], ROLLOUTS - 1, ROLLOUTS * 5 - 4)

    asyncio.run(check())


def test_the_script_copies_a_ledger_in_use(path: Path, copy: Path) -> None:
    with ledger_in_use(path, "close"):
        run(SCRIPTS["backup"], path, copy)
    check_whole(copy)
    check_whole(path)


def test_a_closed_file_is_copied(path: Path, copy: Path) -> None:
    with ledger_in_use(path, "close"):
        pass
    assert not path.with_name("ledger.sqlite-wal").exists()
    shutil.copy(path, copy)
    check_whole(copy)


def test_all_three_files_of_a_killed_process_are_copied(path: Path, copy: Path) -> None:
    with ledger_in_use(path, "kill"):
        pass
    for end in ("", "-wal", "-shm"):
        shutil.copy(f"{path}{end}", f"{copy}{end}")
    check_whole(copy)


@pytest.mark.parametrize("program", [PLAIN_BACKUP, PLAIN_VACUUM, PLAIN_DUMP], ids=["backup", "vacuum", "dump"])
def test_a_copy_without_checksums_is_refused_until_it_is_mended(path: Path, copy: Path, program: str) -> None:
    with ledger_in_use(path, "close"):
        run(program, path, copy)
        for _ in range(2):
            with pytest.raises(LedgerCorruptError, match=r"docs/sqlite\.md"):
                SqliteLedger(copy)
    mended = copy.with_name("mended.sqlite")
    assert run(SCRIPTS["mend"], copy, mended) == "ok"
    check_whole(mended)
    check_whole(path)


@pytest.mark.parametrize("program", [PLAIN_LOOK, PLAIN_MODE], ids=["look", "mode"])
def test_a_file_that_a_program_without_checksums_has_closed_last_is_mended(
    path: Path, copy: Path, program: str
) -> None:
    with ledger_in_use(path, "kill"):
        pass
    run(program, path)
    for _ in range(2):
        with pytest.raises(LedgerCorruptError, match=r"docs/sqlite\.md"):
            SqliteLedger(path)
    assert run(SCRIPTS["mend"], path, copy) == "ok"
    check_whole(copy)


def test_a_look_that_only_reads_leaves_a_killed_ledger_alone(path: Path) -> None:
    with ledger_in_use(path, "kill"):
        assert run(READ_ONLY_LOOK, path) == str(ROLLOUTS)
    assert run(READ_ONLY_LOOK, path) == str(ROLLOUTS)
    check_whole(path)


def test_a_file_in_another_journal_mode_is_put_back_into_wal_mode(path: Path) -> None:
    with ledger_in_use(path, "close"):
        pass
    run(CHECKSUM_MODE, path)
    assert run(READ_ONLY_LOOK.replace("SELECT count(*) FROM rollout", "PRAGMA journal_mode"), path) == "delete"
    check_whole(path)
    assert run(READ_ONLY_LOOK.replace("SELECT count(*) FROM rollout", "PRAGMA journal_mode"), path) == "wal"


def test_a_file_in_use_in_another_journal_mode_is_told_what_to_do(path: Path) -> None:
    with ledger_in_use(path, "close"):
        pass
    program = CHECKSUM_MODE + (
        "connection = apsw.Connection(sys.argv[1])\n"
        "connection.execute('BEGIN; SELECT count(*) FROM rollout')\n"
        "print('reading', flush=True)\nsys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", program, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        with pytest.raises(LedgerUnavailableError, match=r"in SQLite's delete mode and in use.*close the other"):
            SqliteLedger(path)
        process.communicate("end\n")
    check_whole(path)


def test_a_backup_takes_the_place_of_a_ledger(path: Path, copy: Path) -> None:
    with ledger_in_use(path, "close"):
        run(SCRIPTS["backup"], path, copy)

    async def go_on() -> None:
        async with SqliteLedger(path) as ledger:
            await record_all(ledger, [sample_commit("later", "c")])

    asyncio.run(go_on())
    shutil.copy(copy, path)
    check_whole(path)
