"""The check can fail: each broken server is caught by the requirement that it breaks, and by nothing else."""

from collections.abc import Callable

import pytest
from broken_servers import BROKEN_SERVERS, BrokenServer
from one_line_away import Server
from rollout_control_check.checking import check_server
from rollout_control_check.examination import Verdict
from rollout_control_check.recorder import Recorder
from rollout_control_check.requirements import requirements
from rollout_control_server import CaptureLedger
from served import TOKEN, serving


@pytest.mark.parametrize("broken", BROKEN_SERVERS, ids=lambda broken: f"{broken.breaks}: {broken.name}")
def test_a_broken_server_is_caught(
    broken: BrokenServer, monkeypatch: pytest.MonkeyPatch, recorder_of: Callable[[CaptureLedger], Recorder]
) -> None:
    server = Server(monkeypatch)
    broken.line(server)
    with serving(server.app(), lifespan="off") as base_url:
        report = check_server(base_url, TOKEN, recorder=recorder_of(server.ledger), timeout_s=3)
    found = {name for name, outcome in report.outcomes.items() if outcome.verdict is Verdict.BROKEN}
    assert broken.breaks in found, "it was not caught"
    assert found == {broken.breaks, *broken.follows}
    evidence = report.outcomes[broken.breaks]
    assert evidence.expected
    assert evidence.came
    assert evidence.request.startswith("curl ")
    assert TOKEN not in f"{report}"


def test_every_requirement_is_broken_by_some_server() -> None:
    assert set(requirements()) == {name for broken in BROKEN_SERVERS for name in (broken.breaks, *broken.follows)}
