"""The demo's model server: a process that writes ledgers and serves the control plane over them.

It is told what to write on its standard input, one JSON object a line, and answers each with a line on its standard
output; the first line says where it listens. The protocol has no route for writing, in a demo neither.

- `{"record": [FIRST, LAST]}`: record the run's rollouts of these numbers, LAST excluded.
- `{"late": NUMBER}`: send the rollout's last call once more, as a client's retry does.
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


async def write(ledger: CaptureLedger, run: str, command: dict[str, Any]) -> dict[str, int]:
    """Carries out one command and counts the rows that the ledger kept and discarded."""
    rows: list[bool] = []
    if "late" in command:
        rows.append(await ledger.record(demo_rollout(run, command["late"]).commits[-1]))
    else:
        for number in range(*command["record"]):
            rollout = demo_rollout(run, number)
            rows += [await ledger.record(commit) for commit in rollout.commits]
            rows += [
                await ledger.record_failure(rollout.rollout_id, failure.model_call_id, failure.reason)
                for failure in rollout.failures
            ]
    return {"kept": rows.count(True), "discarded": rows.count(False)}


async def write_what_is_told(ledger: CaptureLedger, run: str) -> None:
    """Carries out the commands of standard input until it ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await write(ledger, run, json.loads(line))), flush=True)


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
            until=lambda: write_what_is_told(ledger, run),
        )
    except (LedgerError, ValueError, ModuleNotFoundError) as error:
        sys.exit(f"the ledger cannot be opened: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
