"""The whole check of one server, from the first request to the last line of the report."""

import time
from dataclasses import dataclass
from typing import Final

from rollout_control_spec.samples import sample_call

from rollout_control_check import answer_checks, ledger_checks, listing_checks, request_checks
from rollout_control_check.examination import CHECKS, OBSERVERS, Examination
from rollout_control_check.fuzzing import Fuzzing, FuzzingError
from rollout_control_check.recorder import Recorder
from rollout_control_check.requirements import Outcome, Verdict, requirements
from rollout_control_check.wire import UnreachableError, Wire

__all__ = ["CHECKED_IDS", "Report", "check_server"]

FIRST: Final = (
    "auth.accepted",
    "retire.offered",
    "delete.offered",
    "manifests.offered",
    "rollouts.offered",
    "summary.offered",
    "retire-idle.offered",
)
"""These are checked first, since the other checks depend on them."""

BY_EVERY_REQUEST: Final = ("http.answers", "errors.none-internal", "errors.documented")
"""`Examination.ask` checks these on each answer."""

CHECKED_IDS: Final = frozenset([*CHECKS, *OBSERVERS, *BY_EVERY_REQUEST])
"""The requirements that have a check, registered by the modules imported above."""

CLEANUP_S: Final = 3.0
"""Seconds to clean up after a check that did not come to its end: somebody waits for the command to be gone."""

SETTLING_S: Final = 0.5
"""Seconds for what was asked last, of which no answer was awaited, to be done, and so to be there for the cleanup."""

_REGISTERED_BY = (request_checks, answer_checks, ledger_checks, listing_checks)


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
        token_refused: Whether the server refused the token, so that nothing behind authentication was checked.
    """

    base_url: str
    outcomes: dict[str, Outcome]
    notes: list[str]
    requests: int
    seconds: float
    complete: bool
    token_refused: bool = False

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
    time_limit_s: float = 300.0,
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
                fuzzed, said = fuzzing.run(server)
                notes += said
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
    outcomes = {requirement_id: server.outcomes[requirement_id] for requirement_id in requirements()}
    seconds = time.monotonic() - started_at
    return Report(
        wire.base_url, outcomes, notes, wire.exchanges + fuzzed, seconds, complete, _refuses_token(outcomes[FIRST[0]])
    )


def _refuses_token(accepted: Outcome) -> bool:
    return accepted.verdict is Verdict.BROKEN and accepted.came.startswith("401")


def _try(recorder: Recorder, server: Examination) -> None:
    rollout_id = server.new_id("recorder")
    recorder(rollout_id, [sample_call(rollout_id, "first")])
