"""`rollout-control verify`: exit status 0, 1 and 2, and what it prints."""

import asyncio
import os
import pty
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rollout_control_console.cli import rollout_control
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.conformance.steps import record_all
from rollout_control_server.ledger.sqlite.connections import connect
from rollout_control_server.samples import sample_conversation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with rows of thirty rollouts, and a fence."""
    path = tmp_path / "ledger.sqlite"

    async def fill() -> None:
        async with SqliteLedger(path) as ledger:
            for index in range(30):
                await record_all(ledger, sample_conversation(f"r{index:02}", 3))
            await ledger.retire(["retired"])

    asyncio.run(fill())
    return path


def verify(url: str) -> Result:
    return CliRunner().invoke(rollout_control, ["verify", "--ledger", url])


def test_a_sound_ledger_ends_with_0(path: Path) -> None:
    result = verify(f"sqlite:///{path}")
    assert (result.exit_code, result.output) == (0, f"sqlite:///{path}: no damage in 31 rollouts with 90 rows\n")
    assert verify("memory://").exit_code == 0


def test_damage_ends_with_1_and_names_the_rollouts(path: Path) -> None:
    with closing(connect(path)) as connection:
        connection.execute("DELETE FROM call WHERE generation = 7 AND call_rowid & 16777215 = 1")
        connection.execute("UPDATE rollout SET failures = 2 WHERE rollout_id = 'r11'")
    result = verify(f"sqlite:///{path}")
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "damaged: rollout 'r06' of the ledger has lost rows",
        "damaged: rollout 'r11' of the ledger is listed with 2 failures, and has 0",
        "rollouts touched: r06, r11",
        f"sqlite:///{path}: 2 damages in 31 rollouts with 87 rows",
    ]


def test_many_touched_rollouts_are_counted(path: Path) -> None:
    with closing(connect(path)) as connection:
        connection.execute("DELETE FROM call")
    result = verify(f"sqlite:///{path}")
    assert result.exit_code == 1
    assert "rollouts touched: r00, r01, " in result.output
    assert "r19 and 10 more\n" in result.output


def test_a_ledger_that_cannot_be_opened_for_damage_ends_with_1(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"\0")
    result = verify(f"sqlite:///{path}")
    assert result.exit_code == 1
    assert "damaged: the header of the ledger" in result.output
    assert "nothing is known of its rollouts" in result.output


@pytest.mark.parametrize("url", ["sqlite:///{}/none.sqlite", "sqlite:///{}", "other://{}"])
def test_what_cannot_be_read_ends_with_2(tmp_path: Path, url: str) -> None:
    result = verify(url.format(tmp_path))
    assert result.exit_code == 2
    assert "Error: " in result.output


def test_a_terminal_sees_how_far_it_has_come(path: Path) -> None:
    command = [sys.executable, "-m", "rollout_control_console", "verify", "--ledger", f"sqlite:///{path}"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux's end of file
                break
            if not piece:
                break
            shown += piece
        assert process.stdout is not None
        assert process.stdout.read() == f"sqlite:///{path}: no damage in 31 rollouts with 90 rows\n"
    os.close(ours)
    assert process.returncode == 0
    assert b"pages" in shown
    assert b"rollouts" in shown
    assert b"31/31" in shown
