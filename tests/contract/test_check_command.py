"""The command `rollout-control check`, as people and machines use it: against all kinds of servers, and none."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rollout_control_check.recorder import Recorder
from rollout_control_server import MemoryLedger, create_app
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.sqlite.connections import connect
from rollout_control_spec import CONTROL_ROUTE_PREFIX
from served import TOKEN, serving


def check(base_url: str, *options: str, token: str = TOKEN, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollout_control_console", "check", base_url, "--max-examples", "0", *options],
        env={**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": token, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Serves raw connections: what they are answered is up to the test."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        def serve(connection: socket.socket) -> None:
            try:
                connection.recv(2**16)
                answer(connection)
            except OSError:
                return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.close()


def test_a_correct_server(correct_server: tuple[str, Recorder]) -> None:
    done = check(correct_server[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "holds" in done.stdout
    assert "not checked" in done.stdout
    assert "0 broken" in done.stdout


def test_json_and_the_ready_record_command(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    record = f"{sys.executable} -m rollout_control_server.record_rows sqlite:///{path}"
    with serving(create_app(SqliteLedger(path), TOKEN)) as base_url:
        done = check(base_url, "--json", "--record-command", record)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["falls_short"] is False
    assert report["counts"]["broken"] == 0
    not_checked = [line for line in report["requirements"] if line["verdict"] == "not checked"]
    assert [line["id"] for line in not_checked] == ["errors.retry-after"]
    assert all(line["why"] for line in not_checked)


def test_a_broken_server_with_evidence_and_without_the_token(tmp_path: Path) -> None:
    app = create_app(SqliteLedger(tmp_path / "ledger.sqlite"), TOKEN)

    async def indiscreet(scope: Any, receive: Any, send: Any) -> None:
        async def tell(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                sent = dict(scope["headers"]).get(b"authorization", b"")
                message = {
                    **message,
                    "status": 403,
                    "headers": [(b"www-authenticate", sent), (b"content-length", b"2")],
                }
            elif message["type"] == "http.response.body" and b"unauthorized" in message["body"]:
                message = {**message, "body": b"no"}
            await send(message)

        await app(scope, receive, tell)

    with serving(indiscreet) as base_url:
        done = check(base_url)
        as_json = check(base_url, "--json")
    assert done.returncode == as_json.returncode == 1
    for said in (done.stdout + done.stderr, as_json.stdout + as_json.stderr):
        assert TOKEN not in said
        assert TOKEN[:-1] not in said
    assert "curl -sS -i --path-as-is --max-time 10 -X GET http" in done.stdout
    assert "A missing token, a wrong one, another scheme and a header that is not ASCII are all 401." in done.stdout
    (line,) = [line for line in json.loads(as_json.stdout)["requirements"] if line["id"] == "auth.other-scheme"]
    assert line["expected"].startswith("status 401")
    assert line["came"].startswith("403")
    assert "${ROLLOUT_CONTROL_AUTH_TOKEN}" in line["commands"]


def test_a_wrong_token_is_said_first(correct_server: tuple[str, Recorder]) -> None:
    done = check(correct_server[0], "--json", token="another-token")
    assert done.returncode == 1
    broken = [line["id"] for line in json.loads(done.stdout)["requirements"] if line["verdict"] == "broken"]
    assert broken == ["auth.accepted"]
    said = check(correct_server[0], token="another-token").stdout.splitlines()
    assert said[0].endswith("Is it this server's token?")
    assert len(said) == 2
    assert said[1].startswith("curl ")


@pytest.mark.parametrize("token", ["tok", "token", "control", "rollout", "check"])
def test_a_token_that_is_a_word_of_the_report(token: str) -> None:
    """Commands read the token in the Authorization header only, whatever it is."""
    app = create_app(MemoryLedger(), token)

    async def without_challenge(scope: Any, receive: Any, send: Any) -> None:
        async def change(message: Any) -> None:
            await send({**message, "headers": []} if message.get("status") == 401 else message)

        await app(scope, receive, change)

    with serving(without_challenge) as base_url:
        (line,) = (
            line
            for line in json.loads(check(base_url, "--json", token=token).stdout)["requirements"]
            if line["id"] == "auth.challenge"
        )
    assert f"{base_url}{CONTROL_ROUTE_PREFIX}/rollouts/rollout-control-check-" in line["commands"]


def test_the_short_report_fits_a_screen() -> None:
    with answering(
        lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    ) as base_url:
        done = check(base_url)
        everything = check(base_url, "--all")
    assert done.returncode == everything.returncode == 1
    assert len(done.stdout.splitlines()) <= 40
    assert "and " in done.stdout
    assert everything.stdout.count("to see it again") > 8


def test_a_server_that_hangs() -> None:
    with answering(lambda _: threading.Event().wait()) as base_url:
        done = check(base_url, "--timeout", "0.5", "--max-examples", "5")
    assert done.returncode == 1
    assert "the time limit ran out before any answer came" in done.stdout
    assert "3 requests in a row without an answer" in " ".join(done.stdout.replace("│", " ").split())


def test_a_server_that_never_finishes_an_answer() -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while True:
            connection.sendall(b"x")
            threading.Event().wait(0.05)

    with answering(drip) as base_url:
        done = check(base_url, "--timeout", "0.5")
    assert done.returncode == 1
    assert "the time limit ran out in the middle of the answer: status 200" in done.stdout


def test_a_server_that_closes_connections_at_random() -> None:
    app = create_app(MemoryLedger(), TOKEN)
    chance = random.Random(4)

    async def unreliable(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and chance.random() < 0.1:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
            return  # uvicorn closes the connection of an application that has not finished its answer
        await app(scope, receive, send)

    with serving(unreliable) as base_url:
        done = check(base_url, "--all")
    assert done.returncode == 1
    assert "the connection was closed" in done.stdout
    assert "http.answers" in done.stdout


def test_a_server_that_answers_html() -> None:
    page = b"<!doctype html><title>Welcome</title>"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n" % len(page)
    with answering(lambda connection: connection.sendall(head + page)) as base_url:
        done = check(base_url)
    assert done.returncode == 1
    assert "is this the base URL of a control plane?" in done.stdout
    assert "text/html" in done.stdout


def test_something_that_is_no_http_server() -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
        connection.close()

    with answering(greet) as base_url:
        done = check(base_url)
    assert done.returncode == 2
    assert "does not speak HTTP" in done.stderr


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    done = check(base_url)
    assert done.returncode == 2
    assert "nothing accepts a connection at 127.0.0.1" in done.stderr
    assert "nothing accepts a connection at 127.0.0.1" in json.loads(check(base_url, "--json").stdout)["error"]


def test_a_server_that_goes_away_midway() -> None:
    app = create_app(MemoryLedger(), TOKEN)
    answered = iter(range(40))

    with socket.create_server(("127.0.0.1", 0)) as listener, serving(app) as base_url:
        host, port = base_url.removeprefix("http://").split(":")

        def relay() -> None:
            while next(answered, None) is not None:
                connection, _ = listener.accept()
                with connection, socket.create_connection((host, int(port))) as onward:
                    onward.sendall(connection.recv(2**16))
                    while received := onward.recv(2**16):
                        connection.sendall(received)
            listener.close()

        thread = threading.Thread(target=relay)
        thread.start()
        done = check(f"http://127.0.0.1:{listener.getsockname()[1]}", "--timeout", "2")
        thread.join()
    assert done.returncode == 1
    assert "the check broke off: nothing accepts a connection" in done.stdout


def test_a_time_limit_that_runs_out_is_no_shortfall() -> None:
    app = create_app(MemoryLedger(), TOKEN)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(0.1)
        await app(scope, receive, send)

    with serving(slow) as base_url:
        done = check(base_url, "--json", "--time-limit", "1")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert (report["complete"], report["falls_short"], report["counts"]["broken"]) == (False, False, 0)
    assert any("the time limit of 1 s ran out" in note for note in report["notes"])


def test_what_a_failing_record_command_has_recorded_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    record = f"{sys.executable} -m rollout_control_server.record_rows sqlite:///{path}"
    with serving(create_app(SqliteLedger(path), TOKEN)) as base_url:
        done = check(base_url, "--record-command", f"sh -c '{record}; exit 3'")
    assert done.returncode == 2
    assert "exited with 3" in done.stderr
    assert rollouts_in(path) == []


def rollouts_in(path: Path) -> list[str]:
    """Returns the rollouts of which a ledger's file has rows or a fence."""
    connection = connect(path)
    try:
        return [rollout_id for (rollout_id,) in connection.execute("SELECT rollout_id FROM rollout")]
    finally:
        connection.close()


class Watched:
    """An application that tells when the check has come to a moment, and can hang from then on."""

    def __init__(self, app: Any, is_then: Callable[[Any], bool], count: int, *, hangs: bool = False) -> None:
        self._app = app
        self._is_then = is_then
        self._left = count
        self._hangs = hangs
        self.then = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self._left -= self._is_then(scope)
            if self._left <= 0:
                self.then.set()
                if self._hangs:
                    await receive()
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    return
        await self._app(scope, receive, send)


def of_schemathesis(scope: Any) -> bool:
    return scope["path"].endswith("/retire") and dict(scope["headers"])[b"user-agent"].startswith(b"schemathesis")


def interrupted(watched: Watched, base_url: str, number: signal.Signals, *options: str) -> tuple[str, str]:
    """Interrupts a check until it is gone, as from a terminal by somebody impatient, and returns what it says."""
    checking = subprocess.Popen(
        [sys.executable, "-m", "rollout_control_console", "check", base_url, *options],
        env={**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert watched.then.wait(60)
    began = time.monotonic()
    while checking.poll() is None:
        os.killpg(checking.pid, number)
        time.sleep(0.01)
    said = checking.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert checking.returncode == 130
    return said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("is_then", "count"),
    [
        # Its first request, the one after it had the first row recorded, one amid the checks, and one of the fuzzing.
        pytest.param(lambda _: True, 1, id="first"),
        pytest.param(lambda _: True, 2, id="recorded"),
        pytest.param(lambda scope: scope["path"].endswith("/retire"), 20, id="amid"),
        pytest.param(of_schemathesis, 20, id="fuzzing"),
    ],
)
def test_a_signal_ends_it_in_one_line_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals, is_then: Callable[[Any], bool], count: int
) -> None:
    path = tmp_path / "ledger.sqlite"
    record = f"{sys.executable} -m rollout_control_server.record_rows sqlite:///{path}"
    watched = Watched(create_app(SqliteLedger(path), TOKEN), is_then, count)
    with serving(watched) as base_url:
        out, err = interrupted(watched, base_url, number, "--json", "--record-command", record)
    assert err == "the check was interrupted\n"
    assert json.loads(out) == {"complete": False, "error": "the check was interrupted"}
    assert rollouts_in(path) == []


def test_a_signal_ends_it_although_the_server_hangs() -> None:
    watched = Watched(create_app(MemoryLedger(), TOKEN), lambda _: True, 40, hangs=True)
    with serving(watched) as base_url:
        out, err = interrupted(watched, base_url, signal.SIGTERM)
    assert out == ""
    assert err.startswith("the check was interrupted; could not delete the ids that begin with rollout-control-check-")
    assert err.index("\n") == len(err) - 1


@pytest.mark.parametrize(
    ("base_url", "options", "token", "said"),
    [
        ("nowhere", [], TOKEN, "a base URL looks like"),
        ("ftp://127.0.0.1", [], TOKEN, "a base URL looks like"),
        (f"http://127.0.0.1:1/a{CONTROL_ROUTE_PREFIX}", [], TOKEN, "give http://127.0.0.1:1/a"),
        (f"http://127.0.0.1:1{CONTROL_ROUTE_PREFIX}/rollouts/", [], TOKEN, "give http://127.0.0.1:1"),
        ("http://127.0.0.1:1", [], "", "set ROLLOUT_CONTROL_AUTH_TOKEN"),
        ("http://127.0.0.1:1", [], "tök", "printable ASCII"),
        ("http://127.0.0.1:1", ["--recorded-id", "a b"], TOKEN, "invalid rollout id"),
        ("http://127.0.0.1:1", ["--record-command", ""], TOKEN, "the record command is empty"),
        ("http://127.0.0.1:1", ["--timeout", "0"], TOKEN, "--timeout"),
        ("http://127.0.0.1:1", ["--no-such-option"], TOKEN, "--no-such-option"),
    ],
)
def test_bad_options(base_url: str, options: list[str], token: str, said: str) -> None:
    done = check(base_url, *options, "--json", token=token)
    assert done.returncode == 2
    assert said in done.stderr
    document = json.loads(done.stdout)
    assert (sorted(document), document["complete"]) == (["complete", "error"], False)
    assert said in document["error"]
    assert check(base_url, *options, token=token).stdout == ""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{sys.executable} -c 'import sys; sys.exit(\"no such ledger\")'", "no such ledger"),
        ("no-such-program", "cannot be run"),
    ],
)
def test_a_record_command_that_fails(correct_server: tuple[str, Recorder], command: str, said: str) -> None:
    done = check(correct_server[0], "--record-command", command)
    assert done.returncode == 2
    assert said in done.stderr


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = "raise ModuleNotFoundError(\"No module named 'jsonschema_rs'\", name='jsonschema_rs')"
    (tmp_path / "jsonschema_rs.py").write_text(hidden)
    done = check("http://127.0.0.1:1", PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode == 2
    assert "pip install 'rollout-control[check]'" in done.stderr
