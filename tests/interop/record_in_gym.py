"""A record command for `rollout-control check`, of a server on Gym's own ledger: `python record_in_gym.py FOLDER`."""

import asyncio
import json
import sys
from typing import Any

from nemo_gym.token_id_capture.lineage import FileLineageStore
from nemo_gym.token_id_capture.staging.records import CallRecord, CaptureLedgerCommit


async def record(ledger: FileLineageStore, rollout_id: str, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if "record" in row:
            await ledger.record(
                CaptureLedgerCommit(
                    rollout_id=rollout_id,
                    record=CallRecord(**row["record"]),
                    staging_chain=tuple(row["staging_chain"]),
                    request_items=[],
                    response_items=[],
                )
            )
        else:
            await ledger.record_failure(rollout_id, **row["failure"])


if __name__ == "__main__":
    asyncio.run(record(FileLineageStore(sys.argv[1]), **json.load(sys.stdin)))
