"""Gym's client against our server, and ours against Gym's."""

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import msgspec
import pytest
from fastapi import FastAPI
from gym_model_server import TOKEN, gym_http_client, serving
from nemo_gym.token_id_capture import control_routes as gym_routes
from nemo_gym.token_id_capture.lineage import FileLineageStore
from peer_vectors import CASES, manifest_of, rollout_of, write_into_gyms, write_into_ours
from rollout_control_client import RequestFailedError, RolloutControlClient
from rollout_control_server import LedgerUnavailableError, MemoryLedger, create_app


class SometimesDown(MemoryLedger):
    down = False

    async def _manifest(self, rollout_id: str) -> bytes:
        if self.down:
            raise LedgerUnavailableError("the storage is down")
        return await super()._manifest(rollout_id)


@pytest.fixture
async def ours() -> AsyncGenerator[tuple[str, SometimesDown], None]:
    ledger = SometimesDown()
    async with serving(create_app(ledger, TOKEN)) as base_url:
        yield base_url, ledger


@pytest.fixture
async def gyms(tmp_path: Path) -> AsyncGenerator[tuple[str, FileLineageStore], None]:
    store = FileLineageStore(tmp_path / "gym")
    app = FastAPI()
    gym_routes.install_rollout_control_routes(app, store, auth_token=TOKEN)
    async with serving(app) as base_url:
        yield base_url, store


@pytest.fixture
async def gym_client() -> AsyncGenerator[Callable[..., gym_routes.RolloutControlClient], None]:
    async with gym_http_client():
        yield lambda base_url, token=TOKEN: gym_routes.RolloutControlClient(
            base_url, auth_token=token, request_timeout_s=20
        )


GymClient = Callable[..., gym_routes.RolloutControlClient]
Connect = Callable[..., RolloutControlClient]


@pytest.mark.parametrize("case", CASES)
async def test_gyms_client_reads_our_server(case: str, ours: tuple[str, SometimesDown], gym_client: GymClient) -> None:
    base_url, ledger = ours
    await write_into_ours(ledger, case)
    manifest = await gym_client(base_url).manifest(rollout_of(case))
    assert json.dumps(manifest.model_dump(mode="json")) == json.dumps(json.loads(manifest_of(case)))


@pytest.mark.parametrize("case", CASES)
async def test_our_client_reads_gyms_server(case: str, gyms: tuple[str, FileLineageStore], connect: Connect) -> None:
    base_url, store = gyms
    await write_into_gyms(store, case)
    manifest = await connect(base_url).manifest(rollout_of(case))
    assert json.dumps(json.loads(msgspec.json.encode(manifest))) == json.dumps(json.loads(manifest_of(case)))


async def test_gyms_client_is_told_of_errors_by_our_server(
    ours: tuple[str, SometimesDown], gym_client: GymClient
) -> None:
    base_url, ledger = ours
    with pytest.raises(RuntimeError, match=r"HTTP 401 .*Bearer TOKEN"):
        await gym_client(base_url, "another-token").manifest("r")
    with pytest.raises(RuntimeError, match=r"HTTP 400 .*invalid rollout id"):
        await gym_client(base_url).manifest("no such:id")
    await ledger.retire(["r"])
    with pytest.raises(RuntimeError, match=r"HTTP 410 .*retired"):
        await gym_client(base_url).manifest("r")
    ledger.down = True
    with pytest.raises(RuntimeError, match=r"HTTP 503 .*try again"):
        await gym_client(base_url).manifest("other")


async def test_our_client_is_told_of_errors_by_gyms_server(
    gyms: tuple[str, FileLineageStore], connect: Connect, tmp_path: Path
) -> None:
    base_url, store = gyms
    with pytest.raises(RequestFailedError, match="missing or invalid control-plane bearer token") as unauthorized:
        await connect(base_url, "another-token").manifest("r")
    assert unauthorized.value.status == 401
    client = connect(base_url)
    for remove in (client.retire, client.delete):
        with pytest.raises(RequestFailedError, match="Not Found") as unknown:
            await remove(["r"])
        assert unknown.value.status == 404
    await write_into_gyms(store, "linear-3")
    (tmp_path / "gym" / "linear-3.lineage.jsonl").write_text('{"model_call_id":"torn')
    with pytest.raises(RequestFailedError) as damaged:
        await connect(base_url).manifest("linear-3")
    # Gym takes damaged JSON for the caller's fault.
    assert damaged.value.status == 400
