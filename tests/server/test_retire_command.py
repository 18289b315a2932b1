"""`rollout-control retire`: on a server and on a ledger."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rollout_control_console.cli import rollout_control
from rollout_control_server import CaptureLedger, MemoryLedger, create_app
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.results import IdleRemoval, LedgerRow, RolloutExport
from rollout_control_server.samples import sample_conversation
from served import TOKEN, serving

TWO_HOURS = 7200.0


async def fill(ledger: CaptureLedger, rollouts: dict[str, float]) -> None:
    """Gives each rollout two calls, so many seconds ago."""
    for rollout_id, age in rollouts.items():
        for commit in sample_conversation(rollout_id, 2):
            await ledger.record(commit)
        rows = [LedgerRow(row, time.time() - age) for row, _ in (await ledger.export(rollout_id)).rows]
        await ledger.import_([RolloutExport(rollout_id, None, rows)])


ROLLOUTS = {"run-7.a": TWO_HOURS, "run-7.b": 0, "run-7.c": TWO_HOURS, "run-8.a": TWO_HOURS}


def retire(*arguments: str, **environment: str | None) -> Result:
    return CliRunner(env={"ROLLOUT_CONTROL_AUTH_TOKEN": TOKEN, **environment}).invoke(
        rollout_control, ["retire", *arguments]
    )


@pytest.fixture(params=["server", "ledger"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The option that names a ledger with rollouts."""
    if request.param == "ledger":

        async def fill_file() -> None:
            async with SqliteLedger(tmp_path / "ledger.sqlite") as ledger:
                await fill(ledger, ROLLOUTS)

        asyncio.run(fill_file())
        yield "--ledger", f"sqlite:///{tmp_path / 'ledger.sqlite'}"
        return
    ledger = MemoryLedger()
    asyncio.run(fill(ledger, ROLLOUTS))
    with serving(create_app(ledger, TOKEN), lifespan="off") as base_url:
        yield "--url", base_url


def test_a_dry_run_shows_what_would_be_retired(source: tuple[str, str]) -> None:
    for _ in range(2):
        result = retire(*source, "--idle-for", "1h", "--prefix", "run-7.", "--dry-run")
        assert result.exit_code == 0, result.output
        *shown, last = result.output.splitlines()
        assert [line.split(", no row since")[0] for line in shown] == [
            "run-7.a: 2 calls, 0 failures",
            "run-7.c: 2 calls, 0 failures",
        ]
        assert last == "would retire: 2 rollouts"


def test_it_retires_them(source: tuple[str, str]) -> None:
    result = retire(*source, "--idle-for", "60m", "--prefix", "run-7.")
    assert (result.exit_code, result.output.splitlines()) == (0, ["retired: 2 rollouts"])
    again = retire(*source, "--idle-for", "60m", "--prefix", "run-7.")
    assert again.output.splitlines() == ["retired: 0 rollouts"]
    rest = retire(*source, "--idle-for", "60m", "--dry-run")
    assert [line.split(":")[0] for line in rest.output.splitlines()] == ["run-8.a", "would retire"]


def test_the_environment_names_the_source(source: tuple[str, str]) -> None:
    variable = {"--url": "ROLLOUT_CONTROL_URL", "--ledger": "ROLLOUT_CONTROL_LEDGER"}[source[0]]
    assert retire("--idle-for", "1h", "--dry-run", **{variable: source[1]}).exit_code == 0
    other = {"ROLLOUT_CONTROL_URL": "http://127.0.0.1:1", "ROLLOUT_CONTROL_LEDGER": "sqlite:////nowhere/ledger"}
    result = retire(*source, "--idle-for", "1h", "--dry-run", **other)
    assert result.exit_code == 0, "an option goes before the environment"


class Racing(MemoryLedger):
    """A ledger in which somebody else is at work between the listing and the retirement."""

    async def _retire_idle(self, rollout_ids: list[str], idle_for_s: float) -> IdleRemoval:
        await self.record_failure("run-7.a", "call", "worker_capture_failed")
        await self.delete(["run-7.c"])
        return await super()._retire_idle(rollout_ids, idle_for_s)


def test_what_changes_meanwhile_is_left_and_counted() -> None:
    ledger = Racing()
    asyncio.run(fill(ledger, ROLLOUTS))
    with serving(create_app(ledger, TOKEN), lifespan="off") as base_url:
        result = retire("--url", base_url, "--idle-for", "1h")
    assert (result.exit_code, result.output.splitlines()) == (
        0,
        [
            "retired: 1 rollouts",
            "left: 1 rollouts, which recorded a row meanwhile",
            "already gone: 1 rollouts, which somebody else removed meanwhile",
        ],
    )
    assert [entry.rollout_id for entry in asyncio.run(ledger.rollouts(state="live")).rollouts] == ["run-7.a", "run-7.b"]


def test_a_failure_midway_says_what_was_done() -> None:
    """More rollouts than one batch has, of a server that refuses the second one."""
    ledger = MemoryLedger()
    asyncio.run(fill(ledger, {f"r{number:04}": TWO_HOURS for number in range(4100)}))
    reasons = iter([None, "weights are being synchronised"])
    with serving(create_app(ledger, TOKEN, lambda: next(reasons)), lifespan="off") as base_url:
        result = retire("--url", base_url, "--idle-for", "1h")
    assert result.exit_code == 1
    assert "retired: 4,096 rollouts" in result.output
    assert "weights are being synchronised" in result.output
    assert asyncio.run(ledger.summary()).live == 4


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("--idle-for", "0s"), ("--idle-for", "6"), ("--idle-for", "-1h"), ("--idle-for", "1h", "--prefix", ""),
        ("--idle-for", "1h", "--prefix", "a/b"), ("--idle-for", "1h", "--older-than", "2h"),
    ],
)  # fmt: skip
def test_bad_options_retire_nothing(source: tuple[str, str], arguments: tuple[str, ...]) -> None:
    assert retire(*source, *arguments).exit_code == 2
    assert retire(*source, "--idle-for", "1h", "--dry-run").output.endswith("would retire: 3 rollouts\n")


def test_one_source_has_to_be_named() -> None:
    neither = retire("--idle-for", "1h", ROLLOUT_CONTROL_URL=None, ROLLOUT_CONTROL_LEDGER=None)
    assert neither.exit_code == 2
    assert "--url" in neither.output
    assert "--ledger" in neither.output
    both = retire("--idle-for", "1h", "--url", "http://127.0.0.1:1", "--ledger", "memory://")
    assert both.exit_code == 2
    named = {"ROLLOUT_CONTROL_URL": "http://127.0.0.1:1", "ROLLOUT_CONTROL_LEDGER": "memory://"}
    assert retire("--idle-for", "1h", **named).exit_code == 2


def test_sources_that_cannot_be_asked(tmp_path: Path) -> None:
    with serving(create_app(MemoryLedger(), "another-token"), lifespan="off") as base_url:
        refused = retire("--url", base_url, "--idle-for", "1h")
    assert refused.exit_code == 2
    assert "401" in refused.output
    assert TOKEN not in refused.output
    assert retire("--url", base_url, "--idle-for", "1h", ROLLOUT_CONTROL_AUTH_TOKEN=None).exit_code == 2
    assert retire("--url", "ftp://server", "--idle-for", "1h").exit_code == 2
    missing = retire("--ledger", f"sqlite:///{tmp_path / 'none.sqlite'}", "--idle-for", "1h")
    assert missing.exit_code != 0
    assert not (tmp_path / "none.sqlite").exists(), "a misspelt path makes no ledger"


def test_a_server_that_lists_nothing() -> None:
    """Such as NeMo Gym's."""

    async def without_listing(scope: Any, receive: Any, send: Any) -> None:
        answer = {"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"application/json")]}
        await send(answer)
        await send({"type": "http.response.body", "body": b'{"detail":"Not Found"}'})

    with serving(without_listing, lifespan="off") as base_url:
        result = retire("--url", base_url, "--idle-for", "1h")
    assert result.exit_code == 2
    assert "does not list rollouts" in result.output
