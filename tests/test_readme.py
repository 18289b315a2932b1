"""The README's code is run as it stands there."""

import asyncio
import re
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
import rollout_control_client
from rollout_control_console.cli import rollout_control
from rollout_control_server import MemoryLedger, RolloutManifest, open_ledger
from rollout_control_server.ledger.conformance.steps import read_manifest
from rollout_control_server.samples import sample_commit
from served import TOKEN, controlled

README = Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_the_trainer_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """It leaves out what is incomplete, groups the rest, and retires all."""
    (program,) = (block for block in blocks("python") if "def finish_step" in block)
    assert len(program.strip().splitlines()) <= 20
    ledger = MemoryLedger()

    async def record() -> None:
        for rollout_id, weight_version in (("old", 3), ("new", 4), ("failed", 4)):
            await ledger.record(sample_commit(rollout_id, "call", weight_version=weight_version))
        await ledger.record_failure("failed", "lost", "worker_capture_failed")
        await ledger.retire(["gone"])

    asyncio.run(record())
    with controlled(ledger) as control:
        program = program.replace("http://127.0.0.1:8080", control.base_url).replace('"TOKEN"', repr(TOKEN))
        names: dict[str, Any] = {}
        exec(compile(program, "README.md", "exec"), names)
        by_weights = names["finish_step"](["old", "new", "failed", "gone", "empty"])
        trained_on = {versions: [tree.manifest.rollout_id for tree in trees] for versions, trees in by_weights.items()}
        assert trained_on == {(3,): ["old"], (4,): ["new"]}
        assert sorted(capsys.readouterr().out.splitlines()) == [
            "left out: empty it has no calls",
            "left out: failed the capture of call 'lost' failed: worker_capture_failed",
        ]
        for rollout_id in ("old", "new", "failed", "empty"):
            assert control.get_manifest(rollout_id).status_code == 410


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


def rows_of_table(header: str) -> list[list[str]]:
    """Returns the cells of the README's one table with this header."""
    (table,) = re.findall(rf"^{re.escape(header)}\n\|[-|]+\n((?:\|.*\n)+)", README.read_text(), flags=re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in str(table).splitlines()]


def test_the_table_of_errors_names_each_error_of_the_client() -> None:
    named = re.findall(r"`(\w+Error)`", " ".join(first for first, _ in rows_of_table("| error | when |")))
    assert sorted(named) == sorted(name for name in rollout_control_client.__all__ if name.endswith("Error"))


def test_each_url_in_the_table_of_ledgers_opens_the_ledger_beside_it(tmp_path: Path) -> None:
    rows = rows_of_table("| ledger | URL | for |")
    opened = [open_ledger(url.strip("`").replace("FILE", f"{tmp_path}/x.sqlite")) for _, url, _ in rows]
    assert [type(ledger).__name__ for ledger in opened] == [name.strip("`") for name, _, _ in rows]
    assert len(rows) == 3
    for ledger in opened:
        asyncio.run(ledger.aclose())


def test_the_extras_to_install_are_there() -> None:
    section = README.read_text().partition("## Install\n")[2].partition("\n## ")[0]
    named = re.findall(r"'\.\[(\w+)\]'", section)
    assert set(named) == set(metadata("rollout-control").get_all("Provides-Extra") or ())


def test_the_table_of_subcommands_has_each_of_them() -> None:
    rows = rows_of_table("| subcommand | what it does | needs the extra |")
    assert sorted(name.strip("`") for name, _, _ in rows) == sorted(rollout_control.commands)


def test_every_link_leads_to_a_file() -> None:
    targets = re.findall(r"\]\(([^):#]+)[^)]*\)", README.read_text())
    assert len(targets) >= 6
    for target in targets:
        assert (README.parent / target).is_file(), target


def test_the_two_commands_stand_on_the_first_screen() -> None:
    first_screen = README.read_text().splitlines()[:45]
    commands = [line for line in first_screen if line.startswith("python3 -m venv .venv && ")]
    assert [command.rpartition("/")[2] for command in commands] == ["rollout-control demo", "nox -s tests"]


@pytest.mark.parametrize("block", blocks("console"))
def test_a_command_is_one_line(block: str) -> None:
    assert len(block.strip().splitlines()) == 1
