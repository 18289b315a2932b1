"""The demo's model server: a process that writes ledgers and serves the control plane over them.

It reads commands from its standard input, one JSON object a line, and answers each with a line on its standard output.
Its first line says where it listens. The protocol has no operation that writes, so the demo needs these:

- `{"record": [FIRST, LAST]}`: record the run's rollouts of these numbers, LAST excluded.
- `{"late": NUMBER}`: record the rollout's last call once more, as a client's retry does.
"""

import asyncio
import json
import os
import sys
from typing import Any

from rollout_control_server.app import create_app
from rollout_control_server.errors import LedgerError
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.serving import run_server
from rollout_control_spec import AUTH_TOKEN_VARIABLE

from rollout_control_console.demo.rollouts import demo_rollout


async def run_command(ledger: CaptureLedger, run: str, command: dict[str, Any]) -> dict[str, int]:
    """Runs one command, and returns how many rows the ledger kept and discarded."""
    kept: list[bool] = []
    if "late" in command:
        kept.append(await ledger.record(demo_rollout(run, command["late"]).commits[-1]))
    else:
        for number in range(*command["record"]):
            rollout = demo_rollout(run, number)
            kept += [await ledger.record(commit) for commit in rollout.commits]
            kept += [
                await ledger.record_failure(rollout.rollout_id, failure.model_call_id, failure.reason)
                for failure in rollout.failures
            ]
    return {"kept": kept.count(True), "discarded": kept.count(False)}


async def run_commands_of_standard_input(ledger: CaptureLedger, run: str) -> None:
    """Runs commands until standard input ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await run_command(ledger, run, json.loads(line))), flush=True)


def main(ledger_url: str, run: str) -> None:
    """Serves and writes until standard input ends."""
    try:
        ledger = open_ledger(ledger_url)
        run_server(
            create_app(ledger, os.environ[AUTH_TOKEN_VARIABLE]),
            "127.0.0.1",
            0,
            on_listening=lambda address: print(json.dumps({"address": address}), flush=True),
            ledger=ledger,
            until=lambda: run_commands_of_standard_input(ledger, run),
        )
    except (LedgerError, ValueError, ModuleNotFoundError) as error:
        sys.exit(f"the ledger cannot be opened: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
