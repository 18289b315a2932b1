"""The spec's fuzzing, by schemathesis, in a process of its own that can be ended at any time."""

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

from rollout_control_spec import AUTH_TOKEN_VARIABLE

from rollout_control_check.examination import Examination
from rollout_control_check.findings import failure_of, findings, shortfall_of

__all__ = ["CONFIG", "PREFIX_VARIABLE", "SENT_VARIABLE", "Fuzzing", "FuzzingError"]

CONFIG: Final = "schemathesis.toml"
"""The configuration, in this package; made to be copied."""

SENT_VARIABLE: Final = "ROLLOUT_CONTROL_CHECK_SENT"
PREFIX_VARIABLE: Final = "ROLLOUT_CONTROL_CHECK_PREFIX"
HOOKS: Final = "rollout_control_check.schemathesis_hooks"
OPERATION_IDS: Final = {
    "retire": "retireRollouts",
    "delete": "deleteRollouts",
    "manifests": "getRolloutManifests",
}


class FuzzingError(Exception):
    """The fuzzing could not be done."""


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

        Raises:
            FuzzingError: It could not begin, or broke down.
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
        for found in findings(happened):
            server.report_finding(*shortfall_of(found, server))
        failure = failure_of(happened)
        if not ended and not failure and not any("EngineFinished" in event for event in happened):
            failure = f"it ended early, and said: {words[-2000:]}"
        if failure:
            raise FuzzingError(f"schemathesis could not fuzz the server: {failure}")
        return len(requests), f"fuzzing sent {len(requests)} requests{ended} ({self._choice()})"

    def _choice(self) -> str:
        return "the same each time" if self.seed is None else f"seed {self.seed}"

    def _command(self, server: Examination, folder: Path, spec: Path, events: Path) -> list[str]:
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
            # The report is gone when this has been read, and the evidence tells a right token from a wrong one.
            *("--report", "ndjson", "--report-ndjson-path", str(events), "--output-sanitize", "false"),
            *(() if self.seed is None else ("--seed", str(self.seed))),
            *(word for operation_id in missing for word in ("--exclude-operation-id", operation_id)),
            # All links of the spec start at the batch operations, and without any schemathesis finds no states.
            *(() if server.present else ("--phases", "examples,coverage,fuzzing")),
        ]


def _lines_of(path: Path) -> list[dict[str, Any]]:
    """Returns the JSON objects of a file; the last line may be torn, where the process was ended."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
