"""A control plane whose ledger fills while it is fuzzed: the spec's example rollouts are recorded again and again.

Run as `python recording_server.py LEDGER_URL`; it prints its base URL, and serves until its standard input ends.
"""

import asyncio
import contextlib
import os
import sys

from rollout_control_server.app import create_app
from rollout_control_server.errors import LedgerConflictError
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.samples import sample_conversation
from rollout_control_server.serving import run_server
from rollout_control_spec import AUTH_TOKEN_VARIABLE

ROLLOUTS = ("train-0007.sample-3", "train-0007.sample-4", "0", "a")


async def record_until_input_ends(ledger: CaptureLedger) -> None:
    input_ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    while not input_ended.done():
        for rollout_id in ROLLOUTS:
            for commit in sample_conversation(rollout_id, 4):
                with contextlib.suppress(LedgerConflictError):
                    await ledger.record(commit)
            await ledger.record_failure(rollout_id, "failed", "worker_capture_failed")
        await asyncio.wait([input_ended], timeout=0.05)


def main(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    app = create_app(ledger, os.environ[AUTH_TOKEN_VARIABLE])
    run_server(
        app,
        "127.0.0.1",
        0,
        on_listening=lambda base_url: print(base_url, flush=True),
        until=lambda: record_until_input_ends(ledger),
    )


if __name__ == "__main__":
    main(sys.argv[1])
