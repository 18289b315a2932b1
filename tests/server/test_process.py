"""`rollout-control serve` as a process, and requests that only a socket can send."""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.sqlite.connections import connect
from rollout_control_spec import CONTROL_ROUTE_PREFIX, openapi_yaml
from served import SERVE, TOKEN, ServerProcess, control_client

Start = Callable[..., ServerProcess]


def exchange(address: tuple[str, int], *parts: bytes, wait_for_answer: bool = True) -> bytes:
    """Sends bytes, and returns all that comes back until the server closes or has answered."""
    with socket.create_connection(address, timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
        if not wait_for_answer:
            return b""
        answer = b""
        while b"\r\n\r\n" not in answer:
            chunk = connection.recv(65536)
            if not chunk:
                break
            answer += chunk
        return answer


def head(method: str, path: str, *headers: str, token: str | None = TOKEN) -> bytes:
    authorization = [f"Authorization: Bearer {token}"] if token is not None else []
    lines = [f"{method} {CONTROL_ROUTE_PREFIX}{path} HTTP/1.1", "Host: x", *authorization, *headers, "", ""]
    return "\r\n".join(lines).encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_it_serves_health_and_the_spec_without_a_token(start_server: Start) -> None:
    server = start_server()
    with httpx.Client(base_url=server.base_url, trust_env=False) as stranger:
        assert stranger.get("/livez").text == "alive\n"
        assert stranger.get("/readyz").text == "ready\n"
        spec = stranger.get("/openapi.yaml")
        assert spec.content == openapi_yaml()
        assert spec.headers["content-type"] == "application/yaml"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/openapi.yaml"])
def test_head_is_answered_as_get_without_a_body(shared_server: ServerProcess, path: str) -> None:
    """Load balancers ask so."""
    with httpx.Client(base_url=shared_server.base_url, trust_env=False) as stranger:
        got = stranger.get(path)
        for _ in range(2):  # on one connection, which a body would have disturbed
            headed = stranger.head(path)
            assert (headed.status_code, headed.content) == (200, b"")
            assert headed.headers["content-type"] == got.headers["content-type"]
            assert headed.headers["content-length"] == str(len(got.content))
        refused = stranger.post(path)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_401_is_answered_before_a_large_body_is_sent(start_server: Start) -> None:
    server = start_server()
    request = head("POST", "/rollouts/retire", "Content-Type: application/json", "Content-Length: 20000000", token=None)
    assert status_of(exchange(server.address, request)) == 401


def test_413_is_answered_before_a_large_body_is_sent(start_server: Start) -> None:
    server = start_server()
    request = head("POST", "/rollouts/retire", "Content-Type: application/json", "Content-Length: 20000000")
    assert status_of(exchange(server.address, request)) == 413


def test_a_body_that_is_announced_is_asked_for_only_with_the_token(start_server: Start) -> None:
    """A client that sends `Expect: 100-continue` is spared sending a body that nobody reads."""
    server = start_server()
    expecting = ("Content-Type: application/json", "Content-Length: 21", "Expect: 100-continue")
    assert status_of(exchange(server.address, head("POST", "/rollouts/retire", *expecting, token=None))) == 401
    assert status_of(exchange(server.address, head("POST", "/rollouts/retire", *expecting))) == 100


def test_a_client_that_goes_away_leaves_nothing(start_server: Start) -> None:
    """Midway in its body, or before its answer: nothing is done by halves, nothing is logged as a failure."""
    server = start_server()
    headers = ("Content-Type: application/json", "Content-Length: 1000")
    for _ in range(20):
        exchange(
            server.address, head("POST", "/rollouts/retire", *headers), b'{"rollout_ids":["r', wait_for_answer=False
        )
    with control_client(server.base_url) as http:
        assert http.get(f"{CONTROL_ROUTE_PREFIX}/rollouts/r/manifest").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    _, logged = server.process.communicate(timeout=20)
    assert logged == ""


HOSTILE_HEADERS = {
    "a token with bytes over 127": [b"Authorization: Bearer \xff\xfe\xc3\xa9"],
    "an empty authorization": [b"Authorization:"],
    "a scheme alone": [b"Authorization: Bearer"],
    "another scheme": [b"Authorization: Basic Og=="],
    "odd content type": [b"Authorization: Bearer " + TOKEN.encode(), b"Content-Type: \xff/\xfe; charset=\xfd"],
    "odd content encoding": [b"Authorization: Bearer " + TOKEN.encode(), b"Content-Encoding: \xff"],
    "odd host": [b"Authorization: Bearer " + TOKEN.encode(), b"Host: \xff:99999"],
    "a cookie of rubbish": [b"Authorization: Bearer " + TOKEN.encode(), b"Cookie: \xff=\xfe;;=;"],
    "an upgrade": [
        b"Authorization: Bearer " + TOKEN.encode(),
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ],
    "many headers": [b"Authorization: Bearer " + TOKEN.encode(), *(b"X-%d: y" % index for index in range(500))],
    "a range": [b"Authorization: Bearer " + TOKEN.encode(), b"Range: bytes=1-0"],
    "a forwarded client": [b"Authorization: Bearer " + TOKEN.encode(), b"X-Forwarded-For: \xff", b"Forwarded: for="],
}
HOSTILE_PATHS = [
    b"/rollouts/./manifest",
    b"/rollouts/../manifest",
    b"/rollouts/%2e%2e/manifest",
    b"/rollouts/a%2Fb/manifest",
    b"/rollouts/r1%0A/manifest",
    b"/rollouts/%00/manifest",
    b"/rollouts/%/manifest",
    b"/rollouts/%zz/manifest",
    b"/rollouts/%ff%fe/manifest",
    b"/rollouts/\xff/manifest",
    b"/rollouts/r;x=1/manifest",
    b"/rollouts/r/manifest?x=%ff&&=",
    b"/rollouts/r/manifest#x",
    b"/rollouts/{rollout_id}/manifest",
    b"/rollouts/" + b"a" * 256 + b"/manifest",
    b"/rollouts/" + b"a" * 70_000 + b"/manifest",
    b"/" * 100,
    b"/%2f%2F//..//",
]


@pytest.fixture(scope="module")
def shared_server() -> object:
    process = subprocess.Popen(
        [*SERVE, "--ledger", "memory://"],
        env={**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": TOKEN},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    server = ServerProcess(process, process.stderr.readline().split()[-1])
    yield server
    process.kill()
    process.communicate()


@pytest.mark.parametrize("headers", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_no_header_gets_a_5xx(shared_server: ServerProcess, headers: list[bytes], method: bytes) -> None:
    path = b"/rollouts/r/manifest" if method == b"GET" else b"/rollouts/retire"
    host = [] if any(line.startswith(b"Host:") for line in headers) else [b"Host: x"]
    lines = [b"%s %s%s HTTP/1.1" % (method, CONTROL_ROUTE_PREFIX.encode(), path), *host, *headers]
    answer = exchange(shared_server.address, b"\r\n".join([*lines, b"Content-Length: 0", b"", b""]))
    assert 200 <= status_of(answer) < 500, answer
    assert TOKEN.encode() not in answer


@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=lambda path: repr(path[:40]))
@pytest.mark.parametrize("token", [TOKEN, "wrong"])
def test_no_path_gets_a_5xx(shared_server: ServerProcess, path: bytes, token: str) -> None:
    request = b"GET %s%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n" % (
        CONTROL_ROUTE_PREFIX.encode(),
        path,
        token.encode(),
    )
    answer = exchange(shared_server.address, request)
    assert 200 <= status_of(answer) < 500, answer
    if token == "wrong" and b"application/problem+json" in answer:
        assert status_of(answer) == 401


@contextlib.contextmanager
def running_request(server: ServerProcess, body_bytes: int) -> Iterator[socket.socket]:
    """A retire whose body the server waits for: it has asked for it with `100 Continue`."""
    headers = ("Content-Type: application/json", f"Content-Length: {body_bytes}", "Expect: 100-continue")
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(head("POST", "/rollouts/retire", *headers))
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        yield connection


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_request_that_is_running(start_server: Start, number: signal.Signals) -> None:
    server = start_server()
    body = json.dumps({"rollout_ids": ["r"]}).encode()
    idle = HTTPConnection(*server.address, timeout=60)
    with contextlib.closing(idle), running_request(server, len(body)) as running:
        idle.request("GET", "/livez")
        assert idle.getresponse().read() == b"alive\n"
        running.sendall(body[:5])
        server.process.send_signal(number)
        assert idle.sock.recv(1) == b"", "the server closes what is idle, and waits for what is not"
        running.sendall(body[5:])
        assert status_of(running.recv(65536)) == 200
    _, logged = server.process.communicate(timeout=60)
    assert "Traceback" not in logged


def test_a_client_that_stalls_does_not_keep_it_from_ending(start_server: Start) -> None:
    server = start_server()
    with running_request(server, 500) as stalled:
        stalled.sendall(b'{"roll')
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=60)


def test_the_ledger_can_be_named_in_the_environment(tmp_path: Path) -> None:
    process = subprocess.Popen(
        SERVE,
        env={
            **os.environ,
            "ROLLOUT_CONTROL_AUTH_TOKEN": TOKEN,
            "ROLLOUT_CONTROL_LEDGER": f"sqlite:///{tmp_path}/named.sqlite",
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "named.sqlite on http://" in process.stderr.readline()
    process.kill()
    process.communicate()


def serve_on(ledger_url: str) -> subprocess.CompletedProcess[str]:
    """Runs a server that should end by itself."""
    return subprocess.run(
        [*SERVE, "--ledger", ledger_url],
        env={**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_ledger_that_takes_no_write_now_is_not_served(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    SqliteLedger(path)
    with contextlib.closing(connect(path)) as somebody:
        somebody.execute("BEGIN IMMEDIATE")
        ended = serve_on(f"sqlite:///{path}")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"Error: the ledger cannot answer now: the ledger {path} ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("127.0.0.1:1/x", 1, "the ledger cannot answer now: "),
        ("127.0.0.1:port/x", 2, "the ledger cannot be used: asyncpg cannot read the DSN"),
    ],
)
def test_a_database_that_is_not_reached_is_not_served(address: str, status: int, said: str) -> None:
    ended = serve_on(f"postgresql://u:s3cret@{address}?operation_timeout_s=1")
    assert ended.returncode == status
    assert ended.stderr.splitlines()[-1].startswith(f"Error: {said}")
    assert "serving" not in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "s3cret" not in ended.stderr


def test_a_token_that_cannot_be_sent_makes_no_ledger(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*SERVE, "--ledger", f"sqlite:///{tmp_path}/new.sqlite"],
        env={**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": "two words"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "arguments", "word"),
    [
        ({}, (), "ROLLOUT_CONTROL_AUTH_TOKEN"),
        ({"ROLLOUT_CONTROL_AUTH_TOKEN": ""}, (), "ROLLOUT_CONTROL_AUTH_TOKEN"),
        ({"ROLLOUT_CONTROL_AUTH_TOKEN": "sécret"}, (), "printable ASCII"),
        ({"ROLLOUT_CONTROL_AUTH_TOKEN": "x"}, ("--ledger", "mongodb://x"), "mongodb"),
        ({"ROLLOUT_CONTROL_AUTH_TOKEN": "x"}, ("--port", "-1"), "--port"),
        ({"ROLLOUT_CONTROL_AUTH_TOKEN": "x"}, ("--host", "192.0.2.1"), "192.0.2.1"),
    ],
)
def test_what_cannot_be_served_is_said_clearly(
    environment: dict[str, str], arguments: tuple[str, ...], word: str
) -> None:
    inherited = {key: value for key, value in os.environ.items() if key != "ROLLOUT_CONTROL_AUTH_TOKEN"}
    ended = subprocess.run(
        [*SERVE, "--ledger", "memory://", *arguments],
        env={**inherited, **environment, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode in {1, 2}
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "sécret" not in ended.stderr
