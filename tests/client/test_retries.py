"""What is tried again, for how long, and what isn't."""

import asyncio
import email.utils
import math
import socket
import time
from typing import Any

import httpx
import pytest
from rollout_control_client import (
    RemovalRefusedError,
    RequestFailedError,
    RequestTimedOutError,
    ServerUnreachableError,
    ServiceUnavailableError,
)

BUSY = b'{"type": "about:blank", "title": "Busy", "status": 503, "detail": "database is locked"}'


async def test_503_is_tried_again(serve: Any, connect: Any, answer: Any, linear: bytes) -> None:
    server = await serve(answer(503, BUSY), answer(503, b"", Retry_After="0"), answer(200, linear))

    assert len((await connect(server.base_url).manifest("linear-3")).records) == 3
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_what_a_server_or_its_proxy_says_while_it_restarts_is_tried_again(
    serve: Any, connect: Any, answer: Any, linear: bytes, status: int
) -> None:
    page = answer(status, b"<html>restarting</html>", "text/html", Retry_After="0")
    server = await serve(page, page, answer(200, linear))

    assert len((await connect(server.base_url).manifest("linear-3")).records) == 3
    assert len(server.requests) == 3


async def test_each_retry_is_logged_once_with_its_reason_and_without_the_token(
    serve: Any, connect: Any, answer: Any, linear: bytes, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    busy = answer(503, BUSY.replace(b"locked", b"locked for " + token.encode()), Retry_After="0")
    server = await serve(busy, busy, answer(200, linear))

    await connect(server.base_url).manifest("linear-3")

    assert [record.name for record in caplog.records] == ["rollout_control_client"] * 2
    for line in caplog.messages:
        assert "database is locked" in line
        assert server.requests[0].headers["x-request-id"] in line
    assert token not in caplog.text


async def test_the_time_of_one_call_is_that_calls(serve: Any, connect: Any) -> None:
    async def hang(writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()

    server = await serve(hang)
    client = connect(server.base_url, 600)

    for call in (
        client.manifest("r", request_timeout_s=0.05),
        client.retire(["r"], request_timeout_s=0.05),
        client.delete(["r"], request_timeout_s=0.05),
        anext(client.manifests(["r"], request_timeout_s=0.05)),
    ):
        with pytest.raises(RequestTimedOutError, match=r"within 0\.05 s"):
            await call
    for bad in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="request_timeout_s"):
            await client.manifest("r", request_timeout_s=bad)


async def test_a_removal_is_tried_again_whole(serve: Any, connect: Any, answer: Any) -> None:
    server = await serve(answer(503, BUSY, Retry_After="0"), answer(200, b'{"removed": ["r1"], "absent": ["r2"]}'))

    await connect(server.base_url).retire(["r1", "r2"])

    first, second = server.requests
    assert first == second
    assert first.body == b'{"rollout_ids":["r1","r2"]}'


async def test_503_to_the_last_is_raised_with_the_servers_reason(serve: Any, connect: Any, answer: Any) -> None:
    server = await serve(answer(503, b""), answer(503, b""), answer(503, BUSY, Retry_After="31"))

    with pytest.raises(ServiceUnavailableError, match="database is locked") as caught:
        await connect(server.base_url, 30).manifest("linear-3")

    assert (caught.value.status, caught.value.retry_after_s) == (503, 31)
    assert len(server.requests) == 3


@pytest.mark.parametrize("form", ["seconds", "absurd", "date"])
async def test_a_retry_after_longer_than_what_is_left_ends_it_at_once(
    serve: Any, connect: Any, answer: Any, form: str
) -> None:
    date = email.utils.formatdate(time.time() + 3600, usegmt=True)
    retry_after, seconds = {"seconds": ("3600", 3600), "absurd": ("9" * 5000, math.inf), "date": (date, 3600)}[form]
    server = await serve(answer(503, BUSY, Retry_After=retry_after))

    with pytest.raises(ServiceUnavailableError, match="database is locked") as caught:
        await connect(server.base_url, 600).manifest("linear-3")

    assert caught.value.retry_after_s == pytest.approx(seconds, abs=600)
    assert len(server.requests) == 1


async def test_retry_after_is_waited_for(
    serve: Any, connect: Any, answer: Any, linear: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def skip(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    server = await serve(answer(503, BUSY, Retry_After="7"), answer(503, BUSY), answer(200, linear))
    monkeypatch.setattr(asyncio, "sleep", skip)

    await connect(server.base_url).manifest("linear-3")

    assert waits[0] == 7
    assert 0 < waits[1] < 1


@pytest.mark.parametrize(
    "retry_after",
    [
        *("", "soon", "-1", "1.5", "\xb2", "Wed, 99 Nov 1994 08:49:37 GMT", "Fri, 31 Dec 9999 23:59:59 -2300"),
        *("Mon, 01 Jan 0001 00:00:00 +2300", "Sun, 06 Nov 1994 08:49:37 +99999999999999"),
    ],
)
async def test_a_retry_after_that_says_nothing_is_ignored(
    serve: Any, connect: Any, answer: Any, linear: bytes, retry_after: str
) -> None:
    server = await serve(answer(503, BUSY, Retry_After=retry_after), answer(200, linear))

    assert len((await connect(server.base_url).manifest("linear-3")).records) == 3


async def test_a_date_that_has_passed_means_now(serve: Any, connect: Any, answer: Any, linear: bytes) -> None:
    server = await serve(answer(503, BUSY, Retry_After="Sun, 06 Nov 1994 08:49:37 GMT"), answer(200, linear))

    assert len((await connect(server.base_url).manifest("linear-3")).records) == 3


async def test_a_server_that_comes_up_late_is_waited_for(connect: Any, answer: Any, linear: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(200, linear))
        await writer.drain()
        writer.close()

    waiting = asyncio.create_task(connect(f"http://127.0.0.1:{port}").manifest("linear-3"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    async with await asyncio.start_server(greet, "127.0.0.1", port):
        assert len((await waiting).records) == 3


async def test_a_time_that_ends_in_an_attempt_tells_of_the_one_before(serve: Any, connect: Any, answer: Any) -> None:
    async def hang(writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()

    server = await serve(answer(503, BUSY, Retry_After="0"), hang)

    with pytest.raises(RequestTimedOutError, match="database is locked") as caught:
        await connect(server.base_url, 1.5).manifest("linear-3")

    assert isinstance(caught.value.__cause__, ServiceUnavailableError)


@pytest.mark.parametrize("status", [400, 401, 404, 405, 409, 413, 415, 422, 500, 501])
async def test_no_other_status_is_tried_again(serve: Any, connect: Any, answer: Any, status: int) -> None:
    server = await serve(answer(status, b'{"detail": "no"}', Retry_After="0"))

    with pytest.raises(RequestFailedError, match=f"status {status}: no") as caught:
        await connect(server.base_url).retire(["r1"])

    assert isinstance(caught.value, RemovalRefusedError) == (status == 409)
    assert len(server.requests) == 1


async def test_cancelling_the_caller_ends_the_request(serve: Any, connect: Any) -> None:
    asked = asyncio.Event()

    async def hang(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await writer.wait_closed()

    server = await serve(hang)
    task = asyncio.create_task(connect(server.base_url).manifest("linear-3"))
    await asked.wait()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_callers_own_timeout_stays_the_callers(serve: Any, connect: Any) -> None:
    async def hang(writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()

    server = await serve(hang)

    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.1):
            await connect(server.base_url).manifest("linear-3")

    assert not isinstance(caught.value, RequestFailedError)


@pytest.mark.usefixtures("one_attempt")
async def test_a_pause_longer_than_what_is_left_ends_it_at_once(connect: Any) -> None:
    async def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(ServerUnreachableError, match="refused"):
        await connect(request_timeout_s=600, transport=httpx.MockTransport(refuse)).manifest("linear-3")
