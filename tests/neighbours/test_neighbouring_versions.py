"""A client and a server of neighbouring versions work together, by what an earlier version said over the wire.

`exchanges-0.1.0.jsonl` was recorded with the first version (see `neighbours.py`). The next release adds its own.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from rollout_control_server import create_app

from .neighbours import BASE_URL, TOKEN, converse, filled_ledger

RECORDED = sorted(Path(__file__).parent.glob("exchanges-*.jsonl"))


@pytest.fixture(params=RECORDED, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return [json.loads(line) for line in request.param.read_text().splitlines()]


def test_an_earlier_version_was_recorded() -> None:
    assert [path.name for path in RECORDED] == ["exchanges-0.1.0.jsonl"]


async def test_an_earlier_client_gets_from_this_server_what_it_got_from_its_own(recorded: list[dict[str, Any]]) -> None:
    """Byte for byte; of a problem document its kind, since its detail is for people."""
    async with (
        filled_ledger() as ledger,
        httpx.AsyncClient(transport=httpx.ASGITransport(create_app(ledger, TOKEN)), base_url=BASE_URL) as http,
    ):
        for exchange in recorded[:-1]:
            answer = await http.request(
                exchange["method"], exchange["path"], headers=exchange["headers"], content=exchange["body"]
            )
            assert (answer.status_code, answer.headers["content-type"]) == (exchange["status"], exchange["media_type"])
            if answer.status_code == 200:
                assert answer.text == exchange["answer"]
            else:
                kind = {name: value for name, value in json.loads(exchange["answer"]).items() if name != "detail"}
                assert kind.items() <= answer.json().items()


class EarlierServer(httpx.AsyncBaseTransport):
    """Answers each operation as the earlier version did, and 404 to one that it did not have."""

    def __init__(self, exchanges: list[dict[str, Any]]) -> None:
        self._answers = {
            self._key(exchange["method"], exchange["path"], exchange["body"]): exchange for exchange in exchanges
        }

    def _key(self, method: str, path: str, body: str) -> tuple[str, str, str]:
        return method, path, json.dumps(json.loads(body)) if body else ""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        key = self._key(request.method, request.url.raw_path.decode(), request.content.decode())
        exchange = self._answers.get(key)
        if exchange is None:
            return httpx.Response(404, json={"detail": "no such path"})
        headers = {"Content-Type": exchange["media_type"]}
        return httpx.Response(exchange["status"], headers=headers, content=exchange["answer"].encode())


async def test_this_client_gets_from_an_earlier_server_what_its_own_client_got(recorded: list[dict[str, Any]]) -> None:
    assert await converse(EarlierServer(recorded[:-1])) == recorded[-1]["known"]
