"""The client: manifests one by one, in bulk, and decoding one. Each client asks its own side's server."""

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import httpx
import nemo_gym.server_utils
from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig, set_global_aiohttp_client
from nemo_gym.token_id_capture.control_routes import RolloutControlClient as GymClient
from nemo_gym.token_id_capture.staging.records import RolloutManifest as GymManifest
from rollout_control_client import RolloutControlClient, SyncRolloutControlClient
from rollout_control_client._generated.api.manifests.get_rollout_manifest import parse_response

from bench import loops
from bench.http import prepare
from bench.results import PartReport, Result, share_of_limit, times_better
from bench.rounds import WrongAnswerError, alternate
from bench.rows import Rollouts, sample_rollouts
from bench.servers import AUTHORIZATION, TOKEN, manifest_path, serving

COUNT, CALLS = 1000, 20
PEER_AT_ONCE = 32
LIMIT = "bare httpx, nothing decoded"
WITHOUT_FAST = "without the extra `fast`: by httpx alone"


def run(folder: Path) -> PartReport:
    rollouts = sample_rollouts("r", COUNT, CALLS)
    long = sample_rollouts("long", 1, 100)
    prepare(folder, rollouts | long)
    with serving("ours", folder) as our_server, serving("peer", folder) as peer_server:
        clients = Clients(our_server.base_url, rollouts)
        peer_clients = Clients(peer_server.base_url, rollouts)
        pids = [our_server.pid, peer_server.pid]
        one_by_one = alternate(
            {
                "ours": lambda: clients.seconds(clients.ours_one_by_one),
                "peer": lambda: clients.seconds(peer_clients.peer_one_by_one),
                "limit": lambda: clients.seconds(clients.bare_one_by_one),
            },
            rounds=5,
            pids=pids,
        )
        on_our_server = alternate(
            {
                "ours": lambda: clients.seconds(clients.ours_one_by_one),
                "peer": lambda: clients.seconds(clients.peer_one_by_one),
            },
            rounds=3,
            pids=pids,
        )
        without_fast = alternate(
            {
                "ours": lambda: clients.seconds(lambda: clients.ours_one_by_one(by_httpx())),
                "peer": lambda: clients.seconds(clients.peer_one_by_one),
            },
            rounds=3,
            pids=pids,
        )
        at_once = alternate(
            {
                "ours": lambda: clients.seconds(clients.ours_at_once),
                "peer": lambda: clients.seconds(clients.peer_at_once),
            },
            rounds=3,
            pids=pids,
        )
        without_asyncio = alternate(
            {
                "ours": clients.synchronous_seconds,
                "limit": lambda: clients.seconds(clients.ours_one_by_one),
            },
            rounds=3,
            pids=pids,
        )
        in_bulk = alternate(
            {
                "ours": lambda: clients.seconds(clients.ours_in_bulk),
                "peer": lambda: clients.seconds(peer_clients.peer_at_once),
            },
            rounds=5,
            pids=pids,
        )
        headers = {"Authorization": AUTHORIZATION}
        body = httpx.get(our_server.base_url + manifest_path("long-00000"), headers=headers).content
    response = httpx.Response(200, content=body)
    decoding = alternate(
        {
            "ours": lambda: _ms_of_each(lambda: parse_response(response), long),
            "peer": lambda: _ms_of_each(lambda: GymManifest.model_validate(json.loads(body)), long),
        },
        rounds=7,
    )
    each = f"client: {COUNT} manifests of {CALLS} calls"
    goal = [times_better(1, "not slower"), share_of_limit(1 / 1.2, "within 1.2x of bare httpx")]
    return PartReport(
        [
            Result(
                f"{each}, one request each, in sequence",
                "s",
                one_by_one,
                goal,
                LIMIT,
            ),
            Result(f"{each}, likewise, the peer's client on our server too", "s", on_our_server, [times_better(1, "")]),
            Result(f"{each}, likewise, {WITHOUT_FAST}", "s", without_fast, []),
            Result(
                f"{each}, one request each, {PEER_AT_ONCE} at a time, on our server",
                "s",
                at_once,
                [times_better(1.5, "1.5x")],
            ),
            Result(
                f"{each}, in sequence by SyncRolloutControlClient",
                "s",
                without_asyncio,
                [share_of_limit(1 / 1.2, "within 1.2x of the asynchronous client")],
                "the asynchronous client",
            ),
            Result(
                f"{each}, `manifests()`; the peer {PEER_AT_ONCE} at a time",
                "s",
                in_bulk,
                [times_better(10, "a tenth")],
            ),
            Result("client: decode one manifest of 100 calls", "ms", decoding, [times_better(6, "a sixth")]),
        ]
    )


class Clients:
    """What reads all the manifests, and returns how many calls it has seen."""

    def __init__(self, base_url: str, rollouts: Rollouts) -> None:
        self._base_url = base_url
        self._rollouts = rollouts

    def seconds(self, read_all: Callable[[], Coroutine[Any, Any, tuple[float, dict[str, Any]]]]) -> float:
        seconds, manifests = loops.run(read_all())
        if manifests.keys() != self._rollouts.keys():
            raise WrongAnswerError("not every manifest came, or another one")
        for rollout_id, manifest in manifests.items():
            _check(self._rollouts, rollout_id, manifest)
        return seconds

    async def ours_at_once(self) -> tuple[float, dict[str, Any]]:
        async with RolloutControlClient(self._base_url, TOKEN, 30) as client:
            return await _read_at_once(client.manifest, self._rollouts, PEER_AT_ONCE)

    def synchronous_seconds(self) -> float:
        with SyncRolloutControlClient(self._base_url, TOKEN, 30) as client:
            begun = time.perf_counter()
            manifests = {rollout_id: client.manifest(rollout_id) for rollout_id in self._rollouts}
            seconds = time.perf_counter() - begun
        for rollout_id, manifest in manifests.items():
            _check(self._rollouts, rollout_id, manifest)
        return seconds

    async def ours_one_by_one(self, transport: httpx.AsyncBaseTransport | None = None) -> tuple[float, dict[str, Any]]:
        async with RolloutControlClient(self._base_url, TOKEN, 30, transport=transport) as client:
            begun = time.perf_counter()
            manifests = {rollout_id: await client.manifest(rollout_id) for rollout_id in self._rollouts}
            return time.perf_counter() - begun, manifests

    async def ours_in_bulk(self) -> tuple[float, dict[str, Any]]:
        async with RolloutControlClient(self._base_url, TOKEN, 30) as client:
            begun = time.perf_counter()
            manifests = {rollout_id: manifest async for rollout_id, manifest in client.manifests(list(self._rollouts))}
            return time.perf_counter() - begun, manifests

    async def peer_one_by_one(self) -> tuple[float, dict[str, Any]]:
        return await self._peer(at_once=1)

    async def peer_at_once(self) -> tuple[float, dict[str, Any]]:
        return await self._peer(at_once=PEER_AT_ONCE)

    async def bare_one_by_one(self) -> tuple[float, dict[str, Any]]:
        headers = {"Authorization": AUTHORIZATION}
        async with httpx.AsyncClient(base_url=self._base_url, headers=headers, timeout=None) as http:
            begun = time.perf_counter()
            answers = {rollout_id: (await http.get(manifest_path(rollout_id))).content for rollout_id in self._rollouts}
            seconds = time.perf_counter() - begun
        return seconds, {rollout_id: json.loads(answer) for rollout_id, answer in answers.items()}

    async def _peer(self, at_once: int) -> tuple[float, dict[str, Any]]:
        http = set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
        try:
            client = GymClient(self._base_url, auth_token=TOKEN, request_timeout_s=30)
            return await _read_at_once(client.manifest, self._rollouts, at_once)
        finally:
            await http.close()
            nemo_gym.server_utils._GLOBAL_AIOHTTP_CLIENT = None


def by_httpx() -> httpx.AsyncBaseTransport:
    """Returns the transport that the client has without the extra `fast`."""
    return httpx.AsyncHTTPTransport(
        verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
    )


async def _read_at_once(
    read_one: Callable[[str], Awaitable[Any]], rollouts: Rollouts, at_once: int
) -> tuple[float, dict[str, Any]]:
    waiting = iter(rollouts)
    manifests: dict[str, Any] = {}

    async def read() -> None:
        for rollout_id in waiting:
            manifests[rollout_id] = await read_one(rollout_id)

    begun = time.perf_counter()
    await asyncio.gather(*(read() for _ in range(at_once)))
    return time.perf_counter() - begun, manifests


def _ms_of_each(decode: Callable[[], Any], rollouts: Rollouts, times: int = 200) -> float:
    _check(rollouts, next(iter(rollouts)), decode())
    begun = time.perf_counter()
    for _ in range(times):
        decode()
    return (time.perf_counter() - begun) / times * 1000


def _check(rollouts: Rollouts, rollout_id: str, manifest: Any) -> None:
    """Looks at what is left after decoding: ours and Gym's classes have the same names of fields, as the JSON has."""
    records: Iterable[Any] = manifest["records"] if isinstance(manifest, dict) else manifest.records
    keys = [record["chain_hash"] if isinstance(record, dict) else record.chain_hash for record in records]
    if keys != [commit.record.chain_hash for commit in rollouts[rollout_id]]:
        raise WrongAnswerError(f"the manifest of {rollout_id} is not what was recorded")
