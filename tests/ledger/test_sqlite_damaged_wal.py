"""A bit that flips in the WAL of a killed process: SQLite drops the commits behind it, and the handle says so.

The environment variable LEDGER_FLIPS says how many bits are tried, as in test_sqlite_damaged_pages.py.
"""

import asyncio
import logging
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.conformance.steps import call_ids

FLIPS = min(200, int(os.environ.get("LEDGER_FLIPS", "24")))
CALLS = 60
WAL_HEADER_BITS = 256

KILLED = """
import asyncio, os, signal, sys
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.samples import sample_commit
async def record():
    ledger = SqliteLedger(sys.argv[1])
    for index in range(int(sys.argv[2])):
        await ledger.record(sample_commit("r", f"c{index}"))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(record())
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The three files of a ledger whose process was killed, by the ends of their names."""
    path = tmp_path_factory.mktemp("killed") / "ledger.sqlite"
    subprocess.run([sys.executable, "-c", KILLED, path, str(CALLS)], check=False)
    return {end: Path(f"{path}{end}").read_bytes() for end in ("", "-wal", "-shm")}


def put(files: dict[str, bytes], path: Path) -> Path:
    for leftover in path.parent.glob(f"{path.name}*"):
        leftover.unlink()
    for end, content in files.items():
        Path(f"{path}{end}").write_bytes(content)
    return path


async def recorded(path: Path) -> list[str]:
    async with SqliteLedger(path) as ledger:
        return await call_ids(ledger, "r")


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def is_told(caplog: pytest.LogCaptureFixture) -> bool:
    return any("writes that were acknowledged last are lost" in each.getMessage() for each in caplog.records)


def test_a_whole_wal_is_recovered_without_a_word(
    killed: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(killed, tmp_path / "ledger.sqlite")
    for _ in range(2):
        assert len(asyncio.run(recorded(path))) == CALLS
    assert not caplog.records
    # Nor is it a fault that the shared memory is not there, as after a restart of the machine.
    path = put({**killed, "-shm": b""}, tmp_path / "ledger.sqlite")
    assert len(asyncio.run(recorded(path))) == CALLS
    assert not caplog.records


def test_commits_that_are_lost_to_a_damaged_wal_are_noticed(
    killed: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left is the beginning of what was recorded."""
    caplog.set_level(logging.ERROR)
    expected = [f"c{index}" for index in range(CALLS)]
    for number in range(FLIPS):
        bit = random.randrange(WAL_HEADER_BITS if number % 8 == 0 else 8 * len(killed["-wal"]))
        caplog.clear()
        try:
            left = asyncio.run(
                recorded(put({**killed, "-wal": flipped(killed["-wal"], bit)}, tmp_path / "ledger.sqlite"))
            )
        except LedgerCorruptError:
            continue
        assert left == expected[: len(left)]
        assert is_told(caplog) == (len(left) < CALLS), f"bit {bit}"


def test_a_wal_that_another_process_has_begun_anew_is_no_damage(
    killed: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(killed, tmp_path / "ledger.sqlite")
    # The salts of another WAL, as a power cut leaves an older state of the shared memory.
    other = bytearray(killed["-shm"])
    for copy in (0, 48):
        other[copy + 32 : copy + 40] = random.randbytes(8)
        other[copy + 16 : copy + 20] = (10_000).to_bytes(4, sys.byteorder)
    Path(f"{path}-shm").write_bytes(other)
    assert len(asyncio.run(recorded(path))) == CALLS
    assert not caplog.records
