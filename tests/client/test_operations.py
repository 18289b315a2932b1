"""The operations, against a transport that answers as the contract says."""

import asyncio
import gc
import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from rollout_control_client import (
    MAX_LEDGER_BATCH,
    PartialRemoval,
    RemovalRefusedError,
    RequestFailedError,
    RolloutControlClient,
    RolloutControlError,
    RolloutRemoval,
    RolloutRetiredError,
)

PREFIX = "/training-token-capture/control"

Connect = Callable[..., RolloutControlClient]


class Recorder(httpx.AsyncBaseTransport):
    """Answers each request with what `answer` says, and keeps the requests."""

    def __init__(self, answer: Callable[[httpx.Request], httpx.Response]) -> None:
        self.answer = answer
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answer(request)

    @property
    def batches(self) -> list[list[str]]:
        return [json.loads(request.content)["rollout_ids"] for request in self.requests]


def removing(request: httpx.Request) -> httpx.Response:
    """Removes what ends in an even digit, and knows nothing of the rest."""
    rollout_ids = json.loads(request.content)["rollout_ids"]
    removed = [rollout_id for rollout_id in rollout_ids if rollout_id[-1] in "02468"]
    return httpx.Response(200, json={"removed": removed, "absent": [i for i in rollout_ids if i not in set(removed)]})


async def test_manifest_asks_for_the_rollout_and_returns_its_rows(connect: Connect, linear: bytes, token: str) -> None:
    transport = Recorder(lambda _: httpx.Response(200, content=linear))
    client = connect(transport=transport)

    manifest = await client.manifest("linear-3")

    (request,) = transport.requests
    assert (request.method, request.url.path) == ("GET", f"{PREFIX}/rollouts/linear-3/manifest")
    assert request.headers["Authorization"] == f"Bearer {token}"
    assert manifest.rollout_id == "linear-3"
    assert [record.cum_len for record in manifest.records] == [40, 97, 171]
    assert manifest.records[0].parent_call_id is None
    assert manifest.records[1].parent_call_id == manifest.records[0].model_call_id
    assert manifest.failures == []


async def test_a_retired_rollout_raises_the_shared_error(connect: Connect) -> None:
    client = connect(transport=Recorder(lambda _: httpx.Response(410, json={"detail": "gone"})))

    with pytest.raises(RolloutRetiredError) as caught:
        await client.manifest("r1")

    assert caught.value.rollout_id == "r1"
    assert isinstance(caught.value, LookupError)
    assert not isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("operation", ["retire", "delete"])
async def test_a_removal_sends_each_id_once_in_the_order_of_first_appearance(connect: Connect, operation: str) -> None:
    transport = Recorder(removing)
    client = connect(transport=transport)

    removal = await getattr(client, operation)(["r2", "r1", "r2", "r4", "r1"])

    (request,) = transport.requests
    assert (request.method, request.url.path) == ("POST", f"{PREFIX}/rollouts/{operation}")
    assert request.headers["Content-Type"] == "application/json"
    assert json.loads(request.content) == {"rollout_ids": ["r2", "r1", "r4"]}
    assert removal == RolloutRemoval(removed=["r2", "r4"], absent=["r1"])


@pytest.mark.parametrize("operation", ["retire", "delete"])
async def test_more_ids_than_a_request_may_carry_are_sent_as_several(connect: Connect, operation: str) -> None:
    transport = Recorder(removing)
    client = connect(transport=transport)
    rollout_ids = [f"r{number}" for number in range(2 * MAX_LEDGER_BATCH + 1)]

    removal = await getattr(client, operation)(rollout_ids + rollout_ids[:5])

    assert [len(batch) for batch in transport.batches] == [MAX_LEDGER_BATCH, MAX_LEDGER_BATCH, 1]
    assert [rollout_id for batch in transport.batches for rollout_id in batch] == rollout_ids
    assert removal.removed == rollout_ids[::2]
    assert removal.absent == rollout_ids[1::2]


async def test_no_ids_need_no_request(connect: Connect) -> None:
    transport = Recorder(removing)

    assert await connect(transport=transport).retire([]) == RolloutRemoval(removed=[], absent=[])
    assert transport.requests == []


@pytest.mark.parametrize("operation", ["retire", "delete"])
async def test_a_removal_that_fails_midway_says_how_far_it_came(connect: Connect, operation: str) -> None:
    def refuse_the_second(request: httpx.Request) -> httpx.Response:
        return removing(request) if len(transport.requests) == 1 else httpx.Response(409, json={"detail": "not now"})

    transport = Recorder(refuse_the_second)
    client = connect(transport=transport)
    rollout_ids = [f"r{number}" for number in range(3 * MAX_LEDGER_BATCH)]
    first, second, third = (
        rollout_ids[start:][:MAX_LEDGER_BATCH] for start in range(0, len(rollout_ids), MAX_LEDGER_BATCH)
    )

    with pytest.raises(RemovalRefusedError, match="not now") as caught:
        await getattr(client, operation)(rollout_ids)

    assert caught.value.partial_removal == PartialRemoval(
        finished=RolloutRemoval(removed=first[::2], absent=first[1::2]), unconfirmed=second, unsent=third
    )
    assert len(transport.requests) == 2


@pytest.mark.parametrize(
    "rollout_id",
    ["", ".", "..", "a/b", "a%2Fb", "a b", "r1\n", "é", "r1\x00", "a" * 256],
)
async def test_an_invalid_id_is_refused_before_anything_is_sent(connect: Connect, rollout_id: str) -> None:
    transport = Recorder(removing)
    client = connect(transport=transport)

    for call in (
        lambda: client.manifest(rollout_id),
        lambda: client.retire(["r1", rollout_id]),
        lambda: client.delete(["r1"] * MAX_LEDGER_BATCH + [rollout_id]),
    ):
        with pytest.raises(ValueError, match="invalid rollout id"):
            await call()

    assert transport.requests == []


async def test_a_bare_string_is_no_batch(connect: Connect) -> None:
    transport = Recorder(removing)
    client = connect(transport=transport)

    for call in (lambda: client.retire("r1"), lambda: client.delete("r1")):
        with pytest.raises(TypeError, match="wrap"):
            await call()

    assert transport.requests == []


async def test_longest_and_oddest_ids_are_sent_as_they_are(connect: Connect) -> None:
    transport = Recorder(
        lambda request: httpx.Response(
            200,
            json={"schema_version": 2, "rollout_id": request.url.path.split("/")[-2], "records": [], "failures": []},
        )
    )
    client = connect(transport=transport)

    for rollout_id in ["a" * 255, "...", "-", "_.-", ".a", "0"]:
        assert (await client.manifest(rollout_id)).rollout_id == rollout_id


async def test_a_closed_client_says_so(connect: Connect) -> None:
    client = connect(transport=Recorder(removing))
    async with client:
        await client.retire(["r1"])
    await client.aclose()

    with pytest.raises(RuntimeError, match="closed") as caught:
        await client.retire(["r1"])
    assert not isinstance(caught.value, RequestFailedError)


async def test_a_client_that_is_closed_under_a_request_says_so(serve: Any, connect: Connect, answer: Any) -> None:
    """While the request waits for its next attempt."""
    asked = asyncio.Event()

    async def unavailable(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(503, b"", Retry_After="1"))
        await writer.drain()
        asked.set()

    server = await serve(unavailable)
    client = connect(server.base_url)
    request = asyncio.create_task(client.manifest("r1"))
    await asked.wait()
    await asyncio.sleep(0.05)  # until the answer has arrived
    await client.aclose()

    with pytest.raises(RolloutControlError, match="closed"):
        await request


async def test_a_transport_is_closed_with_a_client_that_was_never_used() -> None:
    closed: list[bool] = []

    class Transport(httpx.AsyncBaseTransport):
        async def aclose(self) -> None:
            closed.append(True)

    async with RolloutControlClient("http://control.test", "token", 5, transport=Transport()):
        pass
    assert closed == [True]


async def test_thousands_of_tasks_share_so_many_connections(serve: Any, connect: Connect, answer: Any) -> None:
    server = await serve(answer(410, b""))
    client = connect(server.base_url, 600.0)

    outcomes = await asyncio.gather(*(client.manifest(f"r{n}") for n in range(1500)), return_exceptions=True)

    assert {type(outcome) for outcome in outcomes} == {RolloutRetiredError}
    assert server.connections < 300, "all that there were; 256 at a time"


async def test_a_transport_is_closed_with_the_client(connect: Connect) -> None:
    closed: list[bool] = []

    class Closing(Recorder):
        async def aclose(self) -> None:
            closed.append(True)

    async with connect(transport=Closing(removing)) as client:
        await client.retire(["r1"])

    assert closed == [True]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_closing_it_in_a_forked_process_spares_the_parent(
    serve: Any, connect: Connect, answer: Any, linear: bytes
) -> None:
    """The child is in the middle of the parent's coroutine, where asyncio knows of no running loop."""
    closed: list[bool] = []

    class Closing(Recorder):
        async def aclose(self) -> None:
            closed.append(True)

    server = await serve(answer(200, linear))
    used, unused = connect(server.base_url), connect(transport=Closing(removing))
    await used.manifest("linear-3")
    pid = os.fork()
    if pid == 0:
        try:
            await used.aclose()
            await unused.aclose()
            os._exit(1 if closed else 0)
        finally:
            os._exit(2)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await used.manifest("linear-3")
    assert server.connections == 1


async def test_no_timeout_of_httpx_is_in_the_way(connect: Connect) -> None:
    transport = Recorder(removing)

    await connect(request_timeout_s=600.0, transport=transport).retire(["r1"])

    assert not any(transport.requests[0].extensions.get("timeout", {}).values())


# The connections of a loop that was closed over them are left to the garbage collector, which says so.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_client_made_outside_a_loop_serves_one_loop_after_another(linear: bytes) -> None:
    class Manifest(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(linear)))
            self.end_headers()
            self.wfile.write(linear)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Manifest) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = RolloutControlClient(f"http://127.0.0.1:{server.server_port}", "token", 5)

        async def read_twice() -> int:
            return len((await client.manifest("linear-3")).records) + len((await client.manifest("linear-3")).records)

        async def read_and_close() -> int:
            async with client:
                return await read_twice()

        assert asyncio.run(read_twice()) == 6
        assert asyncio.run(read_and_close()) == 6
        server.shutdown()
    gc.collect()
