"""The spec's fuzzing, by schemathesis, in a process of its own that can be ended at any time."""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rollout_control_server.check.examination import Examination
from rollout_control_server.check.wire import TOKEN_IN_SHELL, Answer, Credentials, Exchange, Request
from rollout_control_server.serving import AUTH_TOKEN_VARIABLE

__all__ = ["CONFIG", "FINDINGS_VARIABLE", "PREFIX_VARIABLE", "REQUIREMENT_OF", "Fuzzing", "FuzzingError"]

CONFIG: Final = "schemathesis.toml"
"""The configuration, in this package; made to be copied."""

FINDINGS_VARIABLE: Final = "ROLLOUT_CONTROL_CHECK_FINDINGS"
PREFIX_VARIABLE: Final = "ROLLOUT_CONTROL_CHECK_PREFIX"
HOOKS: Final = "rollout_control_server.check.schemathesis_hooks"
OPERATION_IDS: Final = {
    "retire": "retireRollouts",
    "delete": "deleteRollouts",
    "manifests": "getRolloutManifests",
}

BY_STATUS: Final = {401: "auth.challenge", 405: "methods.allow", 503: "errors.retry-after"}

SCHEMA_REQUIREMENT: Final = {
    "manifest": "manifest.schema",
    "manifests": "manifests.schema",
    "retire": "removal.schema",
    "delete": "removal.schema",
}

REQUIREMENT_OF: Final = {
    "not_a_server_error": "errors.none-internal",
    "status_code_conformance": "errors.documented",
    "content_type_conformance": "errors.media-type",
    "response_headers_conformance": "auth.challenge",
    "response_schema_conformance": "errors.members",
    "negative_data_rejection": "bodies.schema",
    "positive_data_acceptance": "ids.valid",
    "unsupported_method": "methods.not-allowed",
    "allow_header_conformance": "methods.allow",
    "ignored_auth": "auth.missing-token",
}
"""The requirement that a finding of each of schemathesis' checks belongs to, where its answer does not say more."""


class FuzzingError(Exception):
    """The fuzzing could not begin."""


@dataclass(frozen=True)
class Fuzzing:
    """How the fuzzing goes.

    Attributes:
        max_examples: Test cases for each operation and phase.
        seed: Makes other cases; None makes the same ones each time.
    """

    max_examples: int
    seed: int | None = None

    def run(self, server: Examination) -> tuple[int, str]:
        """Fuzzes the server, and tells it what was found.

        Returns:
            How many requests were sent, and a sentence about it.
        """
        remaining_s = max(server.wire.deadline - time.monotonic(), 1.0)
        with tempfile.TemporaryDirectory() as folder, as_file(files("rollout_control_spec")) as spec:
            findings = Path(folder, "findings.jsonl")
            findings.touch()
            command = self._command(server, Path(folder), spec / "openapi.yaml")
            environment = {
                **os.environ,
                # A relative entry would mean another folder there.
                "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry),
                "SCHEMATHESIS_HOOKS": HOOKS,
                FINDINGS_VARIABLE: str(findings),
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
            found = [json.loads(line) for line in findings.read_text().splitlines() if line.endswith("}")]
        for line in found:
            server.touched.update(dict.fromkeys(line.get("touched", ())))
            if "check" in line:
                server.report_finding(*_shortfall_of(line, server))
        requests = sum(line.get("sent", 0) for line in found)
        if not requests:
            raise FuzzingError(f"schemathesis sent nothing; it said: {words[-2000:]}")
        return requests, f"fuzzing sent {requests} requests{ended} ({self._choice()})"

    def _choice(self) -> str:
        return "the same each time" if self.seed is None else f"seed {self.seed}"

    def _command(self, server: Examination, folder: Path, spec: Path) -> list[str]:
        config = files(__package__).joinpath(CONFIG).read_text()
        if self.seed is not None:
            config = config.replace("deterministic = true", "deterministic = false")
        Path(folder, CONFIG).write_text(config)
        missing = [operation_id for operation, operation_id in OPERATION_IDS.items() if operation not in server.present]
        return [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", CONFIG, "run", str(spec)),
            *("--url", server.wire.base_url),
            *("--max-examples", str(self.max_examples)),
            *("--request-timeout", str(server.wire.timeout_s), "--no-color"),
            *(() if self.seed is None else ("--seed", str(self.seed))),
            *(word for operation_id in missing for word in ("--exclude-operation-id", operation_id)),
        ]


def _shortfall_of(found: dict[str, Any], server: Examination) -> tuple[str, str, Exchange]:
    """Returns which requirement a finding belongs to, what the contract expects, and the exchange."""
    exchange = _exchange_of(found, server)
    answer = exchange.answer
    if answer is None:
        return "http.answers", "a whole answer", exchange
    requirement_id = REQUIREMENT_OF[found["check"]]
    expected = f"{found['title']}: {found['message']}".replace("\n", " ")
    succeeded = answer.status == 200
    reads = exchange.request.method == "GET"
    path = exchange.request.path
    match found["check"]:
        case "content_type_conformance" if succeeded:
            requirement_id = "success.media-type"
        case "response_schema_conformance" if succeeded:
            requirement_id = SCHEMA_REQUIREMENT[path.rpartition("/")[2]]
        case "response_headers_conformance":
            requirement_id = BY_STATUS.get(answer.status, requirement_id)
        case "negative_data_rejection" if reads:
            requirement_id = "ids.invalid-in-path"
        case "positive_data_acceptance" if not reads:
            requirement_id = "ids.valid-in-batch"
        case _:
            pass
    return requirement_id, expected, exchange


def _exchange_of(found: dict[str, Any], server: Examination) -> Exchange:
    sent = found["request_headers"]
    shown = sent.get("Authorization", "").replace(server.token, TOKEN_IN_SHELL)
    credentials = Credentials(b"", f'"Authorization: {shown}"') if shown else None
    headers = tuple(
        (name, value) for name, value in sent.items() if name.lower() in {"content-type", "content-encoding"}
    )
    body = base64.b64decode(found["body"])
    path = found["path"].removeprefix(urlsplit(server.wire.base_url).path)
    request = Request(found["method"], path, credentials, headers, body or None)
    if not found["status"]:
        return Exchange(server.wire.base_url, request, None, found["title"])
    answer_headers = tuple((name, value) for name, value in found["headers"])
    return Exchange(
        server.wire.base_url, request, Answer(found["status"], answer_headers, base64.b64decode(found["content"]))
    )
