"""The whole check of one server, from the first request to the last line of the report."""

import time
from dataclasses import dataclass
from typing import Final

from rollout_control_spec.samples import sample_call

from rollout_control_check import access, answers, bodies, ledgers
from rollout_control_check.examination import CHECKS, OBSERVERS, Examination, Outcome, Verdict
from rollout_control_check.fuzzing import Fuzzing, FuzzingError
from rollout_control_check.recorder import Recorder
from rollout_control_check.requirements import requirements
from rollout_control_check.wire import TOKEN_IN_SHELL, UnreachableError, Wire

__all__ = ["CHECKED_IDS", "Report", "check_server"]

FIRST: Final = ("auth.accepted", "retire.offered", "delete.offered", "manifests.offered")
"""What the other checks go by."""

BY_EVERY_REQUEST: Final = ("http.answers", "errors.none-internal", "errors.documented")
"""What `Examination.ask` itself sees to."""

CHECKED_IDS: Final = frozenset([*CHECKS, *OBSERVERS, *BY_EVERY_REQUEST])
"""The requirements that have a check, registered by the modules imported above."""

CLEANUP_S: Final = 3.0
"""Seconds to clean up after a check that did not come to its end: somebody waits for the command to be gone."""

SETTLING_S: Final = 0.5
"""Seconds for what was asked last, of which no answer was awaited, to be done, and so to be there for the cleanup."""

LONG_TOKEN: Final = 8
"""Characters; parts of a shorter one could be words of the report."""

_REGISTERED_BY = (access, answers, bodies, ledgers)


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes:
        base_url: The server.
        outcomes: What became of each requirement, in the order of the list.
        notes: What the reader should know besides.
        requests: How many requests were sent, the fuzzing's included.
        seconds: How long it took.
        complete: Whether the check came to its end.
    """

    base_url: str
    outcomes: dict[str, Outcome]
    notes: list[str]
    requests: int
    seconds: float
    complete: bool

    @property
    def falls_short(self) -> bool:
        """Whether the server breaks a requirement."""
        return self.count(Verdict.BROKEN) > 0

    def count(self, verdict: Verdict) -> int:
        """Returns how many requirements have this verdict."""
        return sum(outcome.verdict is verdict for outcome in self.outcomes.values())


def check_server(
    base_url: str,
    auth_token: str,
    *,
    recorder: Recorder | None = None,
    recorded_id: str | None = None,
    fuzzing: Fuzzing | None = None,
    timeout_s: float = 10.0,
    time_limit_s: float = 180.0,
) -> Report:
    """Checks a running server, of any make, against the contract.

    It removes and records under an id prefix of its own only, and deletes that in the end, also when an exception ends
    it: a note of the exception says then what could not be deleted.

    Args:
        base_url: Where the server is, without the control plane's prefix.
        auth_token: The secret that it takes.
        recorder: Writes rows into the server's ledger.
        recorded_id: A rollout that has rows; it is only read.
        fuzzing: How the spec's fuzzing goes; None leaves it out.
        timeout_s: Seconds for each answer.
        time_limit_s: Seconds for all of it; cleaning up may take a few more.

    Raises:
        UnreachableError: No HTTP answer at all came.
        RecordingError: The recorder does not work.
        ValueError: The base URL is none.
    """
    started_at = time.monotonic()
    wire = Wire(base_url, timeout_s, started_at + time_limit_s)
    server = Examination(wire, auth_token, recorder, recorded_id)
    notes: list[str] = []
    complete = True
    fuzzed = 0
    try:
        try:
            server.examine(FIRST[0])
            if recorder is not None:
                _try(recorder, server)
            for requirement_id in (*FIRST, *requirements()):
                server.examine(requirement_id)
            if fuzzing is not None and server.outcomes[FIRST[0]].verdict is Verdict.HOLDS:
                fuzzed, note = fuzzing.run(server)
                notes.append(note)
        except FuzzingError as error:
            complete = False
            notes.append(str(error))
        except UnreachableError as error:
            if not server.outcomes:
                raise
            complete = False
            notes.append(f"the check broke off: {error}")
        left = server.clean_up(2 * timeout_s)
    except BaseException as ending:
        if server.outcomes:
            time.sleep(SETTLING_S)
            left = server.clean_up(CLEANUP_S)
            if left:
                ending.add_note(left)
        raise
    notes += [left] if left else []
    if time.monotonic() - started_at >= time_limit_s:
        complete = False
        notes.append(f"the time limit of {time_limit_s:g} s ran out before everything was checked")
    server.finish()
    outcomes = {
        requirement_id: _without(auth_token, server.outcomes[requirement_id]) for requirement_id in requirements()
    }
    return Report(wire.base_url, outcomes, notes, wire.exchanges + fuzzed, time.monotonic() - started_at, complete)


def _try(recorder: Recorder, server: Examination) -> None:
    rollout_id = server.new_id("recorder")
    recorder(rollout_id, [sample_call(rollout_id, "first")])


def _without(auth_token: str, outcome: Outcome) -> Outcome:
    """Returns the outcome with the token, and what the checks make of it, hidden wherever the server repeats it."""
    secrets = [auth_token]
    if len(auth_token) >= LONG_TOKEN:
        secrets += [auth_token[:-1], auth_token.swapcase()]
    texts = [outcome.why, outcome.expected, outcome.request, outcome.came]
    for secret in secrets:
        texts = [text.replace(secret, TOKEN_IN_SHELL) for text in texts]
    return Outcome(outcome.verdict, *texts)
