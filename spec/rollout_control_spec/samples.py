"""Made-up model calls that look like real ones: for the contract check, the demo, tests and benchmarks.

A call is a dictionary with the keys `record`, the CallRecord as JSON values, and `staging_chain`, the staging keys from
the root to this call. All values follow from the arguments, so the same arguments make the same call.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

__all__ = ["sample_call", "sample_calls"]


def sample_call(
    rollout_id: str,
    model_call_id: str,
    parent: Mapping[str, Any] | None = None,
    *,
    delta_len: int = 57,
    weight_version: int = 3,
    fields: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Returns one call, a root or the child of another call.

    Args:
        rollout_id: The rollout of the call.
        model_call_id: The call.
        parent: The call that it continues; None makes a root.
        delta_len: Tokens that the call adds.
        weight_version: The version of the weights that generated it.
        fields: Values of the record's fields that replace the made-up ones.
    """

    def digest(field: str) -> str:
        return hashlib.sha256(f"{rollout_id}/{model_call_id}/{field}".encode()).hexdigest()

    prev_len = 0 if parent is None else parent["record"]["cum_len"]
    record = {
        "schema_version": 2,
        "digest_version": 2,
        "extras_digest_version": 1,
        "model_call_id": model_call_id,
        "parent_call_id": None if parent is None else parent["record"]["model_call_id"],
        "prev_len": prev_len,
        "delta_len": delta_len,
        "cum_len": prev_len + delta_len,
        "weight_version": weight_version,
        "digest": digest("digest"),
        "extras_digest": hashlib.sha256(b"no extras").hexdigest(),
        "staging_key": f"{rollout_id}/{model_call_id}",
        "mode": "text" if parent is None else "token_in",
        "chain_hash": digest("chain"),
        "cumulative_hash": digest("cumulative"),
        "response_id": f"chatcmpl-{digest('response')[:32]}",
        "admitted_at": 1764450000.0 + prev_len / 64,
        "output_fingerprint": digest("output"),
        "continuation_fingerprint": digest("continuation"),
        "fingerprint_version": 2,
        **(fields or {}),
    }
    return {
        "record": record,
        "staging_chain": [*(() if parent is None else parent["staging_chain"]), record["staging_key"]],
    }


def sample_calls(rollout_id: str, calls: int, *, branch_at: int | None = None) -> list[dict[str, Any]]:
    """Returns the calls of an agent's conversation, each the child of the one before.

    Args:
        rollout_id: The rollout of the calls.
        calls: How many there are.
        branch_at: The index of a call that takes the same parent as the one before it, as a retry does.
    """
    conversation: list[dict[str, Any]] = []
    for index in range(calls):
        parent = conversation[-1] if conversation else None
        if index == branch_at and index > 1:
            parent = conversation[-2]
        call_id = hashlib.md5(f"{rollout_id}#{index}".encode(), usedforsecurity=False).hexdigest()
        conversation.append(sample_call(rollout_id, call_id, parent, delta_len=40 + index % 32))
    return conversation
