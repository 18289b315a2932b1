"""Made-up model calls as commits that a ledger takes: for the demo, for tests and for benchmarks.

The values are those of `rollout_control_spec.samples`: the same arguments make the same call.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from rollout_control_spec.samples import sample_call, sample_calls

from rollout_control_server.records import CallRecord, CaptureCommit, ParentLookup

__all__ = ["changed", "sample_commit", "sample_conversation"]


def sample_commit(
    rollout_id: str,
    model_call_id: str,
    parent: CaptureCommit | None = None,
    *,
    delta_len: int = 57,
    weight_version: int = 3,
) -> CaptureCommit:
    """Returns a commit of one call, a root or the child of another commit.

    Args:
        rollout_id: The rollout of the call.
        model_call_id: The call.
        parent: The call that it continues; None makes a root.
        delta_len: Tokens that the call adds.
        weight_version: The version of the weights that generated it.
    """
    continued = None
    if parent is not None:
        continued = {
            "record": {"model_call_id": parent.record.model_call_id, "cum_len": parent.record.cum_len},
            "staging_chain": parent.staging_chain,
        }
    call = sample_call(rollout_id, model_call_id, continued, delta_len=delta_len, weight_version=weight_version)
    return _commit(rollout_id, call)


def sample_conversation(rollout_id: str, calls: int, *, branch_at: int | None = None) -> list[CaptureCommit]:
    """Returns the commits of an agent's conversation, each call the child of the one before.

    Args:
        rollout_id: The rollout of the calls.
        calls: How many there are.
        branch_at: The index of a call that takes the same parent as the one before it, as a retry does.
    """
    return [_commit(rollout_id, call) for call in sample_calls(rollout_id, calls, branch_at=branch_at)]


def _commit(rollout_id: str, call: Mapping[str, Any]) -> CaptureCommit:
    record = CallRecord(**call["record"])
    context = f"{rollout_id}/{record.model_call_id}/context"
    lookup = ParentLookup(
        fingerprint=str(record.continuation_fingerprint),
        context_len=1 if record.parent_call_id is None else record.prev_len // record.delta_len * 2 + 1,
        context_digest=hashlib.sha256(context.encode()).hexdigest(),
    )
    return CaptureCommit(rollout_id, record, tuple(call["staging_chain"]), lookup)


def changed(commit: CaptureCommit, **fields: object) -> CaptureCommit:
    """Returns the commit with other values in fields of its record."""
    return msgspec.structs.replace(commit, record=msgspec.structs.replace(commit.record, **fields))
