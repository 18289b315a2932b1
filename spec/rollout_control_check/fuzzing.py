"""The spec's fuzzing, by schemathesis, in a process of its own that can be ended at any time.

schemathesis is run by its command line, with the configuration `schemathesis.toml` and a hook (`schemathesis_hooks`).
What it found is read from the events that its option `--report ndjson` writes. Their layout is not documented, so the
extra `[check]` pins the minor version of schemathesis. An event, check or operation that this module does not know is
named in a note of the report, and the check then counts as incomplete.
"""

import base64
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import yaml
from rollout_control_spec import AUTH_TOKEN_VARIABLE, openapi_yaml

from rollout_control_check.examination import Examination
from rollout_control_check.requirements import ANSWERS, violations
from rollout_control_check.wire import TOKEN_IN_SHELL, Answer, Credentials, Exchange, Request

__all__ = ["CONFIG", "KNOWN_CHECKS", "PREFIX_VARIABLE", "SENT_VARIABLE", "Fuzzing", "FuzzingError"]

CONFIG: Final = "schemathesis.toml"
"""The configuration, in this package; made to be copied."""

SENT_VARIABLE: Final = "ROLLOUT_CONTROL_CHECK_SENT"
PREFIX_VARIABLE: Final = "ROLLOUT_CONTROL_CHECK_PREFIX"
HOOKS: Final = "rollout_control_check.schemathesis_hooks"

OPERATION_IDS: Final = {
    "retire": "retireRollouts",
    "delete": "deleteRollouts",
    "manifests": "getRolloutManifests",
    "rollouts": "listRollouts",
    "summary": "summarizeRollouts",
    "retire-idle": "retireIdleRollouts",
}
"""The operations that a server may lack, by the last segment of their path; a manifest is there on every server."""

_REQUIRED_HEADER: Final = {
    401: ("auth.challenge", "WWW-Authenticate"),
    405: ("methods.allow", "Allow"),
    503: ("errors.retry-after", "Retry-After"),
}

_NETWORK_ERRORS: Final = frozenset(
    {
        "ChunkedEncodingError",
        "ConnectionError",
        "ConnectTimeout",
        "ContentDecodingError",
        "ReadTimeout",
        "SSLError",
        "Timeout",
    }
)
"""Classes of `requests` by which schemathesis reports that no whole answer came."""

Event: TypeAlias = dict[str, Any]
Reader: TypeAlias = "Callable[[Finding, Answer, Request], tuple[str, str]]"


class FuzzingError(Exception):
    """The fuzzing could not be done, or not be understood."""


class Finding(NamedTuple):
    """One thing that schemathesis found.

    Attributes:
        check: The name of its check; empty where no whole answer came.
        words: What it says.
        operation: Method and path of the spec, with a space between.
        interaction: What was sent and what came; None where no whole answer came.
    """

    check: str
    words: str
    operation: str
    interaction: dict[str, Any] | None


@dataclass(frozen=True)
class Fuzzing:
    """How the fuzzing goes.

    Attributes:
        max_examples: Test cases for each operation and phase.
        seed: Makes other cases; None makes the same ones each time.
    """

    max_examples: int
    seed: int | None = None

    def run(self, server: Examination) -> tuple[int, list[str]]:
        """Fuzzes the server, and notes there what was found.

        Returns:
            How many requests were sent, and a sentence about it.

        Raises:
            FuzzingError: It could not begin, or broke down, or found something that this module cannot read.
        """
        remaining_s = max(server.wire.deadline - time.monotonic(), 1.0)
        with tempfile.TemporaryDirectory() as folder, as_file(files("rollout_control_spec")) as spec:
            sent, events = Path(folder, "sent.jsonl"), Path(folder, "events.jsonl")
            sent.touch()
            events.touch()
            command = self._command(server, Path(folder), spec / "openapi.yaml", events)
            environment = {
                **os.environ,
                # A relative entry would mean another folder there.
                "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry),
                "SCHEMATHESIS_HOOKS": HOOKS,
                SENT_VARIABLE: str(sent),
                PREFIX_VARIABLE: server.prefix,
                AUTH_TOKEN_VARIABLE: server.token,
            }
            ended, words = "", ""
            try:
                done = subprocess.run(
                    command, cwd=folder, env=environment, capture_output=True, timeout=remaining_s, check=False
                )
                words = (done.stdout + done.stderr).decode(errors="replace")
            except subprocess.TimeoutExpired:
                ended = ", until the time limit"
            finally:
                # However it ends: what was sent has to be deleted.
                requests = _lines_of(sent)
                for line in requests:
                    server.touched.update(dict.fromkeys(line["touched"]))
            happened = _lines_of(events)
        unknown = _report_findings(happened, server)
        failure = _failure_of(happened)
        if not ended and not failure and not any("EngineFinished" in event for event in happened):
            failure = f"it ended early, and said: {words[-2000:]}"
        if failure:
            raise FuzzingError(f"schemathesis could not fuzz the server: {failure}")
        if unknown:
            raise FuzzingError(unknown)
        return len(requests), [f"fuzzing sent {len(requests)} requests{ended} ({self._choice()})"]

    def _choice(self) -> str:
        return "the same each time" if self.seed is None else f"seed {self.seed}"

    def _command(self, server: Examination, folder: Path, spec: Path, events: Path) -> list[str]:
        config = files(__package__).joinpath(CONFIG).read_text()
        if self.seed is not None:
            config = config.replace("deterministic = true", "deterministic = false")
        Path(folder, CONFIG).write_text(config)
        present = server.present | server.listing
        missing = [operation_id for operation, operation_id in OPERATION_IDS.items() if operation not in present]
        return [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", CONFIG, "run", str(spec)),
            *("--url", server.wire.base_url),
            *("--max-examples", str(self.max_examples)),
            *("--request-timeout", str(server.wire.timeout_s), "--no-color"),
            # The report is gone when this has been read, and the evidence tells a right token from a wrong one.
            *("--report", "ndjson", "--report-ndjson-path", str(events), "--output-sanitize", "false"),
            *(() if self.seed is None else ("--seed", str(self.seed))),
            *(word for operation_id in missing for word in ("--exclude-operation-id", operation_id)),
            # All links of the spec start at these operations, and without any schemathesis finds no states.
            *(() if present else ("--phases", "examples,coverage,fuzzing")),
        ]


def _lines_of(path: Path) -> list[dict[str, Any]]:
    """Returns the JSON objects of a file; the last line may be torn, where the process was ended."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


# Reading what schemathesis found


def _report_findings(events: list[Event], server: Examination) -> str:
    """Notes each finding as a shortfall of the server, and returns what cannot be read, in words."""
    unknown = ""
    try:
        for found in _findings(events):
            if found.check and found.check not in _READERS:
                unknown = (
                    f"schemathesis found something by a check that this command does not know, {found.check}, on "
                    f"{found.operation}: {found.words}"
                )
            else:
                server.report_finding(*_shortfall_of(found, server))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        unknown = f"this command cannot read what schemathesis reports: {type(error).__name__}: {error}"
    return unknown


def _findings(events: list[Event]) -> Iterator[Finding]:
    for event in events:
        if "ScenarioFinished" in event:
            yield from _findings_of_scenario(event["ScenarioFinished"]["recorder"])
        elif "NonFatalError" in event and _is_of_the_network(event["NonFatalError"]):
            error = event["NonFatalError"]
            yield Finding("", error["value"]["message"], error["label"], None)


def _findings_of_scenario(recorder: dict[str, Any]) -> Iterator[Finding]:
    for case_id, checks in (recorder.get("checks") or {}).items():
        interaction = (recorder.get("interactions") or {}).get(case_id)
        for check in checks:
            if check["status"] != "failure":
                continue
            failure = check["failure_info"]["failure"]
            answered = interaction if interaction and interaction["response"] else None
            words = " ".join(f"{failure['title']}: {failure['message']}".split()).rstrip(":")
            yield Finding(check["name"] if answered else "", words, failure["operation"], answered)


def _failure_of(events: list[Event]) -> str:
    """Returns why schemathesis itself failed, in its words; empty if it did not."""
    for event in events:
        for kind in ("FatalError", "NonFatalError"):
            if kind in event and not _is_of_the_network(event[kind]):
                return f"{event[kind].get('value') or event[kind]}"
    return ""


def _is_of_the_network(error: Event) -> bool:
    return str((error.get("value") or {}).get("type")) in _NETWORK_ERRORS


def _shortfall_of(found: Finding, server: Examination) -> tuple[str, str, Exchange]:
    """Returns which requirement a finding belongs to, what the contract expects, and the exchange."""
    exchange = _exchange_of(found, server)
    answer = exchange.answer
    if answer is None:
        return "http.answers", "a whole answer", exchange
    requirement_id, expected = _READERS[found.check](found, answer, exchange.request)
    return requirement_id, expected, exchange


def _of_status(found: Finding, _: Answer, __: Request) -> tuple[str, str]:
    return "errors.documented", f"a status that the spec has for {found.operation}: {_statuses(found.operation)}"


def _of_media_type(_: Finding, answer: Answer, __: Request) -> tuple[str, str]:
    if answer.status == 200:
        return "success.media-type", "Content-Type: application/json"
    return "errors.media-type", "Content-Type: application/problem+json"


def _of_headers(_: Finding, answer: Answer, __: Request) -> tuple[str, str]:
    requirement_id, header = _REQUIRED_HEADER.get(answer.status, ("errors.documented", "that the spec describes"))
    return requirement_id, f"a header {header} with status {answer.status}"


def _of_schema(found: Finding, answer: Answer, _: Request) -> tuple[str, str]:
    requirement_id, schema = ("errors.members", "Problem")
    if answer.status == 200:
        requirement_id, schema = ANSWERS[_segment(found)]
    return requirement_id, _body_that_is(schema, answer.body)


def _of_rejection(found: Finding, _: Answer, request: Request) -> tuple[str, str]:
    fault = found.words.partition("Invalid component:")[2].strip()
    expected = f"status 400 or 422: the spec does not allow this request{fault and ': '}{fault}"
    if _segment(found) == "rollouts":
        return "rollouts.query", expected
    return "ids.invalid-in-path" if request.method == "GET" else "bodies.schema", expected


def _of_acceptance(found: Finding, _: Answer, request: Request) -> tuple[str, str]:
    expected = "status 200: the spec allows this request"
    if _segment(found) in {"rollouts", "summary", "retire-idle"}:
        return f"{_segment(found)}.offered", expected
    return "ids.valid" if request.method == "GET" else "ids.valid-in-batch", expected


def _always(requirement_id: str, expected: str) -> Reader:
    return lambda _, __, ___: (requirement_id, expected)


_READERS: Final[dict[str, Reader]] = {
    "not_a_server_error": _always("errors.none-internal", "no status 500 on any input"),
    "status_code_conformance": _of_status,
    "content_type_conformance": _of_media_type,
    "response_headers_conformance": _of_headers,
    "response_schema_conformance": _of_schema,
    "negative_data_rejection": _of_rejection,
    "positive_data_acceptance": _of_acceptance,
    "unsupported_method": _always("methods.not-allowed", "status 405: the path takes another method"),
    "allow_header_conformance": _always(
        "methods.allow", "a header Allow with the methods that the path takes, and no others"
    ),
    "ignored_auth": _always("auth.missing-token", "status 401: the request has no token, or a wrong one"),
}
"""By the name of each check of schemathesis: what says which requirement a finding belongs to, and what is expected."""

KNOWN_CHECKS: Final = frozenset(_READERS)
"""The checks of schemathesis whose findings this module can read."""


def _segment(found: Finding) -> str:
    """Returns the last segment of the operation's path."""
    return found.operation.rpartition("/")[2]


def _statuses(operation: str) -> str:
    method, _, path = operation.partition(" ")
    responses = yaml.safe_load(openapi_yaml())["paths"].get(path, {}).get(method.lower(), {}).get("responses", {})
    return ", ".join(sorted(responses))


def _body_that_is(schema: str, body: bytes) -> str:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return f"a body that is JSON, a {schema or 'schema of the spec'}"
    found = [violation.message for violation in violations(document, schema)] if schema else []
    return f"a body that is a {schema}{(found and ': ') or ''}{'; '.join(found[:3])}"


def _exchange_of(found: Finding, server: Examination) -> Exchange:
    if found.interaction is None:
        method, _, path = found.operation.partition(" ")
        return Exchange(Request(method, path, server.credentials), None, found.words)
    sent, came = found.interaction["request"], found.interaction["response"]
    headers = tuple(
        (name, value) for name in ("Content-Type", "Content-Encoding") for value in _values(sent, name.lower())
    )
    url = urlsplit(sent["uri"])
    path = url.path.removeprefix(urlsplit(server.wire.base_url).path) + (url.query and f"?{url.query}")
    credentials = _credentials(", ".join(_values(sent, "authorization")), server)
    request = Request(sent["method"], path, credentials, headers, _bytes(sent.get("body")) or None)
    answer_headers = tuple((name.lower(), value) for name, values in came["headers"].items() for value in values)
    return Exchange(request, Answer(came["status_code"], answer_headers, _bytes(came.get("content"))))


def _credentials(authorization: str, server: Examination) -> Credentials | None:
    """Returns the Authorization header that was sent, None if there was none."""
    if authorization == f"Bearer {server.token}":
        return server.credentials
    if not authorization:
        return None
    in_shell = shlex.quote(f"Authorization: {authorization}")
    if server.token in authorization:
        before, _, after = authorization.partition(server.token)
        in_shell = f'{shlex.quote(f"Authorization: {before}")}"{TOKEN_IN_SHELL}"{shlex.quote(after)}'
    return Credentials(authorization.encode(errors="replace"), in_shell)


def _values(message: dict[str, Any], name: str) -> list[str]:
    return [value for header, values in message["headers"].items() if header.lower() == name for value in values]


def _bytes(content: Any) -> bytes:
    return base64.b64decode(content["$base64"]) if content else b""
