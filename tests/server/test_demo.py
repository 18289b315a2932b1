"""The demo, as somebody runs it, and that it can fail."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rollout_control_console.demo import trainer
from rollout_control_console.demo.rollouts import DemoRollout, demo_rollout


def test_it_shows_the_whole_life_of_rollouts() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "rollout_control_console", "demo", "--rollouts", "40"],
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for word in (
        "40 are row for row what was recorded",
        "40 removed",
        "40 are answered with 410",
        "1 discarded",
        "40 absent",
        "401",
    ):
        assert word in ended.stdout, word
    assert "NO" not in ended.stdout
    assert "Everything is as promised." in ended.stdout


def test_it_fails_when_a_row_is_lost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The trainer expects a call more than the model server records."""

    def longer(run: str, number: int) -> DemoRollout:
        rollout = demo_rollout(run, number)
        return DemoRollout(rollout.rollout_id, [*rollout.commits, *demo_rollout(run, number + 1).commits], [])

    monkeypatch.setattr(trainer, "demo_rollout", longer)
    assert asyncio.run(trainer.run_demo("memory://", 12)) == 1
    shown = capsys.readouterr().out
    assert "NO" in shown
    assert "Something is not as promised." in shown


@pytest.mark.parametrize(
    ("ledger_url", "word"), [("mongodb://x", "mongodb"), ("sqlite:////no/such/folder/x.sqlite", "/no/such/folder")]
)
def test_a_ledger_that_cannot_be_opened_is_said_clearly(ledger_url: str, word: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "rollout_control_console", "demo", "--ledger", ledger_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_one_line_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Signals come to all of its process group, as from a terminal, and go on coming until it has ended."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "rollout_control_console", "demo", "--rollouts", "4000"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    assert "A model server's process" in demo.stdout.readline()
    while demo.poll() is None:
        os.killpg(demo.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            demo.wait(timeout=0.01)
    _, said = demo.communicate()
    assert demo.returncode == 130
    assert said == "the demo was interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_rollouts_have_branches_and_failures() -> None:
    rollouts = [demo_rollout("run", number) for number in range(300)]
    parents = [[commit.record.parent_call_id for commit in rollout.commits] for rollout in rollouts]
    assert any(len(ids) != len(set(ids)) for ids in parents)
    assert any(rollout.failures for rollout in rollouts)
    assert rollouts == [demo_rollout("run", number) for number in range(300)]
