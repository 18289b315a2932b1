"""The fuzzing can fail: each check of schemathesis that is in use catches a server, without help of any other."""

import time
import tomllib
from importlib.resources import files
from typing import Any

import pytest
from broken_requests import without_unknown_fields
from broken_server_layers import (
    Call,
    Line,
    Server,
    batches,
    has_status,
    manifest,
    replies,
    requests,
    status_is,
)
from rollout_control_check.examination import BATCH_OPERATIONS, Examination
from rollout_control_check.fuzzing import CONFIG, KNOWN_CHECKS, Fuzzing, FuzzingError
from rollout_control_check.requirements import Outcome, Verdict
from rollout_control_check.wire import Wire
from rollout_control_server import MemoryLedger, create_app
from served import TOKEN, serving

# Lines that don't get in each other's way share a server, since each run of schemathesis takes some seconds. Beside
# each: the check that it sets off, and the requirements that are then broken.
SERVERS: dict[str, list[tuple[str, Line, set[str]]]] = {
    "wrong bodies and headers": [
        (
            "content_type_conformance",
            replies(
                lambda call: call.reply.status == 200 and call.path.endswith("/retire"),
                lambda reply: reply.headers.update({"content-type": "text/plain"}),
            ),
            {"success.media-type"},
        ),
        (
            "response_schema_conformance",
            manifest(lambda document: document.update(schema_version=3)),
            {"manifest.schema"},
        ),
        (
            "response_headers_conformance",
            replies(status_is(401), lambda reply: reply.headers.pop("www-authenticate")),
            {"auth.challenge"},
        ),
        (
            "allow_header_conformance",
            replies(status_is(405), lambda reply: reply.headers.update(allow="PUT")),
            {"methods.allow"},
        ),
        ("negative_data_rejection", batches(without_unknown_fields), {"bodies.schema"}),
        (
            "ignored_auth",
            requests(lambda call: call.path.endswith("/delete"), Call.let_in),
            {"auth.missing-token"},
        ),
    ],
    "wrong statuses": [
        ("not_a_server_error", has_status(400, 500), {"errors.none-internal", "bodies.schema", "ids.invalid-in-path"}),
        ("status_code_conformance", has_status(410, 418), {"errors.documented"}),
        ("unsupported_method", has_status(405, 404), {"methods.not-allowed"}),
        (
            "positive_data_acceptance",
            replies(
                lambda call: call.is_manifest and len(call.path.split("/")[-2]) > 20,
                lambda reply: reply.become_problem(404),
            ),
            {"ids.valid"},
        ),
    ],
}


def fuzz(app: Any) -> dict[str, Outcome]:
    """Returns what the fuzzing alone finds broken."""
    with serving(app, lifespan="off") as base_url:
        server = Examination(Wire(base_url, 10, time.monotonic() + 120), TOKEN, present=set(BATCH_OPERATIONS))
        sent, _ = Fuzzing(2).run(server)
    assert sent > 20
    return {name: one for name, one in server.outcomes.items() if one.verdict is Verdict.BROKEN}


@pytest.mark.parametrize("name", SERVERS)
def test_a_broken_server_is_caught(name: str) -> None:
    server = Server()
    expected: set[str] = set()
    for _, line, requirement_ids in SERVERS[name]:
        line(server)
        expected |= requirement_ids
    found = fuzz(server.app())
    assert set(found) == expected
    for outcome in found.values():
        assert "curl " in outcome.commands
        assert outcome.came
        assert outcome.expected
        assert TOKEN not in outcome.commands


def test_each_check_has_such_a_server() -> None:
    config = tomllib.loads(files("rollout_control_check").joinpath(CONFIG).read_text())
    enabled = {name for name, options in config["checks"].items() if options.get("enabled", True)}
    assert {check for lines in SERVERS.values() for check, _, _ in lines} == enabled == KNOWN_CHECKS


async def torn(scope: Any, receive: Any, send: Any) -> None:
    """Announces more than it sends."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
    await send({"type": "http.response.body", "body": b"{", "more_body": True})


def test_torn_answers_are_caught() -> None:
    found = fuzz(torn)
    assert set(found) == {"http.answers"}
    assert "/training-token-capture/control/rollouts/" in found["http.answers"].commands
    assert "IncompleteRead" in found["http.answers"].came


def test_a_fuzzing_that_breaks_down_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout_control_check.fuzzing.HOOKS", "no_such_module")
    with pytest.raises(FuzzingError, match="no_such_module"):
        fuzz(create_app(MemoryLedger(), TOKEN))
