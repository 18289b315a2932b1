"""Calls as Gym's external capture hands them to a ledger."""

import hashlib
from typing import Any

from nemo_gym.token_id_capture.protocols import LineageMatch
from nemo_gym.token_id_capture.staging.records import CallRecord, CaptureLedgerCommit

Item = dict[str, Any]

ROLLOUT = "rollout-1"
USER: Item = {"role": "user", "content": "hello"}


def gym_commit(
    number: int,
    request_items: list[Item],
    response_items: list[Item],
    parent: LineageMatch | None = None,
    *,
    rollout_id: str = ROLLOUT,
    record_type: type[CallRecord] = CallRecord,
    **changed: Any,
) -> CaptureLedgerCommit:
    """What Gym's external capture hands a ledger for a call that a worker has staged."""

    def digest(field: str) -> str:
        return hashlib.sha256(f"{number}/{field}".encode()).hexdigest()

    key = f"{rollout_id}/call-{number}"
    prev_len = 0 if parent is None else parent.prev_len
    record = record_type(
        model_call_id=f"call-{number}",
        parent_call_id=None if parent is None else parent.model_call_id,
        prev_len=prev_len,
        delta_len=number + 1,
        cum_len=prev_len + number + 1,
        weight_version=3,
        digest=digest("digest"),
        extras_digest=digest("extras"),
        staging_key=key,
        mode="text" if parent is None else "token_in",
        chain_hash=digest("chain"),
        cumulative_hash=digest("cumulative"),
        response_id=f"chatcmpl-{number}",
        admitted_at=1764450000.0 + number,
        **({"fingerprint_version": 2} | changed),
    )
    chain = (*(() if parent is None else parent.staging_chain), key)
    return CaptureLedgerCommit(
        rollout_id=rollout_id,
        record=record,
        staging_chain=chain,
        request_items=request_items,
        response_items=response_items,
    )


async def converse(ledger: Any, rollout_id: str, calls: int, record_type: type[CallRecord] = CallRecord) -> list[Item]:
    """Records a conversation, and returns the items of the request that continues it."""
    items = [USER]
    for number in range(calls):
        match = (await ledger.resolve(rollout_id, items)).match
        answer = {"role": "assistant", "content": f"answer {number}"}
        commit = gym_commit(number, items, [answer], match, rollout_id=rollout_id, record_type=record_type)
        await ledger.record(commit)
        items = [*items, answer, {"role": "user", "content": f"question {number}"}]
    return items
