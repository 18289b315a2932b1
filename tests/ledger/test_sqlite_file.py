"""What SqliteLedger's file is: how one is made, known, refused, migrated, purged, checkpointed and left by a fork."""

import asyncio
import gc
import multiprocessing
import os
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import apsw
import pytest
from rollout_control_server.errors import LedgerConflictError, LedgerRefusedError, LedgerUnavailableError
from rollout_control_server.ledger import SqliteLedger, open_ledger
from rollout_control_server.ledger.conformance.steps import assert_empty, call_ids, record_all
from rollout_control_server.ledger.sqlite.connections import connect
from rollout_control_server.ledger.sqlite.file import refuse_unknown_file_system
from rollout_control_server.samples import changed, sample_commit, sample_conversation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def rows(path: Path, statement: str) -> list[tuple[object, ...]]:
    """Looks into the file, or changes it as a program does that knows its checksums."""
    with closing(connect(path)) as connection:
        return connection.execute(statement).fetchall()


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def size(path: Path) -> int:
    return path.stat().st_size


# Opening


async def test_a_url_names_a_relative_or_an_absolute_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, name in ((f"sqlite:///{tmp_path}/a.sqlite", "a.sqlite"), ("sqlite:///b.sqlite", "b.sqlite")):
        async with open_ledger(url) as ledger:
            assert isinstance(ledger, SqliteLedger)
            assert (tmp_path / name).exists()
    async with open_ledger("sqlite:///with%20space%25%3F%23.sqlite") as ledger:
        await record_all(ledger, [sample_commit("r", "c")])
        assert (tmp_path / "with space%?#.sqlite").exists()
    for url in ("sqlite://", "sqlite:///", "sqlite:////", "sqlite:ledger", "sqlite://host/ledger", "sqlite:///a?b=c"):
        with pytest.raises(ValueError, match="sqlite:///"):
            open_ledger(url)
    with pytest.raises(ValueError, match="no options but any_file_system=yes"):
        open_ledger("sqlite:///a?busy_timeout_s=9")


async def test_the_file_says_what_it_is(path: Path) -> None:
    await SqliteLedger(path).aclose()
    assert names(path.parent) == ["ledger.sqlite"]
    assert rows(path, "PRAGMA application_id") == [(int.from_bytes(b"RCLG"),)]
    assert rows(path, "PRAGMA user_version") == [(3,)]
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


def test_no_database_is_refused_by_name_and_left_alone(path: Path) -> None:
    for content in (b"", b"x", b"not a database " * 1000):
        path.write_bytes(content)
        with pytest.raises(LedgerRefusedError, match=str(path)):
            SqliteLedger(path)
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE other (x)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"]
)
def test_the_database_of_another_program_is_refused_and_left_alone(path: Path, statement: str) -> None:
    with closing(connect(path, create=True)) as connection:
        connection.execute(statement)
    before = path.read_bytes()
    with pytest.raises(LedgerRefusedError, match=rf"{path} is the database of another program.*name another file"):
        SqliteLedger(path)
    assert path.read_bytes() == before


async def test_a_newer_ledger_is_refused_when_it_is_opened(path: Path) -> None:
    await SqliteLedger(path).aclose()
    newer = 4
    rows(path, f"PRAGMA user_version = {newer}")
    with pytest.raises(LedgerRefusedError, match=rf"{path} has schema version {newer}.*upgrade rollout-control"):
        SqliteLedger(path)


async def test_each_handle_finds_what_the_other_has_recorded_at_every_length(path: Path) -> None:
    commits = sample_conversation("r", 50)
    async with SqliteLedger(path) as one, SqliteLedger(path) as other:
        for seq, commit in enumerate(commits):
            writer, reader = (one, other) if seq % 3 else (other, one)
            assert commit.lookup is not None
            assert await reader.find_parent("r", commit.lookup.fingerprint, 2) is None
            await writer.record(commit)
            assert await reader.find_parent("r", commit.lookup.fingerprint, 2) == commit
            await reader.record(commit)
            with pytest.raises(LedgerConflictError):
                await reader.record(changed(commit, weight_version=7))
            await reader.record(commits[seq // 2])
        assert await call_ids(one, "r") == [commit.record.model_call_id for commit in commits]


async def test_a_parent_deeper_than_a_short_reading_is_found_by_a_handle_that_did_not_record_it(path: Path) -> None:
    """Its chain is read in the thread."""
    commits = sample_conversation("r", 1500)
    async with SqliteLedger(path) as ledger:
        await asyncio.gather(*(ledger.record(commit) for commit in commits))
    async with SqliteLedger(path) as ledger:
        for commit in (commits[-1], commits[1100], commits[10]):
            assert commit.lookup is not None
            assert await ledger.find_parent("r", commit.lookup.fingerprint, 2) == commit


def open_and_record(path: Path, name: str) -> None:
    async def record() -> None:
        async with SqliteLedger(path) as ledger:
            await record_all(ledger, [sample_commit("r", name)])

    asyncio.run(record())


async def test_processes_that_make_one_ledger_at_once_share_it(tmp_path: Path) -> None:
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload(["rollout_control_server.ledger"])
    for attempt in range(3):
        path = tmp_path / f"{attempt}.sqlite"
        processes = [start.Process(target=open_and_record, args=(path, str(number))) for number in range(6)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        async with SqliteLedger(path) as ledger:
            assert sorted(await call_ids(ledger, "r")) == list("012345")
    assert names(tmp_path) == ["0.sqlite", "1.sqlite", "2.sqlite"]


UNKNOWN = "nfs nfs4 cifs smb3 9p virtiofs lustre ceph gpfs vboxsf prl_fs fuse fuse.sshfs fuse.juicefs fuse.s3fs nextfs"


@pytest.mark.parametrize("kind", UNKNOWN.split())
def test_a_file_system_that_is_not_known_to_be_fit_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    share = tmp_path / "a share"
    (share / "local").mkdir(parents=True)
    escaped = str(share).replace(" ", "\\040")
    mounts.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "a line that says nothing\n"
        f"36 22 0:32 / {escaped} rw,relatime shared:2 - {kind} server:/export rw\n"
        f"37 36 8:2 / {escaped}/local rw,relatime - xfs /dev/vdb rw\n"
    )
    with pytest.raises(LedgerRefusedError, match=rf"'{kind}'.*PostgresLedger.*any_file_system=yes"):
        refuse_unknown_file_system(share / "ledger.sqlite", mounts)
    refuse_unknown_file_system(share / "local" / "ledger.sqlite", mounts)
    refuse_unknown_file_system(tmp_path / "ledger.sqlite", mounts)
    refuse_unknown_file_system(tmp_path / "ledger.sqlite", tmp_path / "no mountinfo, as on macOS")


async def test_who_knows_better_uses_any_file_system(path: Path) -> None:
    async with open_ledger(f"sqlite:///{path}?any_file_system=yes") as ledger:
        await record_all(ledger, [sample_commit("r", "c")])
    for option in ("any_file_system=no", "any_file_system", "busy_timeout_s=9&any_file_system=yes", ""):
        with pytest.raises(ValueError, match="no options but any_file_system=yes"):
            open_ledger(f"sqlite:///{path}?{option}")


@pytest.fixture
def link(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link.sqlite"
    link.symlink_to(tmp_path / "elsewhere" / "real.sqlite")
    return link


async def test_a_symbolic_link_is_followed(link: Path, tmp_path: Path) -> None:
    await SqliteLedger(tmp_path / "elsewhere" / "real.sqlite").aclose()
    async with SqliteLedger(link) as ledger:
        await record_all(ledger, [sample_commit("r", "c")])
        assert await call_ids(ledger, "r") == ["c"]


def test_a_negative_timeout_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="busy_timeout_s"):
        SqliteLedger(path, busy_timeout_s=-1)


# Handles


def test_a_handle_serves_any_event_loop(path: Path) -> None:
    """It is opened where none runs, as Gym opens its ledger."""
    ledger = SqliteLedger(path)
    asyncio.run(record_all(ledger, [sample_commit("r", "c1")]))
    thread = threading.Thread(target=asyncio.run, args=(record_all(ledger, [sample_commit("r", "c2")]),))
    thread.start()
    thread.join()
    assert asyncio.run(call_ids(ledger, "r")) == ["c1", "c2"]
    asyncio.run(ledger.aclose())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_handle_that_was_forked_says_so_and_spares_its_parent(path: Path) -> None:
    async with SqliteLedger(path) as ledger:
        await record_all(ledger, [sample_commit("r", "c1")])
        calls = {
            "record": (sample_commit("r", "c2"),),
            "record_failure": ("r", "c", "reason"),
            "manifest": ("r",),
            "has_rows": ("r",),
            "find_parent": ("r", "f", 2),
            "retire": (["r"],),
            "delete": (["r"],),
            "forget_fences": (timedelta(0),),
            "check_ready": (),
            "aclose": (),
        }
        pid = os.fork()
        if pid == 0:
            try:
                for name, arguments in calls.items():
                    with pytest.raises(LedgerUnavailableError, match="opened before a fork"):
                        getattr(ledger, name)(*arguments).send(None)
                del ledger
                gc.collect()
                os._exit(0)
            finally:
                os._exit(1)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await record_all(ledger, [sample_commit("r", "c3")])
    async with SqliteLedger(path) as again:
        assert await call_ids(again, "r") == ["c1", "c3"]


async def test_a_handle_that_is_dropped_leaves_no_thread_behind(path: Path) -> None:
    before = threading.active_count()
    ledger = SqliteLedger(path)
    await record_all(ledger, [sample_commit("r", "c")])
    assert threading.active_count() > before
    del ledger
    gc.collect()
    for _ in range(1000):
        if threading.active_count() == before:
            break
        await asyncio.sleep(0.01)
    assert threading.active_count() == before


async def test_a_handle_that_only_reads_starts_no_thread(path: Path) -> None:
    async with SqliteLedger(path) as ledger:
        await record_all(ledger, [sample_commit("r", "c")])
    before = threading.active_count()
    async with SqliteLedger(path) as ledger:
        assert await call_ids(ledger, "r") == ["c"]
        assert threading.active_count() == before


async def test_a_value_that_sqlite_cannot_store_fails_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's limit is a gigabyte; here it is lowered."""

    def lower_limit(connection: apsw.Connection) -> None:
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, 100_000)

    monkeypatch.setattr(apsw, "connection_hooks", [lower_limit])
    async with SqliteLedger(path) as ledger:
        await record_all(ledger, [sample_commit("r", "taken")])
        commits = [sample_commit("r", f"c{index}") for index in range(20)]
        large = sample_commit("r2", "x" * 200_000)
        conflict = changed(sample_commit("r", "taken"), weight_version=8)
        mixed = [*commits[:10], large, conflict, *commits[10:]]
        outcomes = await asyncio.gather(*(ledger.record(commit) for commit in mixed), return_exceptions=True)
        for commit, outcome in zip(mixed, outcomes, strict=True):
            if commit is large:
                assert isinstance(outcome, ValueError)
                assert not isinstance(outcome, LedgerConflictError)
            elif commit is conflict:
                assert isinstance(outcome, LedgerConflictError)
            else:
                assert outcome is True
        await assert_empty(ledger, "r2")
        assert await call_ids(ledger, "r") == ["taken", *(commit.record.model_call_id for commit in commits)]


# Growth


async def until_purged(path: Path) -> None:
    for _ in range(3000):
        if rows(path, "SELECT count(*) FROM purge_queue") == [(0,)]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the purge does not come to its end")


@pytest.mark.parametrize("removal", ["retire", "delete"])
async def test_removed_rows_are_purged_by_any_handle_and_their_space_is_used_again(path: Path, removal: str) -> None:
    sizes = []
    for turn in range(4):
        async with SqliteLedger(path) as ledger:
            ids = [f"{turn}-{index}" for index in range(20)]
            conversations = [sample_conversation(rollout_id, 40) for rollout_id in ids]
            await asyncio.gather(*(record_all(ledger, commits) for commits in conversations))
            assert (await getattr(ledger, removal)(ids)).removed == ids
        # Whoever opens it next goes on with the purge, without a write of its own.
        async with SqliteLedger(path):
            await until_purged(path)
        assert rows(path, "SELECT count(*) FROM call") == [(0,)]
        sizes.append(size(path))
    assert sizes[-1] <= sizes[0] * 1.1


async def test_a_handle_that_has_written_once_purges_what_another_left(path: Path) -> None:
    """However soon after its last look: it looks again, also if it writes no more."""
    async with SqliteLedger(path) as stays:
        async with SqliteLedger(path) as leaves:
            conversations = [sample_conversation(f"r{index}", 40) for index in range(40)]
            await asyncio.gather(*(record_all(leaves, commits) for commits in conversations))
            await record_all(stays, [sample_commit("other", "first")])
            await leaves.delete([f"r{index}" for index in range(40)])
        assert rows(path, "SELECT count(*) FROM purge_queue") != [(0,)]
        await record_all(stays, [sample_commit("other", "second")])
        await until_purged(path)
        assert rows(path, "SELECT count(*) FROM call") == [(2,)]


async def test_a_purge_spares_the_new_rollout_of_a_used_id(path: Path) -> None:
    async with SqliteLedger(path) as ledger:
        for turn in range(5):
            commits = [changed(commit, weight_version=turn) for commit in sample_conversation("r", 200)]
            await asyncio.gather(*(ledger.record(commit) for commit in commits))
            await ledger.delete(["r"])
            await record_all(ledger, [sample_commit("r", f"new-{turn}")])
            await until_purged(path)
            assert await call_ids(ledger, "r") == [f"new-{turn}"]
            await ledger.delete(["r"])


async def test_a_fence_costs_what_it_is_said_to(path: Path) -> None:
    """Its id and 20 bytes, in pages that are at least half full."""
    async with SqliteLedger(path) as ledger:
        ids = [f"train-0007.sample-{index:06d}" for index in range(20_000)]
        for start in range(0, len(ids), 4000):
            await ledger.retire(ids[start : start + 4000])
        count = await ledger.forget_fences(timedelta.max)
        assert count.forgotten == 0
        assert count.kept == len(ids)
        [(real,)] = rows(path, "SELECT sum(pgsize) FROM dbstat WHERE name = 'rollout'")
        assert isinstance(real, int)
        assert count.kept_bytes / 1.2 <= real <= 2 * count.kept_bytes
        forgotten = await ledger.forget_fences(timedelta(0))
        assert (forgotten.forgotten, forgotten.kept, forgotten.kept_bytes) == (len(ids), 0, 0)


async def test_a_thousand_calls_of_a_rollout_take_less_than_1400_bytes_each(path: Path) -> None:
    async with SqliteLedger(path) as ledger:
        await record_all(ledger, sample_conversation("train-0007.sample-3", 1000))
    assert size(path) < 1_400_000


async def test_the_wal_stays_small_beside_readers_that_never_stop(path: Path) -> None:
    stop = asyncio.Event()

    async def read(ledger: SqliteLedger, rollout_id: str) -> None:
        while not stop.is_set():
            await ledger.manifest(rollout_id)
            await asyncio.sleep(0)

    largest = 0
    async with SqliteLedger(path) as ledger, SqliteLedger(path) as reader, SqliteLedger(path) as other:
        await asyncio.gather(*(ledger.record(sample_commit("long", f"c{index}")) for index in range(1000)))
        readers = [asyncio.ensure_future(read(one, "long")) for one in (reader, other, ledger)]
        wal = path.with_name("ledger.sqlite-wal")
        for turn in range(40):
            writes = [sample_commit(f"r{index}", f"{turn}" + "x" * 20_000) for index in range(40)]
            await asyncio.gather(*(ledger.record(commit) for commit in writes))
            largest = max(largest, size(wal))
        stop.set()
        await asyncio.gather(*readers)
    # A checkpoint waits for the readers from 4000 pages of 8 KiB on.
    assert largest <= 48 * 2**20
    assert size(path) > 60_000_000
