"""What the constructor takes, and what it refuses before anything is sent."""

import math
import pickle

import httpx
import pytest
from rollout_control_client import RolloutControlClient

EMPTY = '{"schema_version": 2, "rollout_id": "r1", "records": [], "failures": []}'


def test_the_arguments_are_positional_or_named_as_the_seed_prints_them() -> None:
    RolloutControlClient("http://control.test", "token", 5)
    RolloutControlClient(base_url="https://control.test", auth_token="token", request_timeout_s=0.5)


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://control.test", "http://control.test/training-token-capture/control/rollouts/r1/manifest"),
        ("http://control.test/", "http://control.test/training-token-capture/control/rollouts/r1/manifest"),
        ("HTTP://Control.Test:80///", "http://control.test/training-token-capture/control/rollouts/r1/manifest"),
        ("https://h:8443/a%2Fb/c//", "https://h:8443/a%2Fb/c/training-token-capture/control/rollouts/r1/manifest"),
        ("http://[::1]:8000", "http://[::1]:8000/training-token-capture/control/rollouts/r1/manifest"),
    ],
)
async def test_base_url_may_have_a_path_and_end_in_slashes(base_url: str, url: str) -> None:
    urls: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        urls.append(str(request.url))
        return httpx.Response(200, text=EMPTY)

    async with RolloutControlClient(base_url, "token", 5, transport=httpx.MockTransport(answer)) as client:
        await client.manifest("r1")

    assert urls == [url]


@pytest.mark.parametrize(
    "base_url",
    [
        *("", "control.test", "localhost:8000", "ftp://control.test", "unix:///run/socket", "/path"),
        *(
            "http://",
            "http:///path",
            "http://h:port",
            "http://h\n.test",
            "http://user@h",
            "http://[::1",
            "http://xn--a",
        ),
        *("http://h:0", "http://h:-1", "http://h:65536"),
        *("http://h/?q=1", "http://h/?", "http://h/#part"),
    ],
)
def test_a_base_url_that_is_no_http_url_is_refused(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        RolloutControlClient(base_url, "token", 5)


@pytest.mark.parametrize("base_url", ["http://user:p4ssw0rd@control.test", "user:p4ssw0rd@control.test"])
def test_a_password_in_base_url_is_not_shown(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as caught:
        RolloutControlClient(base_url, "token", 5)

    assert "p4ssw0rd" not in str(caught.value)


@pytest.mark.parametrize(
    "token", ["", "s3cret\n", "s3cret\r\nX-Other: 1", " s3cret", "s3cret ", "s3crét", "s3cret\x00", "\udc80s3cret"]
)
def test_a_token_that_no_header_carries_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="auth_token") as caught:
        RolloutControlClient("http://control.test", token, 5)

    assert "s3cr" not in str(caught.value)


def test_a_token_that_is_no_string_is_a_type_error_that_does_not_show_it() -> None:
    with pytest.raises(TypeError, match="auth_token is a string, not bytes") as caught:
        RolloutControlClient("http://control.test", b"s3cret", 5)

    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("seconds", [0, -1, -0.5, math.nan, math.inf])
def test_a_timeout_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="request_timeout_s"):
        RolloutControlClient("http://control.test", "token", seconds)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_goes_into_no_pickle_and_says_what_to_do(protocol: int) -> None:
    """By itself, with its method that somebody hands to another process, or within what holds it."""
    client = RolloutControlClient("http://control.test", "s3cret-token", 5)
    for taken in (client, client.manifest, {"control": client}):
        with pytest.raises(TypeError, match="make one in each process") as caught:
            pickle.dumps(taken, protocol)
        assert "s3cret" not in str(caught.value)
