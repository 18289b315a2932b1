"""The tree of errors: everything foreign is translated into it, and nothing in it shows the token."""

import logging
import pickle
import traceback
from typing import Any

import httpx
import pytest
import rollout_control_client
from rollout_control_client import (
    ContractBrokenError,
    PartialRemoval,
    RemovalRefusedError,
    RequestFailedError,
    RequestTimedOutError,
    RolloutControlError,
    RolloutRemoval,
    RolloutRetiredError,
    ServerUnreachableError,
    ServiceUnavailableError,
)

PATH = "/training-token-capture/control/rollouts/r1/manifest"

HTTPX_ERRORS = [
    value
    for value in (getattr(httpx, name) for name in httpx.__all__)
    if isinstance(value, type) and issubclass(value, Exception)
]


def made(error: type[Exception]) -> Exception:
    """An instance, however the class wants to be called."""
    request = httpx.Request("GET", "http://control.test")
    for arguments, named in [
        (("what happened",), {"request": request, "response": httpx.Response(500)}),
        (("what happened",), {}),
        ((), {}),
    ]:
        try:
            return error(*arguments, **named)
        except TypeError:
            continue
    raise AssertionError(f"don't know how to make a {error}")


def expected(error: type[Exception]) -> type[RequestFailedError]:
    if issubclass(error, httpx.TimeoutException):
        return RequestTimedOutError
    if issubclass(error, httpx.NetworkError | httpx.ProxyError | httpx.RemoteProtocolError | OSError):
        return ServerUnreachableError
    if issubclass(error, httpx.DecodingError | httpx.TooManyRedirects):
        return ContractBrokenError
    return RequestFailedError


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("foreign", [*HTTPX_ERRORS, OSError, ConnectionResetError, TimeoutError])
async def test_every_foreign_error_becomes_one_of_ours(connect: Any, foreign: type[Exception]) -> None:
    original = made(foreign)

    async def fail(request: httpx.Request) -> httpx.Response:
        raise original

    client = connect(transport=httpx.MockTransport(fail))

    with pytest.raises(RolloutControlError) as caught:
        await client.manifest("r1")

    assert type(caught.value) is expected(foreign)
    assert caught.value.__cause__ is original
    assert caught.value.detail.startswith(foreign.__name__)
    assert (caught.value.method, caught.value.path, caught.value.status) == ("GET", PATH, None)


async def test_a_token_that_is_a_common_word_garbles_no_error() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(401, json={"detail": "send the token"}))

    async with rollout_control_client.RolloutControlClient("http://h", "token", 5, transport=transport) as client:
        with pytest.raises(RequestFailedError, match="send the token"):
            await client.manifest("r1")


def test_httpx_has_the_errors_that_we_looked_at() -> None:
    assert len(HTTPX_ERRORS) >= 28


@pytest.mark.parametrize(
    "kind",
    [
        *(RequestFailedError, RemovalRefusedError, ServiceUnavailableError, ServerUnreachableError),
        *(RequestTimedOutError, ContractBrokenError),
    ],
)
def test_every_error_derives_from_the_root_and_is_drawn_in_the_module(kind: type[RequestFailedError]) -> None:
    assert issubclass(kind, RolloutControlError)
    assert issubclass(kind, RuntimeError)
    assert issubclass(kind, ValueError) == (kind is ContractBrokenError)
    assert kind.__name__ in (rollout_control_client.errors.__doc__ or "")
    assert kind.__name__ in rollout_control_client.__all__


@pytest.mark.parametrize(
    ("content_type", "body", "detail"),
    [
        ("application/problem+json", b'{"title": "Refused", "status": 409, "detail": "weights move"}', "weights move"),
        ("application/json", b'{"detail": "weights move"}', "weights move"),
        ("text/plain", b'{"detail": "weights move"}', "weights move"),
        ("application/json", b'{"detail": [{"loc": ["body"]}]}', '{"detail": [{"loc": ["body"]}]}'),
        ("application/json", b'{"detail": ""}', '{"detail": ""}'),
        ("application/json", b'{"detail": null}', '{"detail": null}'),
        ("application/json", b'["detail"]', '["detail"]'),
        ("application/json", b'{"":' * 100_000, '{"":' * 50 + "..."),
        ("text/html", b"<h1>\n Conflict\t</h1>", "<h1> Conflict </h1>"),
        ("text/html", "é\u202e".encode(), "é"),
        ("text/html", b"\xff\x00", "\N{REPLACEMENT CHARACTER}"),
        ("text/html; charset=no-such", b"text", "text"),
        ("text/html", b"", "Conflict"),
    ],
)
async def test_the_detail_of_any_body_is_read(connect: Any, content_type: str, body: bytes, detail: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(409, content=body, headers={"Content-Type": content_type}))

    with pytest.raises(RemovalRefusedError) as caught:
        await connect(transport=transport).retire(["r1"])

    assert caught.value.detail == detail
    name = caught.value.request_id
    assert str(caught.value).endswith(f"/rollouts/retire was answered with status 409: {detail} (request {name})")


@pytest.mark.parametrize(
    ("status", "content", "headers"),
    [
        (409, b'{"detail": "' + b"x" * 5_000_000 + b'"}', {}),
        (307, b"", {"Location": "http://h/" + "x" * 50_000}),
    ],
)
async def test_an_error_has_an_excerpt_of_what_is_very_long(
    connect: Any, status: int, content: bytes, headers: dict[str, str]
) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=content, headers=headers))

    with pytest.raises(RequestFailedError) as caught:
        await connect(transport=transport).retire(["r1"])

    assert caught.value.detail.endswith("xxx...")
    assert len(caught.value.detail) == 1003
    assert len(repr(caught.value)) < 1200


@pytest.mark.parametrize(
    "kind", [RequestFailedError, RemovalRefusedError, ServiceUnavailableError, ContractBrokenError]
)
def test_an_error_survives_pickling(kind: type[RequestFailedError]) -> None:
    error = kind("POST", "/path", 503, "busy")
    error.partial_removal = PartialRemoval(
        finished=RolloutRemoval(removed=["a"], absent=[]), unconfirmed=["b"], unsent=["c"]
    )

    again = pickle.loads(pickle.dumps(error))

    assert type(again) is kind
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_the_shared_error_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(RolloutRetiredError("r1")))

    assert again.rollout_id == "r1"


@pytest.mark.usefixtures("one_attempt")
async def test_nothing_shows_the_token(
    serve: Any, connect: Any, answer: Any, linear: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = await serve(
        answer(200, linear),
        answer(401, b'{"detail": "no"}'),
        answer(200, b"<html>"),
        b"no HTTP at all\r\n\r\n",
        lambda writer: writer.drain(),
    )
    client = connect(server.base_url)

    await client.manifest("linear-3")
    shown = [
        repr(client),
        str(client),
        repr(vars(client)),
        *(repr(vars(value)) for value in vars(client).values() if hasattr(value, "__dict__")),
    ]
    for _ in range(4):
        with pytest.raises(RequestFailedError) as caught:
            await client.retire(["r1"])
        error: BaseException | None = caught.value
        while error is not None:
            shown += [repr(error), str(error), repr(vars(error))]
            frames = traceback.walk_tb(error.__traceback__)
            shown += [
                repr(frame.f_locals)
                for frame, _ in frames
                if frame.f_code.co_filename.startswith(rollout_control_client.__path__[0])
            ]
            error = error.__cause__ or error.__context__

    token = server.requests[0].headers["authorization"].removeprefix("Bearer ")
    assert "was answered with status" in caplog.text
    assert token not in caplog.text
    assert not [text for text in shown if token in text]
