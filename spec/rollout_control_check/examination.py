"""One run of the check: the server, what is known of it so far, and what became of each requirement."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from rollout_control_spec import CONTROL_ROUTE_PREFIX

from rollout_control_check import report
from rollout_control_check.recorder import Recorder, Recording, RecordingError, Row
from rollout_control_check.requirements import (
    A_BATCH_OPERATION,
    RECORDED_ID,
    RECORDER,
    Outcome,
    Verdict,
    requirements,
)
from rollout_control_check.wire import (
    OUT_OF_TIME,
    TOKEN_IN_SHELL,
    Credentials,
    Exchange,
    Request,
    UnreachableError,
    Wire,
)

__all__ = [
    "BATCH_OPERATIONS",
    "CHANGES",
    "CHECKS",
    "DOCUMENTED_STATUSES",
    "JSON",
    "OBSERVERS",
    "REMOVALS",
    "Examination",
    "NotCheckedError",
    "ShortfallError",
    "batch_path",
    "check",
    "document_of",
    "manifest_path",
    "observer",
]

REMOVALS: Final = ("retire", "delete")
CHANGES: Final = frozenset({*REMOVALS, "retire-idle"})
"""The operations that change a ledger, by the last segment of their path."""
BATCH_OPERATIONS: Final = (*REMOVALS, "manifests")
"""The operations that take a LedgerBatchRequest, by the last segment of their path."""
JSON: Final = (("Content-Type", "application/json"),)
DOCUMENTED_STATUSES: Final = (200, 400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 500, 501, 503)
HANGS_BEFORE_GIVING_UP: Final = 3
TIME_IS_UP: Final = "the time limit of the whole check is over"
CLEANUP_BATCH: Final = 1000


class ShortfallError(Exception):
    """The server did something else than what the contract expects.

    Attributes:
        expected: What the contract expects.
        exchange: The request and the answer that show it.
        compared_with: An earlier exchange without which the answer would be right.
    """

    def __init__(self, expected: str, exchange: Exchange, compared_with: Exchange | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.exchange = exchange
        self.compared_with = compared_with


class NotCheckedError(Exception):
    """The requirement cannot be checked on this server, for the reason that is given."""


Check: TypeAlias = "Callable[[Examination], None]"
Observer: TypeAlias = Callable[[Exchange], "str | None"]
CHECKS: Final[dict[str, Check]] = {}
OBSERVERS: Final[dict[str, tuple[Callable[[Exchange], bool], Observer]]] = {}


def check(requirement_id: str) -> Callable[[Check], Check]:
    """Registers a function as the check of a requirement: it returns, or raises one of the two errors above."""

    def register(function: Check) -> Check:
        if requirement_id in CHECKS:
            raise ValueError(f"two checks of {requirement_id}")
        CHECKS[requirement_id] = function
        return function

    return register


def observer(requirement_id: str, when: Callable[[Exchange], bool]) -> Callable[[Observer], Observer]:
    """Registers a function that looks at each answer that has the expected status and for which `when` is true.

    It returns what the contract expects instead, or None.
    """

    def register(function: Observer) -> Observer:
        if requirement_id in OBSERVERS:
            raise ValueError(f"two observers of {requirement_id}")
        OBSERVERS[requirement_id] = (when, function)
        return function

    return register


def manifest_path(rollout_id: str) -> str:
    """Returns the path of a manifest; the id is put into it as it is."""
    return f"{CONTROL_ROUTE_PREFIX}/rollouts/{rollout_id}/manifest"


def batch_path(operation: str) -> str:
    """Returns the path of an operation that takes a batch."""
    return f"{CONTROL_ROUTE_PREFIX}/rollouts/{operation}"


def document_of(exchange: Exchange) -> Any:
    """Returns the JSON of an answer, or None where there is none."""
    try:
        return None if exchange.answer is None else json.loads(exchange.answer.body)
    except (ValueError, RecursionError):
        return None


@dataclass
class Examination:
    """A server under examination.

    Attributes:
        wire: How requests get to it.
        token: The secret.
        recorder: Writes rows into its ledger.
        recorded_id: A rollout that has rows, and is only read.
        prefix: What every id begins with that the check removes or records.
        outcomes: What became of each requirement so far.
        present: The operations that take a LedgerBatchRequest and whose path the server has.
        listing: The operations of the listing whose path the server has.
        touched: The ids that may have rows or a fence because of the check.
    """

    wire: Wire
    token: str
    recorder: Recorder | None = None
    recorded_id: str | None = None
    prefix: str = field(default_factory=report.new_prefix)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)
    listing: set[str] = field(default_factory=set)
    touched: dict[str, None] = field(default_factory=dict)
    _hangs_in_a_row: int = 0
    _steps: list[report.Step] = field(default_factory=list)
    _shown_by: dict[str, Exchange] = field(default_factory=dict)

    @property
    def credentials(self) -> Credentials:
        """The Authorization header with the token."""
        return Credentials(f"Bearer {self.token}".encode(), f'"Authorization: Bearer {TOKEN_IN_SHELL}"')

    def new_id(self, name: str = "") -> str:
        """Returns an id of the check's own that was never used before."""
        rollout_id = f"{self.prefix}{len(self.touched)}{name and '-'}{name}"
        self.touched[rollout_id] = None
        return rollout_id

    def ask(self, request: Request, *expected: int, because: str = "") -> Exchange:
        """Sends a request, and lets the observers see the answer.

        Args:
            request: What is sent.
            expected: The statuses that the contract allows.
            because: What makes them so, for the evidence.

        Raises:
            NotCheckedError: The server has stopped answering, or the time is up.
            ShortfallError: No whole answer came, or one with another status.
            UnreachableError: No connection can be made.
        """
        wanted = f"status {' or '.join(map(str, expected))}{because and ': '}{because}"
        if self._hangs_in_a_row >= HANGS_BEFORE_GIVING_UP:
            raise NotCheckedError(f"the server left {self._hangs_in_a_row} requests in a row without an answer")
        if time.monotonic() > self.wire.deadline:
            raise NotCheckedError(TIME_IS_UP)
        exchange = self.wire.exchange(request)
        self._steps.append(exchange)
        if exchange.answer is None:
            if exchange.failure.startswith(OUT_OF_TIME) and time.monotonic() >= self.wire.deadline:
                # Cut short by the check, not by the server.
                raise NotCheckedError(TIME_IS_UP)
            self._hangs_in_a_row += exchange.failure.startswith(OUT_OF_TIME)
            self._note("http.answers", "a whole answer", exchange)
            raise ShortfallError(wanted, exchange)
        self._hangs_in_a_row = 0
        self._note("http.answers", None, exchange)
        if exchange.answer.status in {500, 502, 504}:
            self._note("errors.none-internal", "no status 500 on any input", exchange)
        if exchange.answer.status not in DOCUMENTED_STATUSES:
            self._note("errors.documented", f"one of the statuses {', '.join(map(str, DOCUMENTED_STATUSES))}", exchange)
        if exchange.answer.status in expected:
            self._note("errors.none-internal", None, exchange)
            self._note("errors.documented", None, exchange)
        elif exchange.answer.status != 503:
            raise ShortfallError(wanted, exchange)
        for requirement_id, (when, observe) in OBSERVERS.items():
            if when(exchange):
                self._note(requirement_id, observe(exchange), exchange)
        if exchange.answer.status not in expected:
            raise ShortfallError(wanted, exchange)
        return exchange

    def manifest(self, rollout_id: str, *expected: int, because: str = "") -> Exchange:
        """Reads a manifest."""
        return self.ask(
            Request("GET", manifest_path(rollout_id), self.credentials), *(expected or (200,)), because=because
        )

    def send_batch(self, operation: str, rollout_ids: list[str], *expected: int, because: str = "") -> Exchange:
        """Sends ids to an operation that takes a batch."""
        return self.post(
            operation, json.dumps({"rollout_ids": rollout_ids}).encode(), *(expected or (200,)), because=because
        )

    def post(
        self,
        operation: str,
        body: bytes,
        *expected: int,
        headers: tuple[tuple[str, str], ...] = JSON,
        in_shell: str = "",
        because: str = "",
    ) -> Exchange:
        """Sends any body to an operation that takes a batch.

        Args:
            operation: The last segment of its path.
            body: The body.
            expected: The statuses that the contract allows.
            headers: The headers beside Authorization.
            in_shell: Shell commands that print the body, where it is too long to be shown.
            because: What makes the statuses so, for the evidence.
        """
        request = Request("POST", batch_path(operation), self.credentials, headers, body, body_in_shell=in_shell)
        return self.ask(request, *expected, because=because)

    def record(self, rollout_id: str, rows: list[Row]) -> None:
        """Has rows recorded.

        Raises:
            NotCheckedError: Nobody records.
            RecordingError: The recorder failed.
        """
        if self.recorder is None:
            raise NotCheckedError("nobody records rows")
        self._steps.append(Recording(rollout_id, rows))
        self.recorder(rollout_id, rows)

    def examine(self, requirement_id: str) -> None:
        """Finds out what becomes of one requirement, unless it is known."""
        if requirement_id in self.outcomes or requirement_id not in CHECKS:
            return
        missing = self._what_is_missing_for(requirement_id)
        self._steps = []
        if missing is not None:
            self.outcomes[requirement_id] = missing
            return
        try:
            CHECKS[requirement_id](self)
        except ShortfallError as shortfall:
            self._note_broken(requirement_id, shortfall.expected, shortfall.exchange, shortfall.compared_with)
        except RecordingError as error:
            self.outcomes[requirement_id] = Outcome(
                Verdict.BROKEN,
                expected="the rows to be recorded, or discarded, by the record command",
                came=report.without_token(str(error), self.token),
                commands=report.commands(self._steps, self.wire.base_url, self.wire.timeout_s),
            )
        except NotCheckedError as reason:
            self.outcomes[requirement_id] = Outcome(Verdict.NOT_CHECKED, report.without_token(str(reason), self.token))
        else:
            self.outcomes[requirement_id] = Outcome(Verdict.HOLDS)

    def finish(self) -> None:
        """Gives each requirement its final outcome, and says which were found broken by the same answer.

        Requirements are listed causes first, so of those that one answer breaks, the first in the list is what to mend.
        """
        first_broken_by: dict[int, str] = {}
        for requirement_id in requirements():
            outcome = self.outcomes.setdefault(
                requirement_id, Outcome(Verdict.NOT_CHECKED, "no answer of this kind came")
            )
            if outcome.verdict is Verdict.BROKEN and requirement_id in self._shown_by:
                first = first_broken_by.setdefault(id(self._shown_by[requirement_id]), requirement_id)
                if first != requirement_id:
                    self.outcomes[requirement_id] = replace(outcome, same_answer_as=first)

    def clean_up(self, within_s: float) -> str:
        """Deletes what the check has left, and returns what could not be done, in words."""
        self.wire.deadline = time.monotonic() + within_s
        left = list(self.touched)
        offered = self.outcomes.get("delete.offered")
        if offered is not None and offered.verdict is Verdict.BROKEN and "delete" not in self.present:
            made = self.recorder is not None or "retire" in self.present
            return f"could not delete the ids that begin with {self.prefix}: see delete.offered" if made else ""
        for start in range(0, len(left), CLEANUP_BATCH):
            batch = left[start : start + CLEANUP_BATCH]
            body = json.dumps({"rollout_ids": batch}).encode()
            try:
                exchange = self.wire.exchange(Request("POST", batch_path("delete"), self.credentials, JSON, body))
            except UnreachableError as error:
                return f"could not delete the ids that begin with {self.prefix}: {error}"
            if exchange.answer is None or exchange.answer.status != 200:
                return f"could not delete the ids that begin with {self.prefix}: {report.came(exchange)}"
        return ""

    def report_finding(self, requirement_id: str, expected: str, exchange: Exchange) -> None:
        """Notes a shortfall that the fuzzing found, unless the requirement is known to be broken."""
        self._steps = [exchange]
        self._note(requirement_id, expected, exchange)

    def _note(self, requirement_id: str, expected: str | None, exchange: Exchange) -> None:
        """Notes what was observed; the first shortfall is the evidence."""
        before = self.outcomes.get(requirement_id)
        if before is not None and before.verdict is Verdict.BROKEN:
            return
        if expected is None:
            self.outcomes[requirement_id] = Outcome(Verdict.HOLDS)
        else:
            self._note_broken(requirement_id, expected, exchange)

    def _note_broken(
        self, requirement_id: str, expected: str, exchange: Exchange, compared_with: Exchange | None = None
    ) -> None:
        steps = [*self._steps_before(exchange, compared_with), exchange]
        self._shown_by[requirement_id] = exchange
        self.outcomes[requirement_id] = Outcome(
            Verdict.BROKEN,
            expected=report.without_token(expected, self.token),
            came=report.without_token(report.came(exchange), self.token),
            commands=report.commands(steps, self.wire.base_url, self.wire.timeout_s),
        )

    def _steps_before(self, exchange: Exchange, compared_with: Exchange | None) -> list[report.Step]:
        """Returns what of this check led up to an answer: rows, removals, and the same request sent before."""
        before = self._steps[: next((at for at, step in enumerate(self._steps) if step is exchange), 0)]
        return [
            step
            for step in before
            if isinstance(step, Recording)
            or step is compared_with
            or (_succeeded(step) and (_removes(step.request) or step.request == exchange.request))
            or (_removes(step.request) and _names_rollout_of(step.request, exchange.request))
        ]

    def _what_is_missing_for(self, requirement_id: str) -> Outcome | None:
        """Returns why a requirement cannot be checked, or None if it can; checks first those that it needs."""
        needs = requirements()[requirement_id].needs
        if requirement_id.partition(".")[0] not in {"http", "auth"}:
            needs = ("auth.accepted", *needs)
        for need in needs:
            why = ""
            if need == RECORDER:
                if self.recorder is None:
                    why = "rows can only be written inside the server: give --record-command"
            elif need == RECORDED_ID:
                if self.recorder is None and self.recorded_id is None:
                    why = "rows can only be written inside the server: give --record-command or --recorded-id"
            elif need == A_BATCH_OPERATION:
                if not self.present:
                    why = "the server has no operation that takes a batch"
            else:
                self.examine(need)
                outcome = self.outcomes[need]
                if outcome.verdict is Verdict.BROKEN:
                    return Outcome(Verdict.NOT_CHECKED, f"needs {need}, which is broken", need)
                if outcome.verdict is Verdict.NOT_CHECKED:
                    why = f"needs {need}, which was not checked: {outcome.why}"
            if why:
                return Outcome(Verdict.NOT_CHECKED, why)
        return None


def _succeeded(exchange: Exchange) -> bool:
    return exchange.answer is not None and exchange.answer.status == 200


def _removes(request: Request) -> bool:
    return request.path.rpartition("/")[2] in CHANGES


def _names_rollout_of(batch: Request, reading: Request) -> bool:
    """Tells whether a batch has the id whose manifest is read. A refused batch must have done nothing to it."""
    rollout_id = reading.path.removesuffix("/manifest").rpartition("/")[2]
    return rollout_id.encode() in (batch.body or b"")
