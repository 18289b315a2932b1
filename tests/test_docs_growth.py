"""The code and the commands of docs/growth.md are run as they stand there."""

import asyncio
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rollout_control_client import RolloutControlClient
from rollout_control_console.cli import rollout_control
from rollout_control_server import MemoryLedger
from rollout_control_server.ledger.results import LedgerRow, RolloutExport
from rollout_control_server.samples import sample_commit
from served import TOKEN, Control, controlled

PAGE = Path(__file__).parent.parent / "docs" / "growth.md"
DAY = 86400.0


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)


async def leaked(ledger: MemoryLedger, *rollout_ids: str) -> None:
    for rollout_id in rollout_ids:
        await ledger.record(sample_commit(rollout_id, "c"))
        rows = [LedgerRow(row, time.time() - 3 * DAY) for row, _ in (await ledger.export(rollout_id)).rows]
        await ledger.import_([RolloutExport(rollout_id, None, rows)])


@pytest.fixture
def names() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, PAGE.name, "exec"), names)
    return names


def test_leaks_are_shown(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    ledger = MemoryLedger()
    asyncio.run(leaked(ledger, "run-7.a", "run-70.a"))
    asyncio.run(ledger.record(sample_commit("run-7.b", "c")))
    with controlled(ledger) as control:
        asyncio.run(names["show_leaks"](control.base_url, TOKEN))
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()] == [["run-7.a", "1", "0"]]


def test_a_trainer_cleans_up_its_step(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    ledger = MemoryLedger()
    asyncio.run(leaked(ledger, "run-7.step-1.a", "run-7.step-1.b", "run-7.step-10.a"))

    async def clean_up(control: Control) -> int:
        async with RolloutControlClient(control.base_url, TOKEN, 30) as client:
            return int(await names["clean_up_step"](client, "run-7.step-1"))

    with controlled(ledger) as control:
        assert asyncio.run(clean_up(control)) == 2
        live = asyncio.run(ledger.rollouts(state="live")).rollouts
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert [rollout.rollout_id for rollout in live] == ["run-7.step-10.a"]


def test_the_summary_has_the_fields_that_are_shown() -> None:
    (shown,) = blocks("json")
    (asked,) = (block for block in blocks("console") if block.startswith("curl"))
    with controlled(MemoryLedger()) as control:
        answer = control.http.get(shlex.split(asked)[-1].removeprefix("http://model-server:8080")).text
    assert re.findall(r'"(\w+)":', shown) == re.findall(r'"(\w+)":', answer)


def test_the_commands_retire_what_they_say() -> None:
    ledger = MemoryLedger()
    asyncio.run(leaked(ledger, "run-7.a", "run-8.a"))
    (block,) = (block for block in blocks("console") if "--dry-run" in block)
    commands = [shlex.split(line)[1:] for line in block.splitlines() if line.startswith("rollout-control ")]
    with controlled(ledger) as control:
        environment = {"ROLLOUT_CONTROL_URL": control.base_url, "ROLLOUT_CONTROL_AUTH_TOKEN": TOKEN}
        ended = [CliRunner(env=environment).invoke(rollout_control, command) for command in commands]
        live = asyncio.run(ledger.rollouts(state="live")).rollouts
    assert [one.output.splitlines()[-1] for one in ended] == ["would retire: 1 rollouts", "retired: 1 rollouts"]
    assert [rollout.rollout_id for rollout in live] == ["run-8.a"]


def test_the_nightly_job_retires_and_forgets(tmp_path: Path) -> None:
    (line,) = blocks("text")
    commands = [shlex.split(command)[1:] for command in line.split(" && ")[1:]]
    environment = {"ROLLOUT_CONTROL_LEDGER": f"sqlite:///{tmp_path}/ledger.sqlite", "ROLLOUT_CONTROL_URL": None}

    async def fill() -> None:
        from rollout_control_server.ledger import SqliteLedger

        async with SqliteLedger(tmp_path / "ledger.sqlite") as ledger:
            await ledger.record(sample_commit("leak", "c"))
            rows = [LedgerRow(row, time.time() - 3 * DAY) for row, _ in (await ledger.export("leak")).rows]
            await ledger.import_(
                [RolloutExport("leak", None, rows), RolloutExport("old", time.time() - 40 * DAY, [])],
            )

    asyncio.run(fill())
    ended = [CliRunner(env=environment).invoke(rollout_control, command) for command in commands]
    assert [one.exit_code for one in ended] == [0, 0]
    assert ended[0].output.splitlines() == ["retired: 1 rollouts"]
    assert ended[1].output.splitlines()[0] == "forgotten: 1 fences"
