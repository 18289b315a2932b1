"""A ready record command for servers on a ledger of ours that several processes share.

rollout-control check URL --record-command "python -m rollout_control_server.check.record_rows sqlite:///PATH"
"""

import asyncio
import json
import sys
from typing import Any

import msgspec

from rollout_control_server.ledger import open_ledger
from rollout_control_server.records import CallRecord, CaptureCommit

__all__ = ["record_rows"]


async def record_rows(ledger_url: str, told: dict[str, Any]) -> None:
    """Records what a check asks for, in the ledger that a URL names.

    Args:
        ledger_url: A ledger that the server has open too.
        told: `rollout_id` and `rows`; see `rollout_control_server.check.recorder`.
    """
    async with open_ledger(ledger_url) as ledger:
        for row in told["rows"]:
            if "record" in row:
                record = msgspec.convert(row["record"], CallRecord)
                await ledger.record(CaptureCommit(told["rollout_id"], record, tuple(row["staging_chain"])))
            else:
                await ledger.record_failure(told["rollout_id"], **row["failure"])


if __name__ == "__main__":
    asyncio.run(record_rows(sys.argv[1], json.load(sys.stdin)))
