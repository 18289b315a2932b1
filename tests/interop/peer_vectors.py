"""The peer's vectors (`tests/peer_vectors/README.md`), written into Gym's ledgers and into ours."""

import json
from pathlib import Path
from typing import Any

import msgspec
from nemo_gym.token_id_capture.staging import records as gyms
from rollout_control_server import CallRecord, CaptureCommit, CaptureLedger

VECTORS = Path(__file__).parents[1] / "peer_vectors"
CASES = sorted(path.name.removesuffix(".manifest.json") for path in VECTORS.glob("*.manifest.json"))


def rollout_of(case: str) -> str:
    return str(json.loads(manifest_of(case))["rollout_id"])


def manifest_of(case: str) -> bytes:
    return (VECTORS / f"{case}.manifest.json").read_bytes()


async def write_into_gyms(ledger: Any, case: str) -> None:
    for operation in _operations(case):
        if operation["op"] == "record_failure":
            await ledger.record_failure(operation["rollout_id"], operation["model_call_id"], operation["reason"])
        else:
            commit = gyms.CaptureLedgerCommit(
                rollout_id=operation["rollout_id"],
                record=gyms.CallRecord(**operation["record"]),
                staging_chain=tuple(operation["staging_chain"]),
                request_items=[],
                response_items=[],
            )
            await ledger.record(commit)


async def write_into_ours(ledger: CaptureLedger, case: str) -> None:
    for operation in _operations(case):
        if operation["op"] == "record_failure":
            await ledger.record_failure(operation["rollout_id"], operation["model_call_id"], operation["reason"])
        else:
            record = msgspec.convert(operation["record"], CallRecord)
            chain = tuple(operation["staging_chain"])
            await ledger.record(CaptureCommit(operation["rollout_id"], record, chain))


def _operations(case: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (VECTORS / f"{case}.ops.jsonl").read_text().splitlines()]
