"""The transport of the extra `fast`: what tests of the client with either transport do not show."""

import asyncio
import gc
import multiprocessing
import os
from typing import Any

import aiohttp
import pytest
from rollout_control_client import RolloutTree, SyncRolloutControlClient
from rollout_control_server import MemoryLedger
from rollout_control_server.samples import sample_conversation
from served import TOKEN, controlled


@pytest.fixture
def base_url() -> Any:
    ledger = MemoryLedger()
    for commit in sample_conversation("r", 5):
        asyncio.run(ledger.record(commit))
    with controlled(ledger) as control:
        yield control.base_url


async def test_it_is_used_where_aiohttp_is_installed_and_nowhere_else(
    serve: Any, connect: Any, connection: str, linear: bytes, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = []
    open_session = aiohttp.ClientSession.__init__

    def opened(self: aiohttp.ClientSession, *arguments: Any, **options: Any) -> None:
        sessions.append(self)
        open_session(self, *arguments, **options)

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", opened)
    server = await serve(answer(200, linear))
    client = connect(server.base_url)
    for _ in range(3):
        assert len(RolloutTree(await client.manifest("linear-3")).calls) == 3
    assert server.connections == 1
    assert len(sessions) == {"httpx": 0, "aiohttp": 1}[connection]


async def test_both_transports_send_the_same_request(serve: Any, connect: Any, answer: Any) -> None:
    server = await serve(answer(200, b'{"removed":["a.b_c-1"],"absent":[]}'))
    await connect(server.base_url).retire(["a.b_c-1"])
    (request,) = server.requests
    headers = {name: value for name, value in request.headers.items() if name not in {"host", "x-request-id"}}
    assert headers.pop("user-agent").startswith("rollout-control/")
    assert headers.pop("authorization")
    assert headers.pop("connection", "keep-alive") == "keep-alive"
    assert headers == {
        "accept": "application/json, application/problem+json, */*",
        "accept-encoding": "gzip, deflate",
        "content-type": "application/json",
        "content-length": str(len(request.body)),
    }
    assert request.body == b'{"rollout_ids":["a.b_c-1"]}'


async def test_the_longest_body_is_sent_without_a_warning(serve: Any, connect: Any, answer: Any) -> None:
    ids = [f"{index:0255}" for index in range(4096)]
    server = await serve(answer(200, f'{{"removed":[],"absent":{ids}}}'.replace("'", '"').encode()))
    assert (await connect(server.base_url).retire(ids)).absent == ids
    assert len(server.requests[0].body) > 2**20


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_that_drops_the_connections_leaves_them_to_its_parent(base_url: str) -> None:
    """Closing them there would take them out of the selector, which a forked process shares with its parent."""

    def drop(client: SyncRolloutControlClient) -> None:
        assert len(client.manifest("r").records) == 5
        client.close()
        gc.collect()

    with SyncRolloutControlClient(base_url, TOKEN, 20) as client:
        assert len(client.manifest("r").records) == 5
        child = multiprocessing.get_context("fork").Process(target=drop, args=(client,))
        child.start()
        child.join()
        assert child.exitcode == os.EX_OK
        for _ in range(3):
            assert len(client.manifest("r").records) == 5
