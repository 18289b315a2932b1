"""`manifests()` on a server without the bulk operation, such as Gym's: each outcome once, as it arrives, with bounded
work ahead and nothing left behind."""

import asyncio
import gc
from collections import Counter
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from rollout_control_client import RequestFailedError, RolloutManifest, RolloutRetiredError


class ManyRollouts(httpx.AsyncBaseTransport):
    """Answers each manifest; `held` ones wait for their event, and `statuses` gives other statuses than 200.

    The bulk operation is answered with `bulk_status`.
    """

    def __init__(self) -> None:
        self.bulk_status = 404
        self.asked_in_bulk = 0
        self.asked: list[str] = []
        self.running = 0
        self.most_running = 0
        self.held: dict[str, asyncio.Event] = {}
        self.statuses: dict[str, int] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self.asked_in_bulk += 1
            return httpx.Response(self.bulk_status, json={"detail": "Not Found"})
        rollout_id = request.url.path.split("/")[-2]
        self.asked.append(rollout_id)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if rollout_id in self.held:
                await self.held[rollout_id].wait()
            await asyncio.sleep(0)
        finally:
            self.running -= 1
        body = {"schema_version": 2, "rollout_id": rollout_id, "records": [], "failures": []}
        status = self.statuses.get(rollout_id, 200)
        return httpx.Response(status, json=body if status == 200 else {"detail": "no"})


@pytest.fixture
def rollouts() -> ManyRollouts:
    return ManyRollouts()


@pytest.fixture
def client(connect: Any, rollouts: ManyRollouts) -> Any:
    return connect(transport=rollouts)


def other_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_each_id_comes_exactly_once(client: Any, rollouts: ManyRollouts) -> None:
    rollout_ids = [f"r{number}" for number in range(500)]
    rollouts.statuses = {"r7": 410, "r499": 410}

    outcomes = [pair async for pair in client.manifests(rollout_ids + rollout_ids[:50])]

    assert Counter(rollout_id for rollout_id, _ in outcomes) == Counter(rollout_ids)
    for rollout_id, outcome in outcomes:
        assert isinstance(outcome, RolloutRetiredError if rollout_id in rollouts.statuses else RolloutManifest)
        assert outcome.rollout_id == rollout_id
    assert sorted(rollouts.asked) == sorted(rollout_ids)


@pytest.mark.parametrize("bulk_status", [404, 405, 501])
async def test_a_server_without_the_bulk_operation_is_asked_for_it_once(
    client: Any, rollouts: ManyRollouts, bulk_status: int
) -> None:
    rollouts.bulk_status = bulk_status
    for _ in range(3):
        outcomes = [pair async for pair in client.manifests([f"r{number}" for number in range(40)])]
        assert len(outcomes) == 40
    assert rollouts.asked_in_bulk == 1
    assert len(rollouts.asked) == 120


async def test_a_404_that_was_not_the_servers_is_not_remembered(client: Any, rollouts: ManyRollouts) -> None:
    """A proxy whose server is away answers 404 to everything."""
    rollouts.statuses = {"r1": 404}
    for times in (1, 2):
        with pytest.raises(RequestFailedError, match="status 404"):
            await anext(client.manifests(["r1"]))
        assert rollouts.asked_in_bulk == times


@pytest.mark.parametrize("bulk_status", [400, 401, 409, 422, 500])
async def test_another_failure_of_the_bulk_operation_is_raised(
    client: Any, rollouts: ManyRollouts, bulk_status: int
) -> None:
    rollouts.bulk_status = bulk_status
    with pytest.raises(RequestFailedError, match=f"status {bulk_status}"):
        await anext(client.manifests(["r1"]))
    assert rollouts.asked == []


async def test_an_outcome_comes_as_it_arrives(client: Any, rollouts: ManyRollouts) -> None:
    rollouts.held = {"slow": asyncio.Event()}
    arrived = []

    async for rollout_id, _ in client.manifests(["slow", "r1", "r2", "r3"]):
        arrived.append(rollout_id)
        if len(arrived) == 3:
            rollouts.held["slow"].set()

    assert arrived[-1] == "slow"
    assert set(arrived) == {"slow", "r1", "r2", "r3"}


@pytest.mark.parametrize("max_concurrency", [1, 3, 32])
async def test_only_so_many_requests_run_at_a_time(client: Any, rollouts: ManyRollouts, max_concurrency: int) -> None:
    rollout_ids = [f"r{number}" for number in range(100)]

    outcomes = [pair async for pair in client.manifests(rollout_ids, max_concurrency=max_concurrency)]

    assert len(outcomes) == 100
    assert rollouts.most_running == max_concurrency


async def test_a_slow_consumer_is_not_run_away_from(client: Any, rollouts: ManyRollouts) -> None:
    consumed = 0

    async for _ in client.manifests([f"r{number}" for number in range(200)], max_concurrency=4):
        consumed += 1
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(rollouts.asked) <= consumed + 2 * 4

    assert consumed == 200


async def test_any_other_failure_is_raised_at_once_and_leaves_no_task(client: Any, rollouts: ManyRollouts) -> None:
    before = other_tasks()
    rollouts.held = {f"r{number}": asyncio.Event() for number in range(1, 100)}
    rollouts.statuses = {"r0": 500}

    with pytest.raises(RequestFailedError, match="status 500"):
        async for _ in client.manifests([f"r{number}" for number in range(100)], max_concurrency=8):
            pass

    assert len(rollouts.asked) == 8
    assert rollouts.running == 0
    assert other_tasks() == before


async def test_all_failing_at_once_raises_one_of_them(client: Any, rollouts: ManyRollouts) -> None:
    rollouts.statuses = {f"r{number}": 500 for number in range(100)}

    with pytest.raises(RequestFailedError, match="status 500"):
        async for _ in client.manifests(list(rollouts.statuses)):
            pass

    assert rollouts.running == 0
    gc.collect()  # a task whose error nobody looked at would now be reported


async def test_leaving_early_leaves_no_task(client: Any, rollouts: ManyRollouts) -> None:
    before = other_tasks()
    rollouts.held = {f"r{number}": asyncio.Event() for number in range(1, 100)}

    async with aclosing(client.manifests([f"r{number}" for number in range(100)])) as outcomes:
        async for _ in outcomes:
            break

    assert rollouts.running == 0
    assert other_tasks() == before


async def test_cancelling_the_consumer_leaves_no_task(client: Any, rollouts: ManyRollouts) -> None:
    before = other_tasks()
    rollouts.held = {f"r{number}": asyncio.Event() for number in range(100)}

    async def consume() -> None:
        async for _ in client.manifests(list(rollouts.held), max_concurrency=5):
            pass

    consumer = asyncio.create_task(consume())
    for _ in range(20):
        await asyncio.sleep(0)
    assert rollouts.running == 5
    consumer.cancel()

    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert rollouts.running == 0
    assert other_tasks() == before


async def test_arguments_are_checked_before_the_first_request(client: Any, rollouts: ManyRollouts) -> None:
    with pytest.raises(ValueError, match="invalid rollout id"):
        client.manifests(["r1", "a/b"])
    with pytest.raises(TypeError, match="wrap"):
        client.manifests("r1")
    with pytest.raises(TypeError, match="sequence of ids"):
        client.manifests(None)
    with pytest.raises(ValueError, match="max_concurrency"):
        client.manifests(["r1"], max_concurrency=0)
    for no_number in (float("nan"), "3"):
        with pytest.raises(TypeError, match="max_concurrency"):
            client.manifests(["r1"], max_concurrency=no_number)

    assert rollouts.asked == []


async def test_no_ids_give_nothing(client: Any, rollouts: ManyRollouts) -> None:
    assert [pair async for pair in client.manifests([])] == []
    assert rollouts.asked == []


async def test_as_many_requests_as_wanted_run_on_connections_of_their_own(
    serve: Any, connect: Any, answer: Any
) -> None:
    """None waits for another's connection, however many there are."""
    everyone = asyncio.Barrier(150)

    async def wait_for_everyone(writer: asyncio.StreamWriter) -> None:
        await everyone.wait()
        writer.write(answer(410, b""))
        await writer.drain()

    server = await serve(answer(404, b""), wait_for_everyone)
    client = connect(server.base_url)

    outcomes = [pair async for pair in client.manifests([f"r{number}" for number in range(150)], max_concurrency=150)]

    assert len(outcomes) == 150
    assert server.connections <= 150 + 1, "and one may have been for the question whether there is a bulk operation"
