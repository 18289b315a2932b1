"""Servers that do what the contract does not allow, on real sockets: the client ends in its own errors, and in time."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from rollout_control_client import (
    ContractBrokenError,
    RequestFailedError,
    RequestTimedOutError,
    RolloutControlError,
    ServerUnreachableError,
)

PATH = "/training-token-capture/control/rollouts/linear-3/manifest"


async def wait_for_ever(writer: asyncio.StreamWriter) -> None:
    """Says nothing more, until the client has had enough."""
    await writer.drain()
    await writer.wait_closed()


@pytest.fixture
def manifest(linear: bytes) -> dict[str, Any]:
    return json.loads(linear)


async def test_a_server_that_never_answers_is_timed_out(serve: Any, connect: Any) -> None:
    server = await serve(wait_for_ever)

    with pytest.raises(
        RequestTimedOutError, match=r"no whole answer from http://127\.0\.0\.1:\d+ within 0\.2 s"
    ) as caught:
        await connect(server.base_url, 0.2).manifest("linear-3")

    assert (caught.value.method, caught.value.path, caught.value.status) == ("GET", PATH, None)


async def test_a_body_that_stalls_after_its_headers_is_timed_out(
    serve: Any, connect: Any, answer: Any, linear: bytes
) -> None:
    async def stall(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(200, linear)[:-100])
        await wait_for_ever(writer)

    server = await serve(stall)

    with pytest.raises(RequestTimedOutError):
        await connect(server.base_url, 0.2).manifest("linear-3")


async def test_a_body_that_trickles_is_timed_out(serve: Any, connect: Any, answer: Any, linear: bytes) -> None:
    """Each byte comes in time for a timeout that is counted per read; the whole does not."""

    async def trickle(writer: asyncio.StreamWriter) -> None:
        for byte in answer(200, linear):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.01)

    server = await serve(trickle)

    with pytest.raises(RequestTimedOutError):
        await connect(server.base_url, 0.2).manifest("linear-3")


async def test_a_connection_that_drops_midway_is_tried_again(
    serve: Any, connect: Any, answer: Any, linear: bytes
) -> None:
    async def drop(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(200, linear)[:-100])
        await writer.drain()

    server = await serve(drop, answer(200, linear))

    assert len((await connect(server.base_url).manifest("linear-3")).records) == 3
    assert len(server.requests) == 2


@pytest.mark.usefixtures("one_attempt")
async def test_a_connection_that_drops_to_the_last_is_unreachable(serve: Any, connect: Any, answer: Any) -> None:
    async def drop(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(200, b"{}")[:-1])
        await writer.drain()

    server = await serve(drop)

    with pytest.raises(ServerUnreachableError, match="RemoteProtocolError") as caught:
        await connect(server.base_url).manifest("linear-3")

    assert caught.value.status is None


@pytest.mark.usefixtures("one_attempt")
async def test_what_is_not_http_is_unreachable(serve: Any, connect: Any) -> None:
    server = await serve(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")

    with pytest.raises(ServerUnreachableError):
        await connect(server.base_url).manifest("linear-3")


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"<!doctype html><title>Sign in</title>",
            b"null",
            b"[]",
            b'"manifest"',
            b"{}",
            b"{",
            b"NaN",
            b"\xff\xfe{}",
        ),
        b'{"detail": "an error with the wrong status"}',
        b"[" * 100_000,
        b'{"unknown": ' + b"[" * 100_000,
        b'{"rollout_id": "\xff"}',
    ],
    ids=lambda body: repr(body[:20]),
)
async def test_a_200_without_the_contracts_body_breaks_the_contract(
    serve: Any, connect: Any, answer: Any, body: bytes
) -> None:
    server = await serve(answer(200, body))
    client = connect(server.base_url)

    for call in (lambda: client.manifest("linear-3"), lambda: client.retire(["r1"])):
        with pytest.raises(ContractBrokenError) as caught:
            await call()
        assert caught.value.status == 200
        assert isinstance(caught.value, ValueError)

    assert len(server.requests) == 2


async def test_a_proxys_page_with_status_200_breaks_the_contract(serve: Any, connect: Any, answer: Any) -> None:
    server = await serve(answer(200, b"<html>Sign in</html>", "text/html"))

    with pytest.raises(ContractBrokenError, match="malformed"):
        await connect(server.base_url).manifest("linear-3")


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(schema_version=3),
        lambda manifest: manifest.update(schema_version="2"),
        lambda manifest: manifest.update(schema_version=None),
        lambda manifest: manifest.update(rollout_id="another"),
        lambda manifest: manifest.update(rollout_id=None),
        lambda manifest: manifest.pop("failures"),
        lambda manifest: manifest.update(records={}),
        lambda manifest: manifest["records"][0].update(schema_version=1),
        lambda manifest: manifest["records"][0].update(digest_version=3),
        lambda manifest: manifest["records"][0].update(digest="ab"),
        lambda manifest: manifest["records"][0].update(model_call_id=""),
        lambda manifest: manifest["records"][0].update(parent_call_id=""),
        lambda manifest: manifest["records"][0].update(prev_len=-1),
        lambda manifest: manifest["records"][0].update(delta_len=0),
        lambda manifest: manifest["records"][0].update(cum_len=40.5),
        lambda manifest: manifest["records"][0].update(cum_len=True),
        lambda manifest: manifest["records"][0].update(weight_version=2**63),
        lambda manifest: manifest["records"][0].update(mode="tokens"),
        lambda manifest: manifest["records"][0].update(admitted_at="now"),
        lambda manifest: manifest["records"][0].update(output_fingerprint="0" * 63),
        lambda manifest: manifest["records"][0].pop("continuation_fingerprint"),
        lambda manifest: manifest["failures"].append({"schema_version": 2, "model_call_id": "c", "reason": ""}),
    ],
)
async def test_a_manifest_of_another_shape_breaks_the_contract(
    serve: Any, connect: Any, answer: Any, manifest: dict[str, Any], change: Change
) -> None:
    change(manifest)
    server = await serve(answer(200, json.dumps(manifest).encode()))

    with pytest.raises(ContractBrokenError):
        await connect(server.base_url).manifest("linear-3")

    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(extension={"of": ["a", "newer", "server"]}),
        lambda manifest: manifest["records"][0].update(extension=1),
        lambda manifest: manifest["records"][0].update(weight_version=2**63 - 1),
        lambda manifest: manifest["failures"].append(
            {"schema_version": 2, "model_call_id": "c", "reason": "new_reason", "extension": None}
        ),
    ],
)
async def test_an_unknown_field_and_the_largest_values_are_accepted(
    serve: Any, connect: Any, answer: Any, manifest: dict[str, Any], change: Change
) -> None:
    change(manifest)
    server = await serve(answer(200, json.dumps(manifest).encode()))

    assert len((await connect(server.base_url).manifest("linear-3")).records) == 3


@pytest.mark.parametrize(
    ("removed", "absent"),
    [
        ([], []),
        (["r1"], []),
        (["r1", "r2", "r3"], []),
        (["r1", "r2"], ["r2"]),
        (["r1", "r1"], ["r2"]),
        (["r1"], ["r3"]),
        (["r1", ""], ["r2"]),
        (["r1", 2], []),
    ],
)
async def test_a_removal_that_does_not_account_for_the_ids_breaks_the_contract(
    serve: Any, connect: Any, answer: Any, removed: list[Any], absent: list[Any]
) -> None:
    server = await serve(answer(200, json.dumps({"removed": removed, "absent": absent}).encode()))
    client = connect(server.base_url)

    for operation in (client.retire, client.delete):
        with pytest.raises(ContractBrokenError) as caught:
            await operation(["r1", "r2"])
        assert caught.value.partial_removal.unconfirmed == ["r1", "r2"]


@pytest.mark.parametrize("status", [201, 204, 302, 400, 401, 404, 418, 499, 500, 501, 599, 600, 999])
async def test_any_other_status_is_an_error_that_carries_it(serve: Any, connect: Any, answer: Any, status: int) -> None:
    body = b"" if status == 204 else b"<html>\n <h1>Bad   Gateway</h1>\x1b[31m</html>"
    server = await serve(answer(status, body, "text/html"))

    with pytest.raises(RequestFailedError) as caught:
        await connect(server.base_url).manifest("linear-3")

    assert caught.value.status == status
    assert status == 204 or caught.value.detail.startswith("<html> <h1>Bad Gateway</h1> [31m</html>")
    assert ("does not take this client's token" in caught.value.detail) == (status == 401)
    assert len(server.requests) == 1


async def test_a_long_page_is_cut_short(serve: Any, connect: Any, answer: Any) -> None:
    server = await serve(answer(500, b"<p>" + b"x" * 1_000_000, "text/html; charset=hex"))

    with pytest.raises(RequestFailedError) as caught:
        await connect(server.base_url).manifest("linear-3")

    assert len(caught.value.detail) < 300


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_body_that_is_not_encoded_as_it_says_breaks_the_contract(
    serve: Any, connect: Any, answer: Any, linear: bytes, encoding: str
) -> None:
    server = await serve(answer(200, linear, Content_Encoding=encoding))

    with pytest.raises(ContractBrokenError, match="DecodingError"):
        await connect(server.base_url).manifest("linear-3")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_with_the_token(
    serve: Any, connect: Any, answer: Any, linear: bytes, status: int
) -> None:
    elsewhere = await serve(answer(200, linear))
    server = await serve(answer(status, b"", Location=f"{elsewhere.base_url}{PATH}"))
    client = connect(server.base_url)

    for call in (lambda: client.manifest("linear-3"), lambda: client.retire(["r1"])):
        with pytest.raises(RequestFailedError, match="redirect") as caught:
            await call()
        assert caught.value.status == status

    assert elsewhere.requests == []


async def test_a_connection_is_used_again(serve: Any, connect: Any, answer: Any, linear: bytes) -> None:
    server = await serve(answer(200, linear))
    client = connect(server.base_url)

    for _ in range(3):
        await client.manifest("linear-3")

    assert len(server.requests) == 3
    assert server.connections == 1


async def test_the_token_goes_to_no_proxy_of_the_environment(
    serve: Any, connect: Any, answer: Any, linear: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, proxy = await serve(answer(200, linear)), await serve(answer(502, b""))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.base_url)

    await connect(server.base_url).manifest("linear-3")

    assert proxy.requests == []


@pytest.mark.usefixtures("one_attempt")
async def test_nothing_listens(serve: Any, connect: Any) -> None:
    with pytest.raises(ServerUnreachableError, match=r"ConnectError: .* \(http://127\.0\.0\.1:1\)") as caught:
        await connect("http://127.0.0.1:1").retire(["r1"])

    assert isinstance(caught.value, RolloutControlError)
    assert (caught.value.method, caught.value.status) == ("POST", None)


@pytest.mark.usefixtures("one_attempt")
async def test_tls_where_the_server_speaks_none(connect: Any, answer: Any, linear: bytes) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(200, linear))
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]

        with pytest.raises(ServerUnreachableError, match="SSL"):
            await connect(f"https://127.0.0.1:{port}").manifest("linear-3")


@pytest.mark.parametrize(
    "form",
    ["<pre>Authorization: Bearer {}</pre>", '{{"detail": "bad {}"}}', "{:>210}", '{{"detail": "{:>1010}"}}'],
)
async def test_a_server_that_sends_the_token_back_does_not_get_it_shown(
    serve: Any, connect: Any, answer: Any, token: str, form: str
) -> None:
    server = await serve(answer(500, form.format(token).replace("  ", "x ").encode()))

    with pytest.raises(RequestFailedError) as caught:
        await connect(server.base_url).manifest("linear-3")

    assert token[:5] not in f"{caught.value!r} {caught.value} {vars(caught.value)}"
