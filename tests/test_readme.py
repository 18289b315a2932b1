"""The README's code is run as it stands there."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rollout_control_client
from rollout_control_server import MemoryLedger, RolloutManifest
from rollout_control_server.ledger.conformance.steps import read_manifest
from rollout_control_server.samples import sample_conversation
from served import TOKEN, controlled

README = Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_the_trainer_runs() -> None:
    """Against a server that knows one of its rollouts: what it prints is what was recorded, and it retires both."""
    (program,) = (block for block in blocks("python") if "def finish_step" in block)
    assert len(program.strip().splitlines()) <= 16
    ledger = MemoryLedger()

    async def record() -> None:
        for commit in sample_conversation("train-0007.sample-3", 5):
            await ledger.record(commit)

    asyncio.run(record())
    with controlled(ledger) as control:
        program = program.replace("http://127.0.0.1:8080", control.base_url).replace('"TOKEN"', repr(TOKEN))
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert sorted(ended.stdout.splitlines()) == [
            "train-0007.sample-3 5 calls, 0 failed captures",
            "train-0007.sample-4 0 calls, 0 failed captures",
        ]
        assert control.get_manifest("train-0007.sample-3").status_code == 410


def test_the_routes_are_installed(tmp_path: Path) -> None:
    (program,) = (
        block for block in blocks("python") if "from fastapi import FastAPI" in block and "open_ledger" in block
    )
    program = program.replace("sqlite:///rollouts.sqlite", f"sqlite:///{tmp_path}/rollouts.sqlite")
    names: dict[str, Any] = {}
    exec(compile(program, "README.md", "exec"), names)
    with controlled(names["ledger"], names["app"]) as control:
        answer = control.get_manifest("r", headers={"authorization": "Bearer TOKEN"})
        assert answer.json()["records"] == []
    asyncio.run(names["ledger"].aclose())


def test_the_calls_are_recorded() -> None:
    (program,) = (block for block in blocks("python") if "def record_calls" in block)
    names: dict[str, Any] = {}
    exec(compile(program, "README.md", "exec"), names)

    async def record() -> RolloutManifest:
        async with MemoryLedger() as ledger:
            await names["record_calls"](ledger, "r")
            return await read_manifest(ledger, "r")

    manifest = asyncio.run(record())
    assert [each.model_call_id for each in manifest.records] == ["call-1", "call-2"]
    assert [each.model_call_id for each in manifest.failures] == ["call-3"]


def test_the_errors_are_the_clients() -> None:
    table = README.read_text().partition("What it raises:")[2].partition("\n\nIf")[0]
    for name in re.findall(r"`(\w+Error)`", table):
        assert name in rollout_control_client.__all__


def test_the_two_commands_stand_on_the_first_screen() -> None:
    first_screen = README.read_text().splitlines()[:45]
    commands = [line for line in first_screen if line.startswith("python3 -m venv .venv && ")]
    assert [command.rpartition("/")[2] for command in commands] == ["rollout-control demo", "nox -s tests"]


@pytest.mark.parametrize("block", blocks("console"))
def test_a_command_is_one_line(block: str) -> None:
    assert len(block.strip().splitlines()) == 1
