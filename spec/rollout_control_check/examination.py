"""One run of the check: the server, what is known of it so far, and what became of each requirement."""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from rollout_control_spec import CONTROL_ROUTE_PREFIX

from rollout_control_check.recorder import Recorder, RecordingError, Row
from rollout_control_check.requirements import A_BATCH_OPERATION, RECORDED_ID, RECORDER, requirements
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
    "CHECKS",
    "DOCUMENTED_STATUSES",
    "JSON",
    "OBSERVERS",
    "REMOVALS",
    "Examination",
    "NotCheckedError",
    "Outcome",
    "ShortfallError",
    "Verdict",
    "batch_path",
    "check",
    "document_of",
    "manifest_path",
    "observer",
]

REMOVALS: Final = ("retire", "delete")
BATCH_OPERATIONS: Final = (*REMOVALS, "manifests")
"""The operations that take a LedgerBatchRequest, by the last segment of their path."""
JSON: Final = (("Content-Type", "application/json"),)
DOCUMENTED_STATUSES: Final = (200, 400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 500, 501, 503)
HANGS_BEFORE_GIVING_UP: Final = 3
TIME_IS_UP: Final = "the time limit of the whole check is over"
CLEANUP_BATCH: Final = 1000


class Verdict(Enum):
    """What became of a requirement."""

    HOLDS = "holds"
    BROKEN = "broken"
    NOT_CHECKED = "not checked"


@dataclass
class Outcome:
    """What became of one requirement.

    Attributes:
        verdict: Whether it holds.
        why: Why it was not checked.
        expected: What the contract expects, where the server did something else.
        request: The request that shows it, as a shell command.
        came: What came.
    """

    verdict: Verdict
    why: str = ""
    expected: str = ""
    request: str = ""
    came: str = ""


def _broken(expected: str, exchange: Exchange) -> Outcome:
    return Outcome(Verdict.BROKEN, "", expected, exchange.curl(), exchange.came())


class ShortfallError(Exception):
    """The server did something else than what the contract expects."""

    def __init__(self, expected: str, exchange: Exchange) -> None:
        super().__init__(expected)
        self.exchange = exchange
        self.outcome = _broken(expected, exchange)


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
        present: The batch operations whose path the server has.
        touched: The ids that may have rows or a fence because of the check.
    """

    wire: Wire
    token: str
    recorder: Recorder | None = None
    recorded_id: str | None = None
    prefix: str = field(default_factory=lambda: f"rollout-control-check-{secrets.token_hex(6)}-")
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)
    touched: dict[str, None] = field(default_factory=dict)
    _hangs_in_a_row: int = 0

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
        because: str = "",
    ) -> Exchange:
        """Sends any body to retire or delete."""
        request = Request("POST", batch_path(operation), self.credentials, headers, body)
        return self.ask(request, *expected, because=because)

    def record(self, rollout_id: str, rows: list[Row]) -> None:
        """Has rows recorded.

        Raises:
            NotCheckedError: Nobody records.
            RecordingError: The recorder failed.
        """
        if self.recorder is None:
            raise NotCheckedError("nobody records rows")
        self.recorder(rollout_id, rows)

    def examine(self, requirement_id: str) -> None:
        """Finds out what becomes of one requirement, unless it is known."""
        if requirement_id in self.outcomes or requirement_id not in CHECKS:
            return
        try:
            missing = self._what_is_missing_for(requirement_id)
            if missing:
                raise NotCheckedError(missing)
            CHECKS[requirement_id](self)
        except ShortfallError as shortfall:
            self.outcomes[requirement_id] = shortfall.outcome
        except RecordingError as error:
            self.outcomes[requirement_id] = Outcome(
                Verdict.BROKEN, "", "the rows to be recorded, or discarded, by the record command", "", str(error)
            )
        except NotCheckedError as reason:
            self.outcomes[requirement_id] = Outcome(Verdict.NOT_CHECKED, str(reason))
        else:
            self.outcomes[requirement_id] = Outcome(Verdict.HOLDS)

    def finish(self) -> None:
        """Gives the requirements that are only observed, and were not, their outcome."""
        for requirement_id in requirements():
            if requirement_id not in self.outcomes:
                self.outcomes[requirement_id] = Outcome(Verdict.NOT_CHECKED, "no answer of this kind came")

    def clean_up(self, within_s: float) -> str:
        """Deletes what the check has left, and returns what could not be done, in words."""
        self.wire.deadline = time.monotonic() + within_s
        left = list(self.touched)
        if "delete" not in self.present and "delete.offered" in self.outcomes:
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
                return f"could not delete the ids that begin with {self.prefix}: {exchange.came()}"
        return ""

    def report_finding(self, requirement_id: str, expected: str, exchange: Exchange) -> None:
        """Notes a shortfall that the fuzzing found, unless the requirement is known to be broken."""
        self._note(requirement_id, expected, exchange)

    def _note(self, requirement_id: str, expected: str | None, exchange: Exchange) -> None:
        """Notes what was observed; the first shortfall is the evidence."""
        before = self.outcomes.get(requirement_id)
        if before is not None and before.verdict is Verdict.BROKEN:
            return
        self.outcomes[requirement_id] = Outcome(Verdict.HOLDS) if expected is None else _broken(expected, exchange)

    def _what_is_missing_for(self, requirement_id: str) -> str:
        needs = requirements()[requirement_id].needs
        if requirement_id.partition(".")[0] not in {"http", "auth"}:
            needs = ("auth.accepted", *needs)
        for need in needs:
            if need == RECORDER:
                if self.recorder is None:
                    return "rows can only be written inside the server: give --record-command"
            elif need == RECORDED_ID:
                if self.recorder is None and self.recorded_id is None:
                    return "rows can only be written inside the server: give --record-command or --recorded-id"
            elif need == A_BATCH_OPERATION:
                if not self.present:
                    return "the server has no operation that takes a batch"
            else:
                self.examine(need)
                outcome = self.outcomes[need]
                if outcome.verdict is not Verdict.HOLDS:
                    return f"needs {need}, which {_said_of(outcome)}"
        return ""


def _said_of(outcome: Outcome) -> str:
    return "is broken" if outcome.verdict is Verdict.BROKEN else f"was not checked: {outcome.why}"
