"""The same rows for both sides: our sample commits, and the same commits as nemo-gym takes and stores them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from nemo_gym.token_id_capture.lineage import FileLineageStore, _custody_columns
from nemo_gym.token_id_capture.staging.records import CallRecord as GymCallRecord
from nemo_gym.token_id_capture.staging.records import CaptureLedgerCommit
from rollout_control_server import CaptureCommit, CaptureLedger
from rollout_control_server.samples import sample_conversation

from bench.rounds import WrongAnswerError

Rollouts = dict[str, list[CaptureCommit]]


def sample_rollouts(name: str, end: int, calls: int, *, first: int = 0) -> Rollouts:
    ids = [f"{name}-{index:05d}" for index in range(first, end)]
    return {rollout_id: sample_conversation(rollout_id, calls) for rollout_id in ids}


def gym_record(commit: CaptureCommit) -> GymCallRecord:
    return GymCallRecord(**msgspec.to_builtins(commit.record))


def gym_commits(commits: Sequence[CaptureCommit]) -> list[CaptureLedgerCommit]:
    """Returns a conversation's commits as Gym makes them, whose requests hold all that was said before."""
    made: list[CaptureLedgerCommit] = []
    said: list[dict[str, Any]] = []
    for index, commit in enumerate(commits):
        said.append({"role": "user", "content": f"Observation {index} of {commit.rollout_id}: " + 24 * "output "})
        answer = {"role": "assistant", "content": f"Action {index} of {commit.rollout_id}: " + 24 * "thought "}
        made.append(gym_commit(commit, said, [answer]))
        said.append(answer)
    return made


def gym_commits_of_one_item(commits: Sequence[CaptureCommit]) -> list[CaptureLedgerCommit]:
    """Returns the commits with a conversation of one item each, where hashing it is not what is measured."""
    return [
        gym_commit(commit, [], [{"role": "assistant", "content": commit.record.model_call_id}]) for commit in commits
    ]


def gym_commit(
    commit: CaptureCommit, request_items: list[dict[str, Any]], response_items: list[dict[str, Any]]
) -> CaptureLedgerCommit:
    return CaptureLedgerCommit(
        rollout_id=commit.rollout_id,
        record=gym_record(commit),
        staging_chain=commit.staging_chain,
        request_items=list(request_items),
        response_items=response_items,
    )


def expected_manifest(rollout_id: str, commits: Sequence[CaptureCommit]) -> dict[str, Any]:
    records = [msgspec.to_builtins(commit.record) for commit in commits]
    return {"schema_version": 2, "rollout_id": rollout_id, "records": records, "failures": []}


def check_manifest(rollouts: Rollouts, rollout_id: str, answer: bytes | dict[str, Any]) -> None:
    manifest = answer if isinstance(answer, dict) else msgspec.json.decode(answer)
    if manifest != expected_manifest(rollout_id, rollouts[rollout_id]):
        raise WrongAnswerError(f"the manifest of {rollout_id} is not what was recorded")


async def fill_ours(ledger: CaptureLedger, rollouts: Rollouts, tasks: int = 256) -> None:
    """Records all rollouts, as many at a time as there are tasks."""
    waiting = iter(rollouts.values())

    async def record_rollouts() -> None:
        for commits in waiting:
            for commit in commits:
                await ledger.record(commit)

    await asyncio.gather(*(record_rollouts() for _ in range(tasks)))


def fill_peer(root: Path, rollouts: Rollouts) -> None:
    """Writes the files that FileLineageStore would have written, without its syncs; its own reading of one is checked.

    A setup only: nothing is measured here.
    """
    root.mkdir(parents=True, exist_ok=True)
    for rollout_id, commits in rollouts.items():
        lines = b"".join(
            json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n" for row in map(_row, commits)
        )
        (root / f"{rollout_id}.lineage.jsonl").write_bytes(lines)
    first = next(iter(rollouts))
    check_manifest(rollouts, first, asyncio.run(FileLineageStore(root).manifest(first)))


def _row(commit: CaptureCommit) -> dict[str, Any]:
    assert commit.lookup is not None
    return {
        "model_call_id": commit.record.model_call_id,
        "fingerprint": commit.lookup.fingerprint,
        "context_len": commit.lookup.context_len,
        "context_digest": commit.lookup.context_digest,
        "digest": commit.record.cumulative_hash,
        **_custody_columns(gym_record(commit), commit.staging_chain),
    }
