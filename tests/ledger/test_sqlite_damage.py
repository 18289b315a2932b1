"""A damaged file is told as damage, never as a manifest that lacks rows; and what HTTP says of a file's faults."""

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.conformance.steps import record_all
from rollout_control_server.ledger.sqlite.connections import connect
from rollout_control_server.samples import sample_commit, sample_conversation
from served import Control, controlled

ROLLOUT_IDS = [f"r{index}" for index in range(12)]
PAGE_BYTES = 8192


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger that nobody has open, with rows of some rollouts and enough fences for a tree."""
    path = tmp_path / "ledger.sqlite"

    async def fill() -> None:
        async with SqliteLedger(path) as ledger:
            for rollout_id in ROLLOUT_IDS:
                await asyncio.gather(*(ledger.record(commit) for commit in sample_conversation(rollout_id, 6)))
                await ledger.record_failure(rollout_id, "failed", "worker_capture_failed")
            await ledger.retire([f"fence-{index}" for index in range(400)])

    asyncio.run(fill())
    return path


async def read_each(path: Path) -> list[bytes | BaseException]:
    """Reads the manifests one by one, and sees that a reading of all is the same if it finds no damage."""
    async with SqliteLedger(path) as ledger:
        outcomes = await asyncio.gather(*map(ledger.manifest, ROLLOUT_IDS), return_exceptions=True)
        with contextlib.suppress(LedgerCorruptError):
            assert (await ledger.manifests(ROLLOUT_IDS, 10**9)).manifests == outcomes
        return outcomes


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"{"])
def test_no_page_that_is_overwritten_makes_a_manifest_a_lie(path: Path, filler: bytes) -> None:
    """Each page but the first in turn, which makes the file no database at all."""
    whole = asyncio.run(read_each(path))
    damaged = 0
    for page in range(1, path.stat().st_size // PAGE_BYTES):
        copy = path.with_name(f"{page}.sqlite")
        shutil.copy(path, copy)
        with copy.open("r+b") as file:
            file.seek(page * PAGE_BYTES)
            file.write(filler * PAGE_BYTES)
        try:
            outcomes = asyncio.run(read_each(copy))
        except LedgerCorruptError:
            damaged += 1
            continue
        for outcome, manifest in zip(outcomes, whole, strict=True):
            assert outcome == manifest or isinstance(outcome, LedgerCorruptError)
            damaged += outcome != manifest
    assert damaged >= len(ROLLOUT_IDS)


@pytest.mark.parametrize("lost", ["generation = 1", "call_rowid & 16777215 = 0", "call_rowid & 16777215 = 3"])
async def test_rows_that_somebody_removed_are_missed(path: Path, lost: str) -> None:
    """All of a rollout, or some in its midst: rows are numbered without gaps."""
    with closing(connect(path)) as connection:
        connection.execute(f"DELETE FROM call WHERE {lost.replace('generation', 'call_rowid >> 24')}")
    async with SqliteLedger(path) as ledger:
        with pytest.raises(LedgerCorruptError, match="'r0' of the ledger has lost rows"):
            await ledger.manifest("r0")
        with pytest.raises(LedgerCorruptError, match="'r0' of the ledger has lost rows"):
            await ledger.manifests(ROLLOUT_IDS, 10**9)
        # The rollout can be removed, and then begins anew.
        assert (await ledger.delete(["r0"])).removed == ["r0"]
        await record_all(ledger, [sample_commit("r0", "c")])


@pytest.mark.parametrize("table", ["rollout", "call", "purge_queue", "newest_generation"])
async def test_a_ledger_without_one_of_its_tables_is_not_ready(path: Path, table: str) -> None:
    async with SqliteLedger(path) as ledger:
        await ledger.check_ready()
        with closing(connect(path)) as connection:
            connection.execute(f"DROP TABLE {table}")
        with pytest.raises(LedgerCorruptError, match="no such table"):
            await ledger.check_ready()


def on_served_ledger(path: Path, test: Callable[[Control], None]) -> None:
    ledger = SqliteLedger(path, busy_timeout_s=0.2)
    with controlled(ledger) as control:
        test(control)
    asyncio.run(ledger.aclose())


def statuses(control: Control) -> dict[str, int]:
    answers = {
        "manifest": control.get_manifest("r0"),
        "retire": control.remove("retire", "new"),
        "delete": control.remove("delete", "new"),
        "readyz": control.http.get("/readyz"),
    }
    for name, answer in answers.items():
        if answer.status_code == 503 and name != "readyz":
            assert answer.headers["retry-after"] == "1"
            assert str(control.http.base_url) not in answer.text
            assert "sqlite" not in answer.text
    return {name: answer.status_code for name, answer in answers.items()}


ALL_WELL = {"manifest": 200, "retire": 200, "delete": 200, "readyz": 200}


def test_over_http_a_file_that_is_gone_is_503_until_it_is_back(path: Path) -> None:
    def check(control: Control) -> None:
        assert statuses(control) == ALL_WELL
        path.parent.rename(path.parent.with_name("elsewhere"))
        assert statuses(control) == dict.fromkeys(ALL_WELL, 503)
        assert control.http.get("/livez").status_code == 200
        path.parent.with_name("elsewhere").rename(path.parent)
        assert statuses(control) == ALL_WELL

    on_served_ledger(path, check)


def test_over_http_a_file_that_another_program_has_locked_is_503_for_writes_only(path: Path) -> None:
    def check(control: Control) -> None:
        with closing(connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert statuses(control) == {"manifest": 200, "retire": 503, "delete": 503, "readyz": 503}
        assert statuses(control) == ALL_WELL

    on_served_ledger(path, check)


def test_over_http_a_damaged_file_is_500(path: Path) -> None:
    with closing(connect(path)) as connection:
        connection.execute("DELETE FROM call")

    def check(control: Control) -> None:
        assert statuses(control) == ALL_WELL | {"manifest": 500}

    on_served_ledger(path, check)
