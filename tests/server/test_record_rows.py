"""`python -m rollout_control_server.record_rows`, the record command for ledgers of ours."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rollout_control_server import RolloutManifest
from rollout_control_server.ledger import SqliteLedger
from rollout_control_spec.samples import sample_calls

ROWS = [*sample_calls("r", 3), {"failure": {"model_call_id": "failed", "reason": "worker_capture_failed"}}]


def record_rows(*arguments: str, ledger_url: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "ROLLOUT_CONTROL_LEDGER"}
    if ledger_url is not None:
        environment["ROLLOUT_CONTROL_LEDGER"] = ledger_url
    return subprocess.run(
        [sys.executable, "-m", "rollout_control_server.record_rows", *arguments],
        input=json.dumps({"rollout_id": "r", "rows": ROWS}),
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("in_environment", [False, True])
def test_rows_are_recorded_in_the_ledger_of_the_argument_or_of_the_environment(
    tmp_path: Path, in_environment: bool
) -> None:
    path = tmp_path / "ledger.sqlite"
    asyncio.run(SqliteLedger(path).aclose())
    url = f"sqlite:///{path}"
    ended = record_rows(ledger_url=url) if in_environment else record_rows(url, ledger_url="sqlite:////no/such/file")
    assert ended.returncode == 0, ended.stderr

    async def read() -> RolloutManifest:
        async with SqliteLedger(path) as ledger:
            return msgspec.json.decode(await ledger.manifest("r"), type=RolloutManifest)

    manifest = asyncio.run(read())
    assert [msgspec.to_builtins(record) for record in manifest.records] == [row["record"] for row in ROWS[:3]]
    assert [failure.model_call_id for failure in manifest.failures] == ["failed"]


def test_without_a_ledger_it_says_what_to_give() -> None:
    ended = record_rows()
    assert ended.returncode == 2
    assert "ROLLOUT_CONTROL_LEDGER" in ended.stderr


def test_it_makes_no_ledger(tmp_path: Path) -> None:
    ended = record_rows(f"sqlite:///{tmp_path}/typo.sqlite")
    assert ended.returncode != 0
    assert list(tmp_path.iterdir()) == []
