"""Gym's own ledger, unmodified, behind the control routes of ours."""

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from gym_model_server import TOKEN, serving
from nemo_gym.token_id_capture import control_routes as gym_routes
from nemo_gym.token_id_capture.lineage import FileLineageStore
from peer_vectors import CASES, manifest_of, rollout_of, write_into_gyms
from rollout_control_server import install_rollout_control_routes

PREFIX = "/training-token-capture/control"

Serve = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
def store(tmp_path: Path) -> FileLineageStore:
    return FileLineageStore(tmp_path / "gym")


@pytest.fixture
async def serve() -> AsyncGenerator[Serve, None]:
    """`await serve(ledger)` serves a ledger through our routes, or Gym's, and gives a client that has the token."""
    async with AsyncExitStack() as stack:

        async def start(
            ledger: Any, install: Callable[..., None] = install_rollout_control_routes
        ) -> httpx.AsyncClient:
            app = FastAPI()
            install(app, ledger, auth_token=TOKEN)
            base_url = await stack.enter_async_context(serving(app))
            headers = {"Authorization": f"Bearer {TOKEN}"}
            return await stack.enter_async_context(httpx.AsyncClient(base_url=f"{base_url}{PREFIX}", headers=headers))

        yield start


@pytest.mark.parametrize("case", CASES)
async def test_its_manifests_are_those_of_its_own_route(case: str, store: FileLineageStore, serve: Serve) -> None:
    await write_into_gyms(store, case)
    through_ours = await serve(store)
    through_gyms = await serve(store, gym_routes.install_rollout_control_routes)
    path = f"/rollouts/{rollout_of(case)}/manifest"
    ours, gyms = await through_ours.get(path), await through_gyms.get(path)
    assert (ours.status_code, gyms.status_code) == (200, 200)
    # Compared as text, so that the order of the fields counts.
    assert json.dumps(ours.json()) == json.dumps(gyms.json()) == json.dumps(json.loads(manifest_of(case)))


@pytest.mark.parametrize("operation", ["retire", "delete"])
async def test_what_the_released_store_lacks_is_501_with_a_reason(
    operation: str, store: FileLineageStore, serve: Serve
) -> None:
    await write_into_gyms(store, "linear-3")
    client = await serve(store)
    answer = await client.post(f"/rollouts/{operation}", json={"rollout_ids": ["linear-3"]})
    assert answer.status_code == 501
    assert operation in answer.json()["detail"]
    assert len((await client.get("/rollouts/linear-3/manifest")).json()["records"]) == 3


class RolloutRetiredError(LookupError):
    """As releases of Gym after 0.7.0 have it."""


class RemovingStore(FileLineageStore):
    """Gym's store with the operations of the releases after 0.7.0, which return plain dicts."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fenced: set[str] = set()

    async def manifest(self, rollout_id: str) -> dict[str, Any]:
        if rollout_id in self.fenced:
            raise RolloutRetiredError(rollout_id)
        return await super().manifest(rollout_id)

    async def retire(self, rollout_ids: Sequence[str]) -> dict[str, list[str]]:
        removal = await self.delete(rollout_ids)
        self.fenced.update(rollout_ids)
        return removal

    async def delete(self, rollout_ids: Sequence[str]) -> dict[str, list[str]]:
        had_rows = {rollout_id: await self.has_rows(rollout_id) for rollout_id in rollout_ids}
        for rollout_id in rollout_ids:
            self._ledger_path(rollout_id).unlink(missing_ok=True)
            self.fenced.discard(rollout_id)
        return {
            "removed": [rollout_id for rollout_id in rollout_ids if had_rows[rollout_id]],
            "absent": [rollout_id for rollout_id in rollout_ids if not had_rows[rollout_id]],
        }


async def test_retire_and_delete_work_at_once_on_a_store_that_has_them(tmp_path: Path, serve: Serve) -> None:
    store = RemovingStore(tmp_path / "gym")
    await write_into_gyms(store, "linear-3")
    client = await serve(store)
    body = {"rollout_ids": ["linear-3", "never", "linear-3"]}
    removal = {"removed": ["linear-3"], "absent": ["never"]}
    assert (await client.post("/rollouts/retire", json=body)).json() == removal
    assert (await client.get("/rollouts/linear-3/manifest")).status_code == 410
    removal = {"removed": [], "absent": ["linear-3", "never"]}
    assert (await client.post("/rollouts/delete", json=body)).json() == removal
    assert (await client.get("/rollouts/linear-3/manifest")).json()["records"] == []


def tear_the_last_line(lines: list[str]) -> list[str]:
    return [*lines[:-1], lines[-1][: len(lines[-1]) // 2]]


def put_rubbish_in_the_middle(lines: list[str]) -> list[str]:
    return [lines[0], "\x00\x00 no JSON\n", *lines[1:]]


def put_a_number_in_the_middle(lines: list[str]) -> list[str]:
    return [lines[0], "17\n", *lines[1:]]


def lose_a_field(lines: list[str]) -> list[str]:
    row = json.loads(lines[1])
    del row["staging_digest"]
    return [lines[0], json.dumps(row) + "\n", *lines[2:]]


def break_a_field(lines: list[str]) -> list[str]:
    return [lines[0].replace('"delta_len":', '"delta_len":9'), *lines[1:]]


@pytest.mark.parametrize(
    "damage",
    [tear_the_last_line, put_rubbish_in_the_middle, put_a_number_in_the_middle, lose_a_field, break_a_field],
)
async def test_a_damaged_ledger_file_is_the_servers_fault(
    damage: Callable[[list[str]], list[str]],
    store: FileLineageStore,
    serve: Serve,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await write_into_gyms(store, "linear-3")
    file = tmp_path / "gym" / "linear-3.lineage.jsonl"
    file.write_text("".join(damage(file.read_text().splitlines(keepends=True))))
    client = await serve(FileLineageStore(tmp_path / "gym"))
    with caplog.at_level(logging.ERROR):
        answer = await client.get("/rollouts/linear-3/manifest")
    assert answer.status_code == 500
    assert str(tmp_path) not in answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    # The log has what the caller is not told.
    assert any(record.exc_info for record in caplog.records)


async def test_storage_that_is_gone_is_unavailable(tmp_path: Path, store: FileLineageStore, serve: Serve) -> None:
    client = await serve(store)
    (tmp_path / "gym").rmdir()
    answer = await client.get("/rollouts/linear-3/manifest")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_an_id_that_is_too_long_for_its_files_is_the_callers_fault(store: FileLineageStore, serve: Serve) -> None:
    client = await serve(store)
    assert (await client.get(f"/rollouts/{'r' * 255}/manifest")).status_code == 400
