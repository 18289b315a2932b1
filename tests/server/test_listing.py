"""The listing, the summary and the retirement of idle rollouts, as a client without our library sees them."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from rollout_control_server import CaptureLedger, MemoryLedger, create_app, install_rollout_control_routes
from rollout_control_server.ledger.results import LedgerRow, RolloutExport
from rollout_control_server.samples import sample_commit, sample_conversation
from rollout_control_spec import CONTROL_ROUTE_PREFIX
from served import TOKEN, Control, controlled

ENTRY_FIELDS = [
    "rollout_id",
    "state",
    "calls",
    "failures",
    "first_recorded_at",
    "last_recorded_at",
    "retired_at",
]


async def age(ledger: CaptureLedger, rollout_id: str, seconds: float) -> None:
    """Moves the times of a rollout's rows into the past."""
    rows = (await ledger.export(rollout_id)).rows
    moved = [LedgerRow(row, at - seconds) for row, at in rows if at is not None]
    await ledger.import_([RolloutExport(rollout_id, None, moved)])


@pytest.fixture
def filled(control: Control) -> Control:
    async def fill() -> None:
        ledger = control.ledger
        for rollout_id, calls in {"run-1.a": 2, "run-1.b": 1, "run-2.a": 1}.items():
            for commit in sample_conversation(rollout_id, calls):
                await ledger.record(commit)
        await ledger.record_failure("run-2.a", "c", "worker_capture_failed")
        await ledger.retire(["run-1.c", "run-3.a"])
        await age(ledger, "run-1.b", 7200)

    asyncio.run(fill())
    return control


def get(control: Control, query: str = "", path: str = "") -> httpx.Response:
    return control.http.get(f"{CONTROL_ROUTE_PREFIX}/rollouts{path}{query}")


def ids(control: Control, query: str = "") -> list[str]:
    answer = get(control, query)
    assert answer.status_code == 200, answer.text
    return [entry["rollout_id"] for entry in answer.json()["rollouts"]]


def test_a_page_has_exactly_the_fields_of_the_spec(filled: Control) -> None:
    answer = get(filled)
    assert answer.headers["content-type"] == "application/json"
    page = answer.json()
    assert list(page) == ["rollouts", "next"]
    assert all(list(entry) == ENTRY_FIELDS for entry in page["rollouts"])
    live, _, retired, failed, _ = page["rollouts"]
    assert live["first_recorded_at"] <= live["last_recorded_at"] <= time.time()
    assert {**live, "first_recorded_at": 0, "last_recorded_at": 0} == {
        "rollout_id": "run-1.a", "state": "live", "calls": 2, "failures": 0,
        "first_recorded_at": 0, "last_recorded_at": 0, "retired_at": None,
    }  # fmt: skip
    assert retired["retired_at"] <= time.time()
    assert {**retired, "retired_at": 0} == {
        "rollout_id": "run-1.c", "state": "retired", "calls": None, "failures": None,
        "first_recorded_at": None, "last_recorded_at": None, "retired_at": 0,
    }  # fmt: skip
    assert (failed["calls"], failed["failures"]) == (1, 1)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["run-1.a", "run-1.b", "run-1.c", "run-2.a", "run-3.a"]),
        ("?state=live", ["run-1.a", "run-1.b", "run-2.a"]),
        ("?state=retired", ["run-1.c", "run-3.a"]),
        ("?prefix=run-1.", ["run-1.a", "run-1.b", "run-1.c"]),
        ("?prefix=run%2D1%2E&state=live", ["run-1.a", "run-1.b"]),
        ("?prefix=.", []),
        ("?idle_for_s=3600", ["run-1.b"]),
        ("?idle_for_s=1e9", []),
        ("?idle_for_s=0", ["run-1.a", "run-1.b", "run-2.a"]),
        ("?has_failures=true", ["run-2.a"]),
        ("?has_failures=false", ["run-1.a", "run-1.b"]),
        ("?changed_since=0.5", ["run-1.a", "run-1.b", "run-1.c", "run-2.a", "run-3.a"]),
        ("?changed_since=1000000000000", []),
        ("?after=run-1.b", ["run-1.c", "run-2.a", "run-3.a"]),
        ("?after=run-1.bb", ["run-1.c", "run-2.a", "run-3.a"]),
        ("?limit=1&after=run-1.c", ["run-2.a"]),
        ("?&&state=live&", ["run-1.a", "run-1.b", "run-2.a"]),
    ],
)
def test_filters(filled: Control, query: str, expected: list[str]) -> None:
    assert ids(filled, query) == expected


def test_pages_follow_each_other(filled: Control) -> None:
    first = get(filled, "?limit=3").json()
    assert first["next"] == "run-1.c"
    second = get(filled, f"?limit=3&after={first['next']}").json()
    assert second["next"] is None
    assert [entry["rollout_id"] for entry in second["rollouts"]] == ["run-2.a", "run-3.a"]
    assert get(filled, "?limit=5").json()["next"] is None, "nothing follows a page that shows all"


@pytest.mark.parametrize(
    "query",
    [
        "?older_than=6h", "?State=live", "?state=live&state=retired", "?state=live&state=live", "?after=a&after=b",
        "?state=", "?state", "?state=deleted", "?state=null", "?prefix=", "?prefix=a/b", "?prefix=a%0A",
        "?prefix=%C3%A9",
        f"?prefix={'a' * 256}", "?prefix=%FF", "?idle_for_s=-1", "?idle_for_s=6h", "?idle_for_s=", "?idle_for_s=NaN",
        "?idle_for_s=Infinity", "?idle_for_s=1e400", "?idle_for_s=1_0", "?idle_for_s=%205", "?idle_for_s=01",
        "?idle_for_s=true", "?idle_for_s=1e13", "?idle_for_s=null", "?changed_since=-0.5", "?changed_since=yesterday",
        "?has_failures=1", "?has_failures=True", "?has_failures=", "?has_failures=null", "?limit=0", "?limit=1001",
        "?limit=-1", "?limit=1.5", "?limit=true", "?limit=", "?limit=99999999999999999999", "?=", "?%ff=1", "?a",
        "?after=a%20b&limit=0", "?limit=0&after=", '?limit=1,"after":"z"',
    ],
)  # fmt: skip
def test_422_for_a_query_that_breaks_its_schema(filled: Control, query: str) -> None:
    answer = get(filled, query)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:rollout-control:problem:invalid-query"
    assert len(answer.text) < 1000


@pytest.mark.parametrize("after", ["", ".", "..", "a%2Fb", "a%0A", "%00", "%C3%A9", "a" * 256])
def test_400_for_a_cursor_that_is_no_rollout_id(filled: Control, after: str) -> None:
    answer = get(filled, f"?after={after}")
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:rollout-control:problem:invalid-rollout-id")


def test_the_summary(filled: Control) -> None:
    summary = get(filled, path="/summary").json()
    oldest = summary.pop("oldest_recorded_at")
    assert summary == {"live": 3, "retired": 2, "with_failures": 1, "rows": 5, "waiting_rows": 0}
    assert oldest == get(filled, "?idle_for_s=3600").json()["rollouts"][0]["first_recorded_at"]
    assert get(filled, "?any=thing", path="/summary").status_code == 200, "it declares no parameter"


def test_the_summary_of_an_empty_ledger(control: Control) -> None:
    assert get(control, path="/summary").json() == {
        "live": 0,
        "retired": 0,
        "with_failures": 0,
        "rows": 0,
        "waiting_rows": 0,
        "oldest_recorded_at": None,
    }


def retire_idle(control: Control, idle_for_s: Any, *rollout_ids: str) -> httpx.Response:
    body = {"rollout_ids": list(rollout_ids), "idle_for_s": idle_for_s}
    return control.post("retire-idle", json.dumps(body).encode())


def test_idle_rollouts_are_retired_and_no_others(filled: Control) -> None:
    answer = retire_idle(filled, 3600, "run-1.a", "never", "run-1.b", "run-1.c", "run-1.b", "run-2.a")
    assert answer.json() == {
        "removed": ["run-1.b"],
        "absent": ["never", "run-1.c"],
        "active": ["run-1.a", "run-2.a"],
    }
    assert list(answer.json()) == ["removed", "absent", "active"]
    assert filled.get_manifest("run-1.b").status_code == 410
    assert filled.get_manifest("never").status_code == 200
    assert len(filled.get_manifest("run-1.a").json()["records"]) == 2
    assert retire_idle(filled, 3600, "run-1.b").json() == {"removed": [], "absent": ["run-1.b"], "active": []}


IDLE = b'{"rollout_ids":["run-1.b"],"idle_for_s":1}'


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (IDLE, {"authorization": "Bearer wrong"}, 401),
        (IDLE, {"content_type": "text/plain"}, 415),
        (IDLE, {"content_encoding": "gzip"}, 415),
        (b" " * (8 * 2**20 + 1), {}, 413),
        (IDLE[:-1], {}, 400),
        (b'{"rollout_ids":["run-1.b"],"idle_for_s":NaN}', {}, 400),
        (b'{"rollout_ids":["run-1.b"]}', {}, 422),
        (b'{"rollout_ids":["run-1.b"],"idle_for_s":null}', {}, 422),
        (b'{"rollout_ids":["run-1.b"],"idle_for_s":"1"}', {}, 422),
        (b'{"rollout_ids":["run-1.b"],"idle_for_s":true}', {}, 422),
        (b'{"rollout_ids":["run-1.b"],"idle_for_s":-1}', {}, 422),
        (b'{"rollout_ids":["run-1.b"],"idle_for_s":1e400}', {}, 422),
        (b'{"rollout_ids":["run-1.b"],"idle_for_s":1,"prefix":"a"}', {}, 422),
        (b'{"rollout_ids":[],"idle_for_s":1}', {}, 422),
        (json.dumps({"rollout_ids": ["run-1.b"] * 4097, "idle_for_s": 1}).encode(), {}, 422),
        (b'{"rollout_ids":["run-1.b","b\\n"],"idle_for_s":1}', {}, 400),
    ],
)
def test_a_bad_batch_retires_nothing(filled: Control, body: bytes, headers: dict[str, str], status: int) -> None:
    answer = filled.post("retire-idle", body, **headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert filled.get_manifest("run-1.b").status_code == 200


def test_retiring_idle_rollouts_is_refused_as_a_removal_is() -> None:
    ledger = MemoryLedger()
    asyncio.run(ledger.record(sample_commit("a", "c")))
    with controlled(ledger, create_app(ledger, TOKEN, lambda: "weights are being synchronised")) as control:
        answer = retire_idle(control, 0, "a")
        assert (answer.status_code, answer.json()["detail"]) == (409, "weights are being synchronised")
        assert retire_idle(control, 0, "a/b").status_code == 400, "the id is decided before"
        assert ids(control) == ["a"], "and a listing is no removal"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "", "GET"), ("HEAD", "", "GET"), ("OPTIONS", "", "GET"), ("POST", "/summary", "GET"),
        ("GET", "/retire-idle", "POST"), ("DELETE", "/retire-idle", "POST"),
    ],
)  # fmt: skip
def test_405_names_the_method(control: Control, method: str, path: str, allow: str) -> None:
    answer = control.http.request(method, f"{CONTROL_ROUTE_PREFIX}/rollouts{path}?any=thing")
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)


@pytest.mark.parametrize("path", ["/", "/summary/", "/retire-idle/", "/Summary"])
def test_404_for_a_path_that_is_nearly_one(control: Control, path: str) -> None:
    assert control.http.get(f"{CONTROL_ROUTE_PREFIX}/rollouts{path}").status_code == 404


@pytest.mark.parametrize("path", ["", "/summary", "/retire-idle"])
def test_401_comes_before_the_query(control: Control, path: str) -> None:
    answer = control.http.get(
        f"{CONTROL_ROUTE_PREFIX}/rollouts{path}?bad=query", headers={"authorization": "Bearer wrong"}
    )
    assert answer.status_code == 401


@pytest.mark.parametrize("rollout_id", ["summary", "retire-idle"])
def test_a_rollout_may_have_an_operations_name(control: Control, rollout_id: str) -> None:
    asyncio.run(control.ledger.record(sample_commit(rollout_id, "c")))
    assert len(control.get_manifest(rollout_id).json()["records"]) == 1
    assert ids(control) == [rollout_id]


class OfAnotherMake:
    """A ledger that lists, and gives plain objects."""

    async def manifest(self, rollout_id: str) -> dict[str, Any]:
        return {"schema_version": 2, "rollout_id": rollout_id, "records": [], "failures": []}

    async def rollouts(self, *, prefix: str, limit: int, after: str | None, **filters: Any) -> dict[str, Any]:
        if prefix == "damaged":
            return {"rollouts": [{"rollout_id": "a"}], "next": None}
        entry = dict.fromkeys(ENTRY_FIELDS, None) | {"rollout_id": f"{prefix}{limit}{after}", "state": "retired"}
        return {"rollouts": [entry], "next": None}

    async def summary(self) -> dict[str, Any]:
        return dict.fromkeys(["live", "retired", "with_failures", "rows", "waiting_rows"], 7) | {
            "oldest_recorded_at": None
        }

    async def retire_idle(self, rollout_ids: list[str], idle_for_s: float) -> dict[str, Any]:
        return {"removed": rollout_ids, "absent": [], "active": [str(idle_for_s)]}


class WithoutListing:
    """A ledger of another make that can only be read."""

    async def manifest(self, rollout_id: str) -> dict[str, Any]:
        return {"schema_version": 2, "rollout_id": rollout_id, "records": [], "failures": []}


def test_a_ledger_of_another_make_may_list() -> None:
    from litestar import Litestar

    app = Litestar(logging_config=None, openapi_config=None)
    install_rollout_control_routes(app, OfAnotherMake(), TOKEN)
    with controlled(None, app) as control:
        assert ids(control, "?prefix=p&limit=3&after=a") == ["p3a"]
        assert get(control, path="/summary").json()["live"] == 7
        assert retire_idle(control, 2, "b", "a", "b").json() == {
            "removed": ["b", "a"], "absent": [], "active": ["2.0"],
        }  # fmt: skip
        assert get(control, "?prefix=damaged").status_code == 500, "what is no page never leaves the server"


def test_501_where_the_ledger_lacks_the_operation() -> None:
    from litestar import Litestar

    app = Litestar(logging_config=None, openapi_config=None)
    install_rollout_control_routes(app, WithoutListing(), TOKEN)
    with controlled(None, app) as control:
        for answer in (get(control), get(control, path="/summary"), retire_idle(control, 1, "a")):
            assert (answer.status_code, answer.json()["type"]) == (501, "urn:rollout-control:problem:not-implemented")
        assert get(control, "?limit=0").status_code == 422, "decided before"
        assert get(control, "?after=.").status_code == 400
        assert retire_idle(control, 1, "a/b").status_code == 400
