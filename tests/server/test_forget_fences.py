"""`rollout-control forget-fences`."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rollout_control_console.cli import rollout_control
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.samples import sample_commit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with the fences of 1200 rollouts and the rows of one."""
    path = tmp_path / "ledger.sqlite"

    async def fill() -> None:
        async with SqliteLedger(path) as ledger:
            await ledger.record(sample_commit("live", "c"))
            await ledger.retire([f"retired-{index}" for index in range(1200)])

    asyncio.run(fill())
    return path


def forget_fences(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(rollout_control, ["forget-fences", "--ledger", f"sqlite:///{path}", *arguments])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["kept: 1,200 fences, which cost about 0.037 MB of storage"]),
        (("--older-than", "12h"), ["forgotten: 0 fences", "kept: 1,200 fences, which cost about 0.037 MB of storage"]),
        (("--older-than", "0s"), ["forgotten: 1,200 fences", "kept: 0 fences, which cost about 0.000 MB of storage"]),
    ],
)
def test_it_counts_and_forgets(path: Path, arguments: Sequence[str], expected: list[str]) -> None:
    result = forget_fences(path, *arguments)
    assert (result.exit_code, result.output.splitlines()) == (0, expected)
    again = forget_fences(path)
    assert again.output.splitlines() == expected[-1:]


@pytest.mark.parametrize("duration", ["30", "d", "-1d", "1.5h", "1w", "30 d", "30d\n", "99999999999999d", "٣d"])
def test_what_is_no_duration_forgets_nothing(path: Path, duration: str) -> None:
    result = forget_fences(path, f"--older-than={duration}")
    assert result.exit_code == 2
    assert "--older-than" in result.output
    assert "kept: 1,200 fences" in forget_fences(path).output


def test_a_ledger_that_cannot_be_opened_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a ledger, but something that somebody wants to keep")
    result = forget_fences(tmp_path / "notes.txt")
    assert result.exit_code == 2
    assert "no SQLite database" in result.output


def test_a_mistyped_path_makes_no_ledger(tmp_path: Path) -> None:
    result = forget_fences(tmp_path / "typo.sqlite")
    assert result.exit_code == 2
    assert "there is no ledger" in result.output
    assert list(tmp_path.iterdir()) == []
