"""A ready record command for servers on a ledger of ours that several processes share.

rollout-control check URL --record-command "python -m rollout_control_server.check.record_rows sqlite:///PATH"
"""

import asyncio
import json
import sys

import msgspec

from rollout_control_server.check.recorder import Row
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.records import CallRecord, CaptureCommit

__all__ = ["record_rows"]


async def record_rows(ledger: CaptureLedger, rollout_id: str, rows: list[Row]) -> None:
    """Records what a check asks for.

    Args:
        ledger: The server's ledger.
        rollout_id: The rollout.
        rows: Records and failures; see `rollout_control_server.check.recorder`.
    """
    for row in rows:
        if "record" in row:
            record = msgspec.convert(row["record"], CallRecord)
            await ledger.record(CaptureCommit(rollout_id, record, tuple(row["staging_chain"])))
        else:
            await ledger.record_failure(rollout_id, **row["failure"])


async def _main(ledger_url: str) -> None:
    async with open_ledger(ledger_url, create=False) as ledger:
        await record_rows(ledger, **json.load(sys.stdin))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
