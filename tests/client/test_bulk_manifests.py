"""`manifests()` on a server with the bulk operation, over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from rollout_control_client import (
    ContractBrokenError,
    RolloutControlClient,
    RolloutManifest,
    RolloutRetiredError,
)
from rollout_control_server import CaptureLedger, MemoryLedger, create_app
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.samples import sample_conversation
from served import TOKEN, serving


class CountedApp:
    """Our application, which counts its requests and what runs at a time."""

    def __init__(self, ledger: CaptureLedger, answer_limit: int) -> None:
        self._app = create_app(ledger, TOKEN, answer_limit=answer_limit)
        self.requests: list[str] = []
        self.sizes: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counting_send(message: Any) -> None:
            if message["type"] == "http.response.body":
                self.sizes.append(len(message["body"]))
            await send(message)

        if scope["type"] == "http":
            self.requests.append(scope["path"].rpartition("/")[2])
        await self._app(scope, receive, counting_send)


@asynccontextmanager
async def served(ledger: CaptureLedger, answer_limit: int = 100_000) -> AsyncIterator[tuple[Any, CountedApp]]:
    """Serves a ledger of this loop over HTTP, from a thread, and connects a client to it."""
    app = CountedApp(ledger, answer_limit)
    with serving(app, lifespan="off") as base_url:
        async with RolloutControlClient(base_url, TOKEN, 30) as client:
            yield client, app


async def fill(ledger: CaptureLedger, rollouts: dict[str, int]) -> None:
    for rollout_id, calls in rollouts.items():
        for commit in sample_conversation(rollout_id, calls):
            await ledger.record(commit)


@pytest.fixture(params=["memory", "sqlite"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CaptureLedger]:
    opened = MemoryLedger() if request.param == "memory" else SqliteLedger(tmp_path / "ledger.sqlite")
    async with opened:
        yield opened


async def test_a_steps_manifests_come_in_a_few_requests(ledger: CaptureLedger) -> None:
    rollouts = {f"r{number}": 1 + number % 4 for number in range(600)}
    await fill(ledger, rollouts)
    await ledger.retire(["r5", "r599", "never"])
    asked = [*rollouts, "empty", "never", "r0"]
    async with served(ledger) as (client, app):
        iterator = client.manifests(asked)
        assert iterator.total == 602
        outcomes = [pair async for pair in iterator]
    assert len(outcomes) == iterator.total
    assert sorted(rollout_id for rollout_id, _ in outcomes) == sorted({*asked})
    for rollout_id, outcome in outcomes:
        if rollout_id in {"r5", "r599", "never"}:
            assert isinstance(outcome, RolloutRetiredError)
            assert outcome.rollout_id == rollout_id
        else:
            assert isinstance(outcome, RolloutManifest)
            assert outcome.rollout_id == rollout_id
            assert len(outcome.records) == rollouts.get(rollout_id, 0)
    assert set(app.requests) == {"manifests"}
    assert len(app.requests) < 40
    assert max(app.sizes) < 110_000


async def test_rollouts_of_a_thousand_calls_and_one_larger_than_the_limit(ledger: CaptureLedger) -> None:
    rollouts = {"small-1": 3, "long-1": 1000, "small-2": 2, "long-2": 1000, "long-3": 1000, "small-3": 1}
    await fill(ledger, rollouts)
    async with served(ledger, answer_limit=1_500_000) as (client, app):
        read = {rollout_id: len(outcome.records) async for rollout_id, outcome in client.manifests([*rollouts])}
        assert read == rollouts
        assert len(app.requests) == 3
    async with served(ledger, answer_limit=1000) as (client, app):
        read = {rollout_id: len(outcome.records) async for rollout_id, outcome in client.manifests([*rollouts])}
        assert read == rollouts
        assert len(app.requests) == 6, "each answer deals with one id at least"


async def test_an_id_that_is_retired_between_two_requests(ledger: CaptureLedger) -> None:
    rollouts = {f"r{number}": 2 for number in range(20)}
    await fill(ledger, rollouts)
    kinds = []
    async with served(ledger, answer_limit=4000) as (client, _), aclosing(client.manifests([*rollouts])) as outcomes:
        async for rollout_id, outcome in outcomes:
            if not kinds:
                await ledger.retire([*rollouts])
            kinds.append((rollout_id, type(outcome)))
    assert [rollout_id for rollout_id, _ in kinds] == [*rollouts]
    assert kinds[0][1] is RolloutManifest
    assert kinds[-1][1] is RolloutRetiredError


async def test_a_server_that_restarts_midway(tmp_path: Path) -> None:
    """The iteration goes on where it was: on the same address, another process of the server answers the rest."""
    async with SqliteLedger(tmp_path / "ledger.sqlite") as ledger:
        rollouts = {f"r{number}": 2 for number in range(40)}
        await fill(ledger, rollouts)
        with serving(create_app(ledger, TOKEN, answer_limit=4000), lifespan="off") as first:
            port = httpx.URL(first).port
            client = RolloutControlClient(first, TOKEN, 30)
            iterator = client.manifests([*rollouts])
            read = [(await anext(iterator))[0]]
        rest = asyncio.ensure_future(_rest(iterator))
        await asyncio.sleep(0.3)
        with serving(create_app(ledger, TOKEN, answer_limit=4000), lifespan="off", port=port):
            read += await rest
            await client.aclose()
    assert sorted(read) == sorted(rollouts)


async def _rest(iterator: Any) -> list[str]:
    return [rollout_id async for rollout_id, _ in iterator]


async def test_a_consumer_that_stops_early_leaves_nothing(ledger: CaptureLedger) -> None:
    await fill(ledger, {f"r{number}": 2 for number in range(200)})
    before = asyncio.all_tasks()
    async with served(ledger, answer_limit=4000) as (client, app):
        async with aclosing(client.manifests([f"r{number}" for number in range(200)])) as outcomes:
            async for _ in outcomes:
                break
        assert asyncio.all_tasks() == before
        asked = len(app.requests)
        await asyncio.sleep(0.1)
        assert len(app.requests) == asked
        assert isinstance(await client.manifest("r0"), RolloutManifest)


async def test_a_slow_consumer_is_not_run_away_from(ledger: CaptureLedger) -> None:
    await fill(ledger, {f"r{number}": 2 for number in range(60)})
    async with served(ledger, answer_limit=4000) as (client, app):
        consumed = 0
        async for _ in client.manifests([f"r{number}" for number in range(60)]):
            consumed += 1
            await asyncio.sleep(0.01)
            assert len(app.requests) <= consumed // 2 + 4
    assert consumed == 60


async def test_one_request_at_a_time_when_no_more_are_wanted(ledger: CaptureLedger) -> None:
    await fill(ledger, {f"r{number}": 1 for number in range(20)})
    async with served(ledger, answer_limit=2000) as (client, _):
        ids = [f"r{number}" for number in range(20)]
        assert [rollout_id async for rollout_id, _ in client.manifests(ids, max_concurrency=1)] == ids


WRONG_ANSWERS: dict[str, dict[str, Any]] = {
    "an id is left out": {"manifests": [], "retired": ["a"], "remaining": []},
    "an id comes twice": {"manifests": [], "retired": ["a", "b", "b"], "remaining": []},
    "another rollout's": {"manifests": [], "retired": ["a", "c"], "remaining": []},
    "none is dealt with": {"manifests": [], "retired": [], "remaining": ["a", "b"]},
    "a field is missing": {"manifests": [], "retired": ["a", "b"]},
    "another version": {
        "manifests": [{"schema_version": 3, "rollout_id": "a", "records": [], "failures": []}],
        "retired": ["b"],
        "remaining": [],
    },
}


@pytest.mark.parametrize("body", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
async def test_an_answer_that_breaks_the_contract(serve: Any, connect: Any, answer: Any, body: dict[str, Any]) -> None:
    server = await serve(answer(200, json.dumps(body).encode()))
    client = connect(server.base_url)
    with pytest.raises(ContractBrokenError):
        await anext(client.manifests(["a", "b"]))
    assert len(server.requests) == 1


async def test_an_unknown_field_is_ignored(serve: Any, connect: Any, answer: Any) -> None:
    body = {"manifests": [], "retired": ["a"], "remaining": [], "more": 1}
    server = await serve(answer(200, json.dumps(body).encode()))
    client = connect(server.base_url)
    assert [rollout_id async for rollout_id, _ in client.manifests(["a"])] == ["a"]
