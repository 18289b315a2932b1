"""The bulk operation on our server, where the check does not see it: its limit, and ledgers of another make."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from litestar import Litestar
from rollout_control_server import MemoryLedger, RolloutRetiredError, create_app, install_rollout_control_routes
from rollout_control_server.samples import sample_conversation
from served import TOKEN, Control, controlled


def ask(control: Control, *rollout_ids: str) -> Any:
    answer = control.remove("manifests", *rollout_ids)
    assert answer.status_code == 200, answer.text
    return answer.json()


def fill(ledger: Any, **rollouts: int) -> None:
    async def record() -> None:
        for rollout_id, calls in rollouts.items():
            for commit in sample_conversation(rollout_id, calls):
                await ledger.record(commit)

    asyncio.run(record())


def test_each_manifest_is_the_one_that_is_read_alone(control: Control) -> None:
    fill(control.ledger, a=30, b=1)
    together = json.dumps(ask(control, "a", "b", "empty")["manifests"])
    assert together == json.dumps([control.get_manifest(rollout_id).json() for rollout_id in ("a", "b", "empty")])


def test_the_answer_ends_at_its_limit() -> None:
    ledger = MemoryLedger()
    fill(ledger, a=10, b=1, c=1, d=1)
    with controlled(ledger, create_app(ledger, TOKEN, answer_limit=3000)) as control:
        answer = ask(control, "a", "b", "c", "d")
        assert [manifest["rollout_id"] for manifest in answer["manifests"]] == ["a"], "larger than the limit by itself"
        assert answer["remaining"] == ["b", "c", "d"]
        answer = ask(control, "b", "c", "d", "a")
        assert [manifest["rollout_id"] for manifest in answer["manifests"]] == ["b", "c", "d"]
        assert answer["remaining"] == ["a"]


class BytesOfAnotherMake:
    """A ledger of another make, which gives the bytes of one of ours."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self.manifest = ledger.manifest


@pytest.mark.parametrize(("missing", "manifests"), [(0, 2), (1, 1)])
@pytest.mark.parametrize("served_as", [lambda ledger: ledger, BytesOfAnotherMake])
def test_manifests_that_fill_the_limit_exactly_fit(
    served_as: Callable[[Any], Any], missing: int, manifests: int
) -> None:
    ledger = MemoryLedger()
    fill(ledger, a=2, b=3)
    size = sum(len(asyncio.run(ledger.manifest(rollout_id))) for rollout_id in ("a", "b"))
    with controlled(ledger, host_of(served_as(ledger), size - missing)) as control:
        assert len(ask(control, "a", "b")["manifests"]) == manifests


def host_of(ledger: Any, answer_limit: int) -> Litestar:
    app = Litestar(logging_config=None, openapi_config=None)
    install_rollout_control_routes(app, ledger, TOKEN, answer_limit=answer_limit)
    return app


def test_a_limit_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="answer_limit"):
        create_app(MemoryLedger(), TOKEN, answer_limit=0)


def test_it_is_never_refused_as_a_removal_is() -> None:
    ledger = MemoryLedger()
    with controlled(ledger, create_app(ledger, TOKEN, lambda: "not now")) as control:
        assert control.remove("retire", "a").status_code == 409
        assert len(ask(control, "a")["manifests"]) == 1


class OfAnotherMake:
    """A ledger that is read rollout by rollout, and gives plain objects."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def manifest(self, rollout_id: str) -> dict[str, Any]:
        self.asked.append(rollout_id)
        if rollout_id == "gone":
            raise RolloutRetiredError(rollout_id)
        if rollout_id == "broken":
            raise KeyError("a damaged row")
        return {"schema_version": 2, "rollout_id": rollout_id, "records": [], "failures": []}


def test_a_ledger_of_another_make_is_asked_id_by_id() -> None:
    ledger = OfAnotherMake()
    with controlled(ledger, host_of(ledger, 150)) as control:
        answer = ask(control, "a", "gone", "b", "c", "d")
        assert [manifest["rollout_id"] for manifest in answer["manifests"]] == ["a", "b"]
        assert answer["retired"] == ["gone"]
        assert answer["remaining"] == ["c", "d"]
        assert ledger.asked == ["a", "gone", "b", "c"], "and no more than there is room for"
        assert control.remove("manifests", "a", "broken").status_code == 500
