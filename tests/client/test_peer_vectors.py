"""The client reads every body that the peer sent (`tests/peer_vectors/README.md`)."""

import json
from pathlib import Path

import httpx
import msgspec
import pytest
from rollout_control_client import RolloutControlClient

VECTORS = Path(__file__).parents[1] / "peer_vectors"
CASES = sorted(path.name.removesuffix(".manifest.json") for path in VECTORS.glob("*.manifest.json"))


def test_there_are_vectors() -> None:
    assert len(CASES) == 8


@pytest.mark.parametrize("case", CASES)
async def test_the_client_reads_the_body_whole(case: str) -> None:
    body = (VECTORS / f"{case}.manifest.json").read_bytes()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))

    async with RolloutControlClient("http://control.test", "token", 5, transport=transport) as client:
        manifest = await client.manifest(json.loads(body)["rollout_id"])

    # Encoded again, it is the same value with the fields in the same order.
    assert json.dumps(json.loads(msgspec.json.encode(manifest))) == json.dumps(json.loads(body))


async def test_a_field_that_newer_records_have() -> None:
    body = json.loads((VECTORS / "branch.manifest.json").read_bytes())
    body["records"][0] |= {"capture_key": "branch-a1", "a_field_of_next_year": {"deep": [1]}}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=body))

    async with RolloutControlClient("http://control.test", "token", 5, transport=transport) as client:
        manifest = await client.manifest("branch")

    assert [record.capture_key for record in manifest.records] == ["branch-a1", *[None] * (len(manifest.records) - 1)]
