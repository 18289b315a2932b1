"""The command `rollout-control copy`, as a process."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rollout_control_server import open_ledger
from rollout_control_server.copying import LedgerSource, differing_rollouts
from rollout_control_server.samples import sample_commit, sample_conversation

COMMAND = [sys.executable, "-m", "rollout_control_console", "copy"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120)


async def fill(url: str, rollouts: int, calls: int) -> None:
    async with open_ledger(url) as ledger:
        for number in range(rollouts):
            commits = sample_conversation(f"r{number:04}", calls)
            await asyncio.gather(*(ledger.record(commit) for commit in commits))
        await ledger.retire(["fence"])


async def record(url: str, rollout_id: str) -> None:
    async with open_ledger(url) as ledger:
        await ledger.record(sample_commit(rollout_id, "own"))


async def differing(one: str, other: str) -> list[str]:
    async with open_ledger(one) as source, open_ledger(other) as destination:
        compared = differing_rollouts(LedgerSource(source, one), LedgerSource(destination, other))
        return [rollout_id async for rollout_id in compared]


@pytest.fixture
def url(tmp_path: Path) -> Callable[[str], str]:
    return lambda name: f"sqlite:///{tmp_path}/{name}.sqlite"


@pytest.fixture
def source(url: Callable[[str], str]) -> str:
    asyncio.run(fill(url("source"), 3, 4))
    return url("source")


@pytest.mark.parametrize("name", ["export.jsonl", "export.jsonl.gz", "an export%20.jsonl"])
def test_ledger_to_file_to_ledger(name: str, source: str, url: Callable[[str], str], tmp_path: Path) -> None:
    file = f"file://{tmp_path}/{name.replace('%', '%25')}"
    for _ in range(2):
        ended = run(source, file, "--verify")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.splitlines() == [
            "copied 3 rollouts with 12 rows, and 1 fences of retired rollouts",
            "verified: both sides have the same rollouts, rows and fences",
        ]
    ended = run(file, url("destination"), "--verify")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / name).read_bytes()[:2] == (b"\x1f\x8b" if name.endswith(".gz") else b'{"')
    assert asyncio.run(differing(source, url("destination"))) == []
    assert "4 were there already" in run(file, url("destination")).stdout


def test_rollouts_of_the_destination_are_left_and_named(source: str, url: Callable[[str], str]) -> None:
    for rollout_id in ("r0001", "own"):
        asyncio.run(record(url("destination"), rollout_id))
    mixed = run(source, url("destination"))
    assert (mixed.returncode, mixed.stdout) == (2, "")
    assert "the destination has rollout 'own'" in mixed.stderr
    assert "--into-existing" in mixed.stderr
    into = run(source, url("destination"), "--into-existing", "--verify")
    assert into.returncode == 1
    assert "copied 2 rollouts with 8 rows, and 1 fences of retired rollouts; 1 were refused" in into.stdout
    assert into.stderr.splitlines() == [
        "refused, because the destination has others of these ids: r0001",
        "different on the two sides: r0001",
    ]
    assert asyncio.run(differing(source, url("destination"))) == ["own", "r0001"]


def test_without_a_terminal_follow_makes_its_last_pass_at_once(source: str, url: Callable[[str], str]) -> None:
    ended = run(source, url("destination"), "--follow")
    assert ended.returncode == 0, ended.stderr
    assert "Stop the writers of the source now." in ended.stdout
    assert "4 were there already" in ended.stdout.splitlines()[-1]


def test_a_killed_copy_is_run_again(tmp_path: Path, url: Callable[[str], str]) -> None:
    """By SIGKILL, while it writes, several times."""
    source, destination, journal = url("source"), url("destination"), str(tmp_path / "journal")
    asyncio.run(fill(source, 700, 30))
    written = tmp_path / "destination.sqlite-wal"
    for kill in range(3):
        process = subprocess.Popen([*COMMAND, source, destination, "--journal", journal], stdout=subprocess.DEVNULL)
        while process.poll() is None and not (written.exists() and written.stat().st_size > 1_000_000 * (1 + kill)):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    ended = run(source, destination, "--journal", journal, "--verify")
    assert ended.returncode == 0, ended.stderr
    assert asyncio.run(differing(source, destination)) == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["{source}", "{source}"], 2, "are the same"),
        (["{source}", "file:///{folder}/x", "--follow"], 2, "a DESTINATION that is a ledger"),
        (["{source}", "file:///{folder}/x", "--into-existing"], 2, "a DESTINATION that is a ledger"),
        (["file:///{folder}/x", "memory://", "--follow"], 2, "a SOURCE that is a ledger"),
        (["file:///{folder}/missing", "memory://"], 2, "there is no file"),
        (["file:///{folder}/text", "memory://"], 2, "is no export file"),
        (["{source}", "file:///{folder}/text"], 2, "is no export file"),
        (["{source}", "file:///{folder}/no/x"], 1, "cannot write"),
        (["sqlite:///{folder}/missing", "memory://"], 2, "missing"),
        (["http://localhost", "memory://"], 2, "no ledger has the URL scheme"),
        (["{source}", "memory://", "--journal", "{folder}/text"], 2, "is not the journal"),
    ],
)
def test_what_cannot_be_copied(arguments: list[str], code: int, says: str, source: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a text\n")
    ended = run(*(argument.format(source=source, folder=tmp_path) for argument in arguments))
    assert (ended.returncode, ended.stdout) == (code, "")
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "text").read_text() == "a text\n"


def test_no_message_has_a_password(tmp_path: Path, source: str) -> None:
    destination = "postgresql://user:hush-hush@127.0.0.1:1/none?timeout=1"
    ended = run(source, destination, "--journal", str(tmp_path / "journal"))
    assert ended.returncode in {1, 2}
    assert "hush" not in ended.stdout + ended.stderr
    assert not any(b"hush" in file.read_bytes() for file in tmp_path.glob("journal*"))
