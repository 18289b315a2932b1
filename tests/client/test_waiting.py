"""Waiting for a server that refuses to remove anything for now."""

import asyncio
import json
import logging
import math
from typing import Any

import pytest
from rollout_control_client import RemovalRefusedError, RequestFailedError

REFUSED = b'{"type": "about:blank", "title": "Refused", "status": 409, "detail": "a checkpoint is taken"}'


def removal(*rollout_ids: str) -> bytes:
    return json.dumps({"removed": list(rollout_ids), "absent": []}).encode()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that the client makes, which end at once."""
    made: list[float] = []
    sleep = asyncio.sleep

    async def skip(seconds: float) -> None:
        made.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", skip)
    return made


@pytest.mark.parametrize("operation", ["retire", "delete"])
async def test_a_removal_waits_until_the_server_removes_again(
    serve: Any, connect: Any, answer: Any, pauses: list[float], caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    caplog.set_level(logging.INFO, "rollout_control_client")
    server = await serve(answer(409, REFUSED, Retry_After="7"), answer(409, REFUSED), answer(200, removal("r")))

    done = await getattr(connect(server.base_url), operation)(["r"], wait_s=60)

    assert done.removed == ["r"]
    assert len(server.requests) == 3
    assert pauses[0] == 7
    assert 0 < pauses[1] < 1
    assert ["a checkpoint is taken" in line for line in caplog.messages] == [True, True]


async def test_without_a_wait_a_refusal_is_raised_at_once(serve: Any, connect: Any, answer: Any) -> None:
    server = await serve(answer(409, REFUSED, Retry_After="30", X_Request_Id="abc"))

    with pytest.raises(RemovalRefusedError, match="a checkpoint is taken") as caught:
        await connect(server.base_url).retire(["r"])

    assert caught.value.retry_after_s == 30
    assert caught.value.request_id == "abc"
    assert len(server.requests) == 1


async def test_a_refusal_longer_than_the_wait_is_raised_at_once(serve: Any, connect: Any, answer: Any) -> None:
    server = await serve(answer(409, REFUSED, Retry_After="3600"))

    with pytest.raises(RemovalRefusedError):
        await connect(server.base_url).retire(["r"], wait_s=600)

    assert len(server.requests) == 1


async def test_the_wait_is_that_of_the_whole_call(serve: Any, connect: Any, answer: Any) -> None:
    """The second batch waits for what the first has left: less than the server asks for."""
    ids = [f"r{index}" for index in range(4097)]
    server = await serve(
        answer(409, REFUSED, Retry_After="1"), answer(200, removal(*ids[:4096])), answer(409, REFUSED, Retry_After="1")
    )

    with pytest.raises(RemovalRefusedError) as caught:
        await connect(server.base_url).retire(ids, wait_s=1.5)

    assert caught.value.partial_removal is not None
    assert caught.value.partial_removal.finished.removed == ids[:4096]
    assert caught.value.partial_removal.unconfirmed == ids[4096:]
    assert len(server.requests) == 3


async def test_nothing_else_is_waited_for(serve: Any, connect: Any, answer: Any) -> None:
    server = await serve(answer(501, b'{"detail": "no retire here"}'))

    with pytest.raises(RequestFailedError, match="no retire here"):
        await connect(server.base_url).retire(["r"], wait_s=60)

    assert len(server.requests) == 1


@pytest.mark.parametrize("wait_s", [-1, math.inf, math.nan])
async def test_a_wait_is_a_finite_number_of_seconds(connect: Any, wait_s: float) -> None:
    with pytest.raises(ValueError, match="wait_s"):
        await connect().retire(["r"], wait_s=wait_s)
