"""The check can fail: each broken server is caught by the requirement that it breaks, which the report names first, and
the commands of the evidence show the fault again.
"""

import os
import re
import subprocess
from collections.abc import Callable

import pytest
from broken_server_layers import RECORD_PATH, Server
from broken_servers import BROKEN_SERVERS, BrokenServer
from rollout_control_check.checking import check_server
from rollout_control_check.recorder import Recorder
from rollout_control_check.report import came
from rollout_control_check.requirements import Verdict, requirements
from rollout_control_check.wire import Answer, Exchange, Request
from rollout_control_server import CaptureLedger
from served import TOKEN, serving

WAIT_FOR_A_BODY = {"the body is read before the token", "the body is read before its media type"}
"""Servers whose fault is that they wait: the commands show it again by the time limit of curl, and get no answer."""

LIST_ALL_THERE_IS = {"the prefix is ignored"}
"""Servers whose wrong answer has whatever the ledger holds: the commands show what they recorded in it, and no more."""

TIMED_OUT = 28
"""The exit status of curl for an answer that did not come in time."""


def run(commands: str, base_url: str) -> subprocess.CompletedProcess[str]:
    """Pastes commands into a shell."""
    record = f"curl -sS --fail --data-binary @- {base_url}{RECORD_PATH}"
    return subprocess.run(
        ["bash", "-c", commands],
        env={**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": TOKEN, "RECORD_COMMAND": record, "no_proxy": "*"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def last_answer(printed: str) -> str:
    """Returns what curl got last, as the report would show it."""
    head, _, body = printed.rpartition("HTTP/1.1 ")[2].replace("\r\n", "\n").partition("\n\n")
    status, *lines = head.split("\n")
    headers = [line.partition(": ") for line in lines]
    answer = Answer(int(status.split()[0]), tuple((name.lower(), value) for name, _, value in headers), body.encode())
    return came(Exchange(Request("GET", ""), answer))


def comparable(text: str) -> str:
    """Returns a text without what differs between two runs: ids, times, and the length of a cut text."""
    text = re.sub("(rollout-control-check|ROLLOUT-CONTROL-CHECK)-[0-9a-fA-F]{12}-", "PREFIX-", text)
    text = re.sub(r"(recorded_at|retired_at)(\": ?)[0-9.]+", r"\1\2TIME", text)
    return re.sub(r" ?\.\.\. \(\d+ bytes\)$", "", text)


@pytest.mark.parametrize("broken", BROKEN_SERVERS, ids=lambda broken: f"{broken.breaks}: {broken.name}")
def test_a_broken_server_is_caught(broken: BrokenServer, recorder_of: Callable[[CaptureLedger], Recorder]) -> None:
    server = Server()
    broken.line(server)
    with serving(server.app()) as base_url:
        report = check_server(base_url, TOKEN, recorder=recorder_of(server.ledger), timeout_s=3)
        found = {name: one for name, one in report.outcomes.items() if one.verdict is Verdict.BROKEN}
        assert broken.breaks in found, "it was not caught"
        assert set(found) == {broken.breaks, *broken.follows}
        assert next(name for name, one in found.items() if not one.same_answer_as) == broken.breaks
        evidence = found[broken.breaks]
        again = run(evidence.commands, base_url)
    assert evidence.expected
    assert TOKEN not in f"{report}"
    if broken.name in WAIT_FOR_A_BODY:
        assert again.returncode == TIMED_OUT, again.stderr
    elif broken.name in LIST_ALL_THERE_IS:
        assert again.returncode == 0, again.stderr
        assert "-unlisted" in last_answer(again.stdout)
    else:
        assert again.returncode == 0, again.stderr
        seen, shown = comparable(last_answer(again.stdout)), comparable(evidence.came)
        assert seen.startswith(shown) or shown.startswith(seen)  # a time with fewer digits leaves more of a cut answer


def test_every_requirement_is_broken_by_some_server() -> None:
    assert set(requirements()) == {name for broken in BROKEN_SERVERS for name in (broken.breaks, *broken.follows)}
