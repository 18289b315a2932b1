"""`rollouts()`, `summary()` and `retire_idle()`, over HTTP."""

import asyncio
import json
import pickle
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from typing import Any

import pytest
from rollout_control_client import (
    ContractBrokenError,
    OperationNotOfferedError,
    RequestFailedError,
    RolloutControlClient,
    RolloutRetiredError,
    SyncRolloutControlClient,
)
from rollout_control_server import MemoryLedger, create_app
from rollout_control_server.ledger.results import LedgerRow, RolloutExport
from rollout_control_server.samples import sample_commit
from served import TOKEN, serving

HOUR = 3600.0
PATH = "/training-token-capture/control/rollouts"


async def idle(ledger: MemoryLedger, *rollout_ids: str) -> None:
    """Gives each rollout one call of two hours ago."""
    for rollout_id in rollout_ids:
        await ledger.record(sample_commit(rollout_id, "c"))
        rows = [LedgerRow(row, time.time() - 2 * HOUR) for row, _ in (await ledger.export(rollout_id)).rows]
        await ledger.import_([RolloutExport(rollout_id, None, rows)])


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


@pytest.fixture
async def client(ledger: MemoryLedger) -> AsyncIterator[RolloutControlClient]:
    with serving(create_app(ledger, TOKEN), lifespan="off") as base_url:
        async with RolloutControlClient(base_url, TOKEN, 30) as client:
            yield client


async def ids(client: RolloutControlClient, **filters: Any) -> list[str]:
    return [rollout.rollout_id async for rollout in client.rollouts(**filters)]


async def test_it_pages_by_itself(client: RolloutControlClient, ledger: MemoryLedger) -> None:
    names = sorted(f"run-{number}" for number in range(2500))
    await ledger.retire(names)
    assert await ids(client) == names
    assert await ids(client, state="live") == []


async def test_each_filter_is_sent(client: RolloutControlClient, ledger: MemoryLedger) -> None:
    await ledger.record(sample_commit("run-1.a", "c"))
    await ledger.record_failure("run-1.b", "f", "worker_capture_failed")
    await ledger.retire(["run-2.a"])
    await idle(ledger, "run-2.b")
    assert await ids(client) == ["run-1.a", "run-1.b", "run-2.a", "run-2.b"]
    assert await ids(client, state="retired") == ["run-2.a"]
    assert await ids(client, prefix="run-2.") == ["run-2.a", "run-2.b"]
    assert await ids(client, idle_for_s=HOUR) == ["run-2.b"]
    assert await ids(client, has_failures=True) == ["run-1.b"]
    assert await ids(client, has_failures=False, prefix="run-1") == ["run-1.a"]
    assert await ids(client, changed_since=time.time() + HOUR) == []
    assert await ids(client, prefix=".") == []
    (rollout,) = [one async for one in client.rollouts(has_failures=True)]
    assert (rollout.state, rollout.calls, rollout.failures, rollout.retired_at) == ("live", 0, 1, None)
    assert rollout.last_recorded_at == pytest.approx(time.time(), abs=600)


async def test_the_next_page_is_read_when_it_is_needed(client: RolloutControlClient, ledger: MemoryLedger) -> None:
    await ledger.retire([f"r{number:04}" for number in range(1500)])
    async with aclosing(client.rollouts()) as listing:
        async for rollout in listing:
            if rollout.rollout_id == "r0500":
                await ledger.delete(["r0700", "r1200"])
            assert rollout.rollout_id != "r1200", "the second page had not been read"
            if rollout.rollout_id == "r1201":
                break


async def test_the_summary(client: RolloutControlClient, ledger: MemoryLedger) -> None:
    await ledger.record(sample_commit("a", "c"))
    await ledger.record_failure("a", "d", "worker_capture_failed")
    await ledger.retire(["b", "c"])
    summary = await client.summary()
    assert (summary.live, summary.retired, summary.with_failures, summary.rows) == (1, 2, 1, 2)
    assert summary.waiting_rows == 0
    assert summary.oldest_recorded_at == pytest.approx(time.time(), abs=600)


async def test_idle_rollouts_are_retired(client: RolloutControlClient, ledger: MemoryLedger) -> None:
    await ledger.record(sample_commit("active", "c"))
    await idle(ledger, "idle")
    removal = await client.retire_idle(["active", "none", "idle", "none"], HOUR)
    assert (removal.removed, removal.absent, removal.active) == (["idle"], ["none"], ["active"])
    with pytest.raises(RolloutRetiredError):
        await client.manifest("idle")
    assert (await client.manifest("none")).records == []


async def test_many_ids_are_sent_in_batches(client: RolloutControlClient, ledger: MemoryLedger) -> None:
    names = [f"r{number}" for number in range(4100)]
    await idle(ledger, names[0], names[-1])
    removal = await client.retire_idle(names, HOUR)
    assert removal.removed == [names[0], names[-1]]
    assert removal.absent == names[1:-1]


async def test_a_failure_says_how_far_it_came(serve: Any, connect: Any, answer: Any) -> None:
    names = [f"r{number}" for number in range(4097)]
    first = {"removed": names[:1], "absent": names[1:4095], "active": names[4095:4096]}
    server = await serve(answer(200, json.dumps(first).encode()), answer(500, b'{"detail": "no"}'))
    with pytest.raises(RequestFailedError) as caught:
        await connect(server.base_url).retire_idle(names, 1)
    partial = pickle.loads(pickle.dumps(caught.value)).partial_removal
    assert (partial.finished.removed, partial.finished.active) == (names[:1], names[4095:4096])
    assert (partial.unconfirmed, partial.unsent) == (names[4096:], [])


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_the_operations(serve: Any, connect: Any, answer: Any, status: int) -> None:
    server = await serve(answer(status, b'{"detail": "Not Found"}'))
    client = connect(server.base_url)
    for operation, lacks in (
        (ids(client), "does not list rollouts: Not Found"),
        (client.summary(), "does not summarise its ledger: Not Found"),
        (client.retire_idle(["a"], 1), "does not retire idle rollouts: Not Found"),
    ):
        with pytest.raises(OperationNotOfferedError, match=lacks) as caught:
            await operation
        assert caught.value.status == status
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert [request.path for request in server.requests] == [PATH, f"{PATH}/summary", f"{PATH}/retire-idle"]


async def test_another_refusal_is_that_refusal(serve: Any, connect: Any, answer: Any) -> None:
    server = await serve(answer(422, b'{"detail": "no"}'))
    with pytest.raises(RequestFailedError) as caught:
        await ids(connect(server.base_url))
    assert type(caught.value) is RequestFailedError


def entry(rollout_id: str, state: str = "live") -> dict[str, Any]:
    rows = {"calls": 1, "failures": 0, "first_recorded_at": 1.5, "last_recorded_at": 2}
    return {"rollout_id": rollout_id, "state": state, **rows, "retired_at": None}


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param([{"rollouts": [entry("p.b"), entry("p.a")], "next": None}], id="out of order"),
        pytest.param([{"rollouts": [entry("p.a"), entry("p.a")], "next": None}], id="twice in a page"),
        pytest.param([{"rollouts": [entry("p.a")], "next": "p.a"}], id="the same page for ever"),
        pytest.param([{"rollouts": [], "next": "p.a"}], id="an empty page with a next one"),
        pytest.param([{"rollouts": [entry("p.a")], "next": "p.b"}], id="a cursor that is not the last id"),
        pytest.param([{"rollouts": [entry("q.a")], "next": None}], id="another prefix"),
        pytest.param([{"rollouts": [entry("p.a", "retired")], "next": None}], id="another state"),
        pytest.param([{"rollouts": [entry("p.a", "deleted")], "next": None}], id="no state"),
        pytest.param([{"rollouts": [{**entry("p.a"), "calls": -1}], "next": None}], id="a negative count"),
        pytest.param([{"rollouts": [{**entry("p.a"), "last_recorded_at": "now"}], "next": None}], id="no time"),
        pytest.param([{"rollouts": [entry("p.a")]}], id="no next"),
        pytest.param([["p.a"]], id="another shape"),
    ],
)
async def test_pages_that_break_the_contract(serve: Any, connect: Any, answer: Any, pages: list[Any]) -> None:
    server = await serve(*(answer(200, json.dumps(page).encode()) for page in pages))
    with pytest.raises(ContractBrokenError):
        await ids(connect(server.base_url), prefix="p.", state="live")


async def test_fields_that_it_does_not_know_are_ignored(serve: Any, connect: Any, answer: Any) -> None:
    page = {"rollouts": [{**entry("a"), "owner": "me"}], "next": None, "total": 1}
    server = await serve(answer(200, json.dumps(page).encode()))
    assert await ids(connect(server.base_url)) == ["a"]


@pytest.mark.parametrize(
    ("filters", "error"),
    [
        ({"state": "deleted"}, ValueError), ({"state": ""}, ValueError), ({"prefix": ""}, ValueError),
        ({"prefix": "a/b"}, ValueError), ({"prefix": "a\n"}, ValueError), ({"prefix": "a" * 256}, ValueError),
        ({"idle_for_s": -1}, ValueError), ({"idle_for_s": float("nan")}, ValueError),
        ({"idle_for_s": 1e13}, ValueError),
        ({"idle_for_s": "6h"}, TypeError), ({"idle_for_s": True}, TypeError), ({"changed_since": "now"}, TypeError),
        ({"changed_since": float("inf")}, ValueError), ({"has_failures": 1}, TypeError),
    ],
)  # fmt: skip
async def test_bad_filters_are_refused_before_anything_is_sent(
    serve: Any, connect: Any, answer: Any, filters: dict[str, Any], error: type[Exception]
) -> None:
    server = await serve(answer(200, b"{}"))
    with pytest.raises(error):
        connect(server.base_url).rollouts(**filters)
    assert server.requests == []


async def test_bad_batches_are_refused_before_anything_is_sent(serve: Any, connect: Any, answer: Any) -> None:
    server = await serve(answer(200, b"{}"))
    client = connect(server.base_url)
    with pytest.raises(ValueError, match="invalid rollout id"):
        await client.retire_idle(["a", "a/b"], 1)
    with pytest.raises(TypeError):
        await client.retire_idle("rollout", 1)
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="idle_for_s"):
            await client.retire_idle(["a"], seconds)
    with pytest.raises(TypeError, match="idle_for_s"):
        await client.retire_idle(["a"], "6h")
    assert server.requests == []


async def test_an_idle_removal_that_leaves_out_an_id_breaks_the_contract(serve: Any, connect: Any, answer: Any) -> None:
    server = await serve(answer(200, b'{"removed": ["a"], "absent": [], "active": []}'))
    with pytest.raises(ContractBrokenError, match="each id"):
        await connect(server.base_url).retire_idle(["a", "b"], 1)


def test_the_synchronous_client_does_the_same() -> None:
    ledger = MemoryLedger()
    asyncio.run(idle(ledger, "idle"))
    asyncio.run(ledger.record(sample_commit("active", "c")))
    asyncio.run(ledger.retire([f"r{number:04}" for number in range(1500)]))
    with (
        serving(create_app(ledger, TOKEN), lifespan="off") as base_url,
        SyncRolloutControlClient(base_url, TOKEN, 30) as client,
    ):
        listed = [rollout.rollout_id for rollout in client.rollouts()]
        assert listed == ["active", "idle", *(f"r{number:04}" for number in range(1500))]
        assert [rollout.rollout_id for rollout in client.rollouts(idle_for_s=HOUR)] == ["idle"]
        with closing(client.rollouts(state="retired", prefix="r0")) as left_early:
            assert next(left_early).rollout_id == "r0000"
        with pytest.raises(ValueError, match="rollout id"):
            client.rollouts(prefix="")
        removal = client.retire_idle(["active", "idle", "none"], HOUR)
        assert (removal.removed, removal.absent, removal.active) == (["idle"], ["none"], ["active"])
        assert (client.summary().live, client.summary().retired) == (1, 1501)
