"""Records the rows that a contract check asks for in a ledger that several processes share.

It is a record command for `rollout-control check`:

    rollout-control check URL --record-command "python -m rollout_control_server.record_rows sqlite:///PATH"

Without the argument, the ledger's URL is read from the environment variable ROLLOUT_CONTROL_LEDGER, so that a password
in it is on no command line.
"""

import argparse
import asyncio
import json
import os
import sys
from typing import Any

import msgspec
from rollout_control_spec import LEDGER_VARIABLE

from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.records import CallRecord, CaptureCommit

__all__ = ["record_rows"]


async def record_rows(ledger: CaptureLedger, rollout_id: str, rows: list[dict[str, Any]]) -> None:
    """Records what a check asks for.

    Args:
        ledger: The ledger of the server under check.
        rollout_id: The rollout.
        rows: Records and failures, as the check writes them to a record command: see `rollout_control_check.recorder`.
    """
    for row in rows:
        if "record" in row:
            record = msgspec.convert(row["record"], CallRecord)
            further = {name: value for name, value in row["record"].items() if name not in CallRecord.__struct_fields__}
            await ledger.record(CaptureCommit(rollout_id, record, tuple(row["staging_chain"]), further_fields=further))
        else:
            await ledger.record_failure(rollout_id, **row["failure"])


async def _record_standard_input(ledger_url: str) -> None:
    async with open_ledger(ledger_url, create=False) as ledger:
        await record_rows(ledger, **json.load(sys.stdin))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m rollout_control_server.record_rows", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("ledger_url", nargs="?", default=os.environ.get(LEDGER_VARIABLE))
    ledger_url = parser.parse_args().ledger_url
    if not ledger_url:
        parser.error(f"give the ledger's URL, or set {LEDGER_VARIABLE}")
    asyncio.run(_record_standard_input(ledger_url))
