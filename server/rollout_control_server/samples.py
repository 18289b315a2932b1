"""Made-up model calls that look like real ones, for the demo, for tests and for benchmarks.

Everything follows from the names that are given, so that the same names make the same call.
"""

import hashlib

import msgspec

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

    def digest(field: str) -> str:
        return hashlib.sha256(f"{rollout_id}/{model_call_id}/{field}".encode()).hexdigest()

    prev_len = 0 if parent is None else parent.record.cum_len
    staging_key = f"{rollout_id}/{model_call_id}"
    record = CallRecord(
        model_call_id=model_call_id,
        parent_call_id=None if parent is None else parent.record.model_call_id,
        prev_len=prev_len,
        delta_len=delta_len,
        cum_len=prev_len + delta_len,
        weight_version=weight_version,
        digest=digest("digest"),
        extras_digest=hashlib.sha256(b"no extras").hexdigest(),
        staging_key=staging_key,
        mode="text" if parent is None else "token_in",
        chain_hash=digest("chain"),
        cumulative_hash=digest("cumulative"),
        response_id=f"chatcmpl-{digest('response')[:32]}",
        admitted_at=1764450000.0 + prev_len / 64,
        output_fingerprint=digest("output"),
        continuation_fingerprint=digest("continuation"),
        fingerprint_version=2,
    )
    return CaptureCommit(
        rollout_id,
        record,
        (*(() if parent is None else parent.staging_chain), staging_key),
        ParentLookup(digest("continuation"), 1 if parent is None else prev_len // delta_len * 2 + 1, digest("context")),
    )


def sample_conversation(rollout_id: str, calls: int, *, branch_at: int | None = None) -> list[CaptureCommit]:
    """Returns the commits of an agent's conversation, each call the child of the one before.

    Args:
        rollout_id: The rollout of the calls.
        calls: How many there are.
        branch_at: The index of a call that takes the same parent as the one before it, as a retry does.
    """
    commits: list[CaptureCommit] = []
    for index in range(calls):
        parent = commits[-1] if commits else None
        if index == branch_at and index > 1:
            parent = commits[-2]
        call_id = hashlib.md5(f"{rollout_id}#{index}".encode(), usedforsecurity=False).hexdigest()
        commits.append(sample_commit(rollout_id, call_id, parent, delta_len=40 + index % 32))
    return commits


def changed(commit: CaptureCommit, **fields: object) -> CaptureCommit:
    """Returns the commit with other values in fields of its record."""
    return msgspec.structs.replace(commit, record=msgspec.structs.replace(commit.record, **fields))
