"""The errors of ledgers, of ours and of another make: their statuses, and details in the log and not in the answer."""

import errno
import logging
from typing import Any

import pytest
from litestar import Litestar
from rollout_control_server import (
    LedgerConflictError,
    LedgerCorruptError,
    LedgerUnavailableError,
    MemoryLedger,
    RolloutRetiredError,
    create_app,
    install_rollout_control_routes,
)
from rollout_control_server.errors import LedgerClosedError
from served import TOKEN, controlled

SECRET = "a detail of the storage"


class GymsOwn:
    """A namespace for a class that has the name of ours and is not ours."""

    class RolloutRetiredError(LookupError):
        pass


class SomewhatRetiredError(GymsOwn.RolloutRetiredError):
    """A subclass: the name stands anywhere in the MRO."""


class Failing:
    """A ledger of another make whose every operation raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def manifest(self, rollout_id: str) -> Any:
        raise self.error

    async def retire(self, rollout_ids: Any) -> Any:
        raise self.error

    async def delete(self, rollout_ids: Any) -> Any:
        raise self.error

    async def check_ready(self) -> None:
        raise self.error

    async def aclose(self) -> None:
        pass


CASES: dict[str, tuple[Exception, int]] = {
    "ours: retired": (RolloutRetiredError("r"), 410),
    "another's class of that name": (GymsOwn.RolloutRetiredError(SECRET), 410),
    "a subclass of it": (SomewhatRetiredError(SECRET), 410),
    "a damaged row": (KeyError(SECRET), 500),
    "another LookupError": (LookupError(SECRET), 500),
    "a ValueError": (ValueError(SECRET), 500),
    "a conflict": (LedgerConflictError(SECRET), 500),
    "corrupt storage": (LedgerCorruptError(SECRET), 500),
    "a mistake in the ledger": (TypeError(SECRET), 500),
    "an operation that is not implemented": (NotImplementedError(SECRET), 501),
    "RecursionError": (RecursionError(SECRET), 500),
    "UnicodeDecodeError": (UnicodeDecodeError("utf-8", b"\xff", 0, 1, SECRET), 500),
    "a file name that is too long": (OSError(errno.ENAMETOOLONG, SECRET), 400),
    "disk full": (OSError(errno.ENOSPC, SECRET), 503),
    "permission denied": (PermissionError(errno.EACCES, SECRET), 503),
    "a time-out": (TimeoutError(SECRET), 503),
    "ours: unavailable": (LedgerUnavailableError(SECRET, retry_after_s=7), 503),
    "ours: closed": (LedgerClosedError(SECRET), 503),
}


@pytest.mark.parametrize(("error", "status"), CASES.values(), ids=CASES)
def test_each_error_has_its_status(error: Exception, status: int, caplog: pytest.LogCaptureFixture) -> None:
    ledger: Any = Failing(error)
    with controlled(ledger) as control, caplog.at_level(logging.DEBUG):
        answers = [control.get_manifest("r"), control.remove("retire", "r"), control.remove("delete", "r")]
    for answer in answers:
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert SECRET not in answer.text
        assert "Traceback" not in answer.text
        if status == 503:
            expected = error.retry_after_s if isinstance(error, LedgerUnavailableError) else 1
            assert answer.headers["retry-after"] == str(expected)
    logged = [line for line in caplog.records if line.name.startswith("rollout_control_server")]
    if status == 500:
        assert [line.levelname for line in logged] == ["ERROR"] * 3
        assert all(line.exc_info is not None and line.exc_info[1] is error for line in logged)
    elif status == 503:
        assert [line.levelname for line in logged] == ["WARNING"] * 3
        assert all(SECRET in line.getMessage() for line in logged)
    else:
        assert logged == []
    assert TOKEN not in caplog.text


def test_readiness_is_the_ledgers() -> None:
    unready: Any = Failing(LedgerUnavailableError(SECRET))
    with controlled(unready) as control:
        assert control.http.get("/readyz").status_code == 503
        assert control.http.get("/livez").status_code == 200


class Answering(Failing):
    """A ledger of another make that answers with what it is given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def manifest(self, rollout_id: str) -> Any:
        return self.answer

    async def retire(self, rollout_ids: Any) -> Any:
        return self.answer


def test_anothers_removal_has_exactly_the_fields_of_the_wire() -> None:
    answer = {"schema_version": 2, "removed": ("a",), "absent": [], "more": 1}
    ledger: Any = Answering(answer)
    with controlled(ledger) as control:
        assert control.remove("retire", "a").json() == {"removed": ["a"], "absent": []}


@pytest.mark.parametrize("answer", [None, {}, {"removed": []}, 5, {"removed": None, "absent": []}])
def test_an_answer_that_is_no_removal_is_the_ledgers_fault(answer: Any) -> None:
    ledger: Any = Answering(answer)
    with controlled(ledger) as control:
        assert control.remove("retire", "a").status_code == 500


EMPTY = {"schema_version": 2, "rollout_id": "a", "records": [], "failures": []}


@pytest.mark.parametrize(
    "answer",
    [
        {"x": "\ud800"},
        {"x": object()},
        {1.5: object()},
        None,
        b"not json",
        {**EMPTY, "rollout_id": "b"},
        {**EMPTY, "schema_version": 3},
        {**EMPTY, "more": 1},
        {**EMPTY, "records": [{}]},
        {**EMPTY, "failures": [{"schema_version": 2, "model_call_id": "c", "reason": ""}]},
    ],
)
def test_a_manifest_of_anothers_ledger_that_breaks_the_contract_is_the_ledgers_fault(answer: Any) -> None:
    ledger: Any = Answering(answer)
    with controlled(ledger, host_of(ledger)) as control:
        assert control.get_manifest("a").status_code == 500
        assert control.remove("manifests", "a").status_code == 500


@pytest.mark.parametrize("answer", [EMPTY, b'{"schema_version":2,"rollout_id":"a","records":[],"failures":[]}'])
def test_a_manifest_of_anothers_ledger_is_sent_as_it_is(answer: Any) -> None:
    ledger: Any = Answering(answer)
    with controlled(ledger, host_of(ledger)) as control:
        assert control.get_manifest("a").json() == EMPTY


def host_of(ledger: Any) -> Litestar:
    app = Litestar(logging_config=None, openapi_config=None)
    install_rollout_control_routes(app, ledger, TOKEN)
    return app


@pytest.mark.parametrize("lineage_store", [None, 5, MemoryLedger, object()])
def test_what_is_no_ledger_is_not_installed(lineage_store: Any) -> None:
    with pytest.raises(TypeError, match="lineage_store"):
        host_of(lineage_store)


def test_a_refuse_removal_that_cannot_be_called_is_not_installed() -> None:
    refuse_removal: Any = "not now"
    with pytest.raises(TypeError, match="refuse_removal"):
        create_app(MemoryLedger(), TOKEN, refuse_removal)


@pytest.mark.parametrize(("reason", "detail"), [("", ""), (True, "True"), (0, "0"), ("a \ud800 b", "a ? b")])
def test_any_reason_refuses_a_removal(reason: Any, detail: str) -> None:
    ledger = MemoryLedger()
    with controlled(ledger, create_app(ledger, TOKEN, lambda: reason)) as control:
        answer = control.remove("retire", "r")
        assert (answer.status_code, answer.json()["detail"]) == (409, detail)


def test_a_failing_refuse_removal_removes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> str:
        raise RuntimeError(SECRET)

    ledger = MemoryLedger()
    with controlled(ledger, create_app(ledger, TOKEN, broken)) as control:
        answer = control.remove("retire", "r")
        assert control.get_manifest("r").status_code == 200
    assert answer.status_code == 500
    assert SECRET not in answer.text
    assert SECRET in caplog.text
