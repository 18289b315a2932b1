"""What a client and a server of one version say to each other, recorded, so that the next version can be held to it.

Run as a program with a version of rollout-control installed, it writes their exchanges, each a line:

    python tests/neighbours/neighbours.py > tests/neighbours/exchanges-VERSION.jsonl
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from rollout_control_client import RolloutControlClient, RolloutRetiredError
from rollout_control_server import MemoryLedger, create_app
from rollout_control_server.samples import sample_commit, sample_conversation

TOKEN = "a-token-of-the-neighbours"
BASE_URL = "http://server"
SENT_HEADERS = ("authorization", "content-type", "content-encoding", "accept")


@asynccontextmanager
async def filled_ledger() -> AsyncIterator[MemoryLedger]:
    """Opens a ledger with the rollouts that `converse` asks about."""
    async with MemoryLedger() as ledger:
        for commit in (*sample_conversation("whole", 5, branch_at=3), sample_commit("failed", "c"), *twins()):
            await ledger.record(commit)
        await ledger.record_failure("failed", "f", "unresolved_parent")
        await ledger.record_failure("failed", "\x00é", "a reason")
        await ledger.retire(["retired"])
        yield ledger


def twins() -> list[Any]:
    return [sample_commit(rollout_id, "c") for rollout_id in ("one", "other")]


async def converse(transport: httpx.AsyncBaseTransport) -> list[Any]:
    """Does what a trainer does, and returns what it got to know."""
    known: list[Any] = []
    async with RolloutControlClient(BASE_URL, TOKEN, 5, transport=transport) as client:
        for rollout_id in ("whole", "failed", "unknown"):
            known.append(plain(await client.manifest(rollout_id)))
        try:
            await client.manifest("retired")
        except RolloutRetiredError as error:
            known.append(type(error).__name__)
        ids = ["whole", "retired", "unknown", "failed"]
        read = [found async for found in client.manifests(ids)]
        known.append(
            [
                [rollout_id, type(found).__name__ if isinstance(found, RolloutRetiredError) else plain(found)]
                for rollout_id, found in read
            ]
        )
        for remove in (client.retire, client.delete):
            removal = await remove(["whole", "one", "unknown", "one"])
            known.append([list(removal.removed), list(removal.absent)])
        try:
            await client.manifest("unknown/nothing")
        except ValueError:
            known.append("ValueError")
    return known


def plain(manifest: Any) -> Any:
    """Returns of a manifest what every version of the client has."""
    records = [
        [getattr(record, name) for name in ("model_call_id", "parent_call_id", "cum_len", "digest", "staging_key")]
        for record in manifest.records
    ]
    return [manifest.rollout_id, records, [[row.model_call_id, row.reason] for row in manifest.failures]]


class Recorder(httpx.AsyncBaseTransport):
    """Notes what goes over the wire to an application."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.exchanges: list[dict[str, Any]] = []
        self._inner = httpx.ASGITransport(app)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._inner.handle_async_request(request)
        await answer.aread()
        self.exchanges.append(
            {
                "method": request.method,
                "path": request.url.raw_path.decode(),
                "headers": {name: request.headers[name] for name in SENT_HEADERS if name in request.headers},
                "body": request.content.decode(),
                "status": answer.status_code,
                "media_type": answer.headers["content-type"],
                "answer": answer.content.decode(),
            }
        )
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


async def main() -> None:
    async with filled_ledger() as ledger:
        recorder = Recorder(create_app(ledger, TOKEN))
        known = await converse(recorder)
    for line in (*recorder.exchanges, {"known": known}):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
