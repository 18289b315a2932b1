"""How rows get into a server's ledger while it is checked: the protocol has no operation that writes.

A record command is run once for each writing. It reads one JSON object from its standard input,

    {"rollout_id": ID, "rows": [ROW, ...]}

where a row is either `{"record": CALL_RECORD, "staging_chain": [KEY, ...]}`, with a CallRecord of the spec and the
staging keys from the root to this call, or `{"failure": {"model_call_id": ID, "reason": REASON}}`. It hands the rows to
the server's ledger, in this order, as the model server would, and exits with 0. A row that the ledger discards, because
the rollout is retired, is no failure.
"""

import json
import shlex
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

__all__ = ["Recorder", "Recording", "RecordingError", "Row", "command_recorder", "failure_row"]

RECORD_TIME_LIMIT_S: Final = 30.0

Row: TypeAlias = dict[str, Any]
Recorder: TypeAlias = Callable[[str, list[Row]], None]
"""Records the rows of a rollout, and returns when they are in the ledger; raises RecordingError."""


@dataclass(frozen=True)
class Recording:
    """Rows that were recorded while a server was checked."""

    rollout_id: str
    rows: list[Row]


class RecordingError(Exception):
    """The rows could not be recorded."""


def failure_row(model_call_id: str, reason: str) -> Row:
    """Returns a failed capture as a row for a recorder."""
    return {"failure": {"model_call_id": model_call_id, "reason": reason}}


def command_recorder(command: str) -> Recorder:
    """Returns a recorder that runs a command, whose words are split as a shell would, for each writing.

    Raises:
        ValueError: The command is empty, or has a quotation mark without its other half.
    """
    words = shlex.split(command)
    if not words:
        raise ValueError("the record command is empty")

    def record(rollout_id: str, rows: Iterable[Row]) -> None:
        message = json.dumps({"rollout_id": rollout_id, "rows": list(rows)}).encode()
        try:
            done = subprocess.run(words, input=message, capture_output=True, timeout=RECORD_TIME_LIMIT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise RecordingError(f"the record command did not end within {RECORD_TIME_LIMIT_S:.0f} s") from error
        except OSError as error:
            raise RecordingError(f"the record command cannot be run: {error}") from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise RecordingError(f"the record command exited with {done.returncode}: {said}")

    return record
