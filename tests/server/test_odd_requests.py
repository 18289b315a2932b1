"""Requests to our server that the contract check does not send, and answers that it cannot provoke.

What every server must do is tested by the check, in tests/contract/test_check_correct_server.py.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from rollout_control_server import CallRecord, CaptureCommit, MemoryLedger, create_app
from rollout_control_server.samples import sample_commit
from rollout_control_spec import CONTROL_ROUTE_PREFIX
from served import TOKEN, Control, controlled

VECTORS = Path(__file__).parent.parent / "peer_vectors"


def assert_problem(response: httpx.Response, status: int, kind: str) -> str:
    """Sees that the answer is a whole problem document, and returns its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["type"] == f"urn:rollout-control:problem:{kind}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert TOKEN not in response.text
    return str(problem["detail"])


def record(control: Control, *commits: CaptureCommit) -> None:
    async def record_all() -> None:
        for commit in commits:
            assert await control.ledger.record(commit)

    asyncio.run(record_all())


@pytest.mark.parametrize("path_id", ["%FF", "a" * 60_000])
def test_400_an_invalid_id_in_the_path(control: Control, path_id: str) -> None:
    assert_problem(control.get_manifest(path_id), 400, "invalid-rollout-id")


NOT_JSON = {
    "NaN": b'{"rollout_ids":[NaN]}',
    "a BOM": b'\xef\xbb\xbf{"rollout_ids":["a"]}',
    "UTF-16": '{"rollout_ids":["a"]}'.encode("utf-16"),
    "a lone surrogate": b'{"rollout_ids":["\\ud800"]}',
    "100,000 brackets": b"[" * 100_000,
    "100,000 brackets where an id belongs": b'{"rollout_ids":' + b"[" * 100_000,
    "not JSON behind a field that there is not": b'{"x":1,',
    "not JSON behind a number that no float holds": b'{"rollout_ids":[1e999',
    "not JSON behind a long number": b'{"rollout_ids":["a"],"x":' + b"9" * 5000 + b" !!!",
    "Infinity": b'{"x":Infinity}',
    "-Infinity behind a field that there is not": b'{"x":1,"y":-Infinity}',
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_400_a_body_that_is_not_json(control: Control, body: bytes) -> None:
    assert_problem(control.post("retire", body), 400, "malformed-body")


AUTHORIZATIONS = {
    "empty": [b""],
    "the token and another word": [f"Bearer {TOKEN} x".encode()],
    "two of them": [f"Bearer {TOKEN}".encode(), b"Bearer wrong"],
}


@pytest.mark.parametrize("authorization", AUTHORIZATIONS.values(), ids=AUTHORIZATIONS)
def test_401_an_odd_authorization(control: Control, authorization: list[bytes]) -> None:
    with httpx.Client(base_url=control.base_url, trust_env=False) as stranger:
        headers = [(b"authorization", value) for value in authorization]
        answer = stranger.get(f"{CONTROL_ROUTE_PREFIX}/rollouts/r/manifest", headers=headers)
    assert_problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_the_scheme_is_read_without_regard_to_case(control: Control) -> None:
    assert control.get_manifest("r", headers={"authorization": f"bEARER {TOKEN}"}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/rollout",
        "/rollouts/r",
        "/rollouts/r/manifest/",
        "/rollouts//manifest",
        "//rollouts/r/manifest",
        "/rollouts/a%2Fb/manifest",
        "/rollouts/a%2fmanifest",
        "/rollouts%2Fretire",
        "/rollouts/r/manifest/more",
        "/rollouts/r/manifests",
        "/rollouts/retire/",
        "/rollouts/manifests/",
    ],
)
def test_404_an_unknown_path(control: Control, path: str) -> None:
    for method in ("GET", "POST"):
        assert_problem(control.http.request(method, CONTROL_ROUTE_PREFIX + path), 404, "not-found")


def test_404_outside_the_prefix_needs_no_token(control: Control) -> None:
    assert_problem(httpx.get(f"{control.base_url}/elsewhere", trust_env=False), 404, "not-found")


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PROPFIND"])
def test_405_another_method_on_the_manifest(control: Control, method: str) -> None:
    answer = control.http.request(method, f"{CONTROL_ROUTE_PREFIX}/rollouts/r/manifest")
    assert answer.headers["allow"] == "GET"
    if method == "HEAD":
        assert answer.status_code == 405
    else:
        assert_problem(answer, 405, "method-not-allowed")


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE"])
def test_405_another_method_on_a_removal(control: Control, method: str) -> None:
    answer = control.http.request(method, f"{CONTROL_ROUTE_PREFIX}/rollouts/retire")
    assert_problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "POST"


def refuse() -> str:
    return "weights are being synchronised"


async def refuse_later() -> str:
    await asyncio.sleep(0)
    return "weights are being synchronised"


def allow() -> None:
    return None


@pytest.mark.parametrize("refuse_removal", [refuse, refuse_later])
def test_409_a_refused_removal_changes_nothing(refuse_removal: Any) -> None:
    ledger = MemoryLedger()
    with controlled(ledger, create_app(ledger, TOKEN, refuse_removal)) as control:
        record(control, sample_commit("r", "c"))
        for operation in ("retire", "delete"):
            detail = assert_problem(control.remove(operation, "r"), 409, "removal-refused")
            assert detail == "weights are being synchronised"
        assert len(control.get_manifest("r").json()["records"]) == 1


def test_a_removal_that_is_not_refused_is_done() -> None:
    ledger = MemoryLedger()
    with controlled(ledger, create_app(ledger, TOKEN, allow)) as control:
        assert control.remove("retire", "r").status_code == 200


def test_the_largest_batch_is_within_the_limit(control: Control) -> None:
    """4096 of the longest ids, each character written as an escape."""
    ids = [f"{index:0255d}" for index in range(4096)]
    escaped = ",".join(
        '"' + "".join(f"\\u{ord(character):04x}" for character in rollout_id) + '"' for rollout_id in ids
    )
    answer = control.post("retire", f'{{"rollout_ids":[{escaped}]}}'.encode())
    assert answer.json() == {"removed": [], "absent": ids}


def test_415_a_charset_that_is_not_utf_8(control: Control) -> None:
    body, content_type = b'{"rollout_ids":["r"]}', "application/json; charset=utf-16"
    assert_problem(control.post("retire", body, content_type=content_type), 415, "unsupported-media-type")
    assert control.get_manifest("r").status_code == 200


@pytest.mark.parametrize("encoding", ["deflate, gzip", "x"])
def test_415_a_body_with_a_content_coding(control: Control, encoding: str) -> None:
    answer = control.post("retire", b'{"rollout_ids":["r"]}', content_encoding=encoding)
    assert_problem(answer, 415, "unsupported-media-type")


def test_415_by_a_second_header(control: Control) -> None:
    """Headers that stand twice are one list, for whoever reads the first and for whoever reads the last."""
    url, body = f"{CONTROL_ROUTE_PREFIX}/rollouts/retire", b'{"rollout_ids":["r"]}'
    json_type = ("content-type", "application/json")
    for headers in (
        [json_type, ("content-encoding", "identity"), ("content-encoding", "gzip")],
        [json_type, ("content-encoding", "gzip"), ("content-encoding", "identity")],
        [json_type, ("content-type", "text/plain")],
    ):
        assert_problem(control.http.post(url, content=body, headers=headers), 415, "unsupported-media-type")
    assert control.get_manifest("r").status_code == 200


@pytest.mark.parametrize(
    "content_type", ["Application/JSON", 'application/json; charset="utf-8"', "application/json;x=y"]
)
def test_json_by_any_spelling_is_taken(control: Control, content_type: str) -> None:
    body = b'{"rollout_ids":["r"]}'
    assert control.post("retire", body, content_type=content_type, content_encoding="identity").status_code == 200


BREAKS_THE_SCHEMA = {
    "a number that no float holds": {"rollout_ids": [10**400]},
    "a number of 5000 digits": {"rollout_ids": ["a"], "x": 10**4000},
}


@pytest.mark.parametrize("body", BREAKS_THE_SCHEMA.values(), ids=BREAKS_THE_SCHEMA)
def test_422_json_that_breaks_the_schema(control: Control, body: Any) -> None:
    assert_problem(control.post("retire", json.dumps(body).encode()), 422, "invalid-body")


def test_of_duplicate_keys_the_last_counts(control: Control) -> None:
    answer = control.post("retire", b'{"rollout_ids":["a"],"rollout_ids":["b"]}')
    assert answer.json() == {"removed": [], "absent": ["b"]}


class Reading:
    """A ledger of another make, without retire and delete."""

    async def manifest(self, rollout_id: str) -> dict[str, Any]:
        return {"schema_version": 2, "rollout_id": rollout_id, "records": [], "failures": []}


def test_501_a_ledger_without_the_operation(control: Control) -> None:
    with controlled(Reading(), create_app_of(Reading(), lambda: "refused")) as reading:
        assert reading.get_manifest("r").status_code == 200
        for operation in ("retire", "delete"):
            detail = assert_problem(reading.remove(operation, "r"), 501, "not-implemented")
            assert operation in detail
            assert_problem(reading.remove(operation, ".."), 400, "invalid-rollout-id")


def create_app_of(ledger: Any, refuse_removal: Any = None) -> Any:
    """An application over a ledger of another make."""
    from litestar import Litestar
    from rollout_control_server import install_rollout_control_routes

    app = Litestar(logging_config=None, openapi_config=None)
    install_rollout_control_routes(app, ledger, TOKEN, refuse_removal)
    return app


def test_the_order_of_decisions(control: Control) -> None:
    """Each request has one fault less than the one before: the first fault in the spec's order decides the answer."""
    asked: list[str] = []

    def refuse_once() -> str | None:
        asked.append("refuse_removal")
        return "not now" if len(asked) == 1 else None

    ledger = MemoryLedger()
    with controlled(ledger, create_app(ledger, TOKEN, refuse_once)) as ordered:
        path, wrong_path = f"{CONTROL_ROUTE_PREFIX}/rollouts/retire", f"{CONTROL_ROUTE_PREFIX}/rollouts/retires"
        authorization = {"authorization": "Bearer wrong"}
        headers = {"content-type": "text/plain"}
        json_headers = {"content-type": "application/json"}
        too_long, not_json = b"[" * (8 * 2**20 + 1), b"["
        wrong_schema, wrong_id = b'{"rollout_ids":["..",1]}', b'{"rollout_ids":[".."]}'
        right = b'{"rollout_ids":["r"]}'
        statuses = [
            ordered.http.post(wrong_path, content=too_long, headers=headers | authorization).status_code,
            ordered.http.post(wrong_path, content=too_long, headers=headers).status_code,
            ordered.http.put(path, content=too_long, headers=headers).status_code,
            ordered.http.post(path, content=too_long, headers=headers).status_code,
            ordered.http.post(path, content=too_long, headers=json_headers).status_code,
            ordered.http.post(path, content=not_json, headers=json_headers).status_code,
            ordered.http.post(path, content=wrong_schema, headers=json_headers).status_code,
            ordered.http.post(path, content=wrong_id, headers=json_headers).status_code,
        ]
        assert statuses == [401, 404, 405, 415, 413, 400, 422, 400]
        assert asked == []
        assert ordered.http.post(path, content=right, headers=json_headers).status_code == 409
        assert ordered.http.post(path, content=right, headers=json_headers).status_code == 200


@pytest.mark.parametrize("name", sorted(path.name.partition(".")[0] for path in VECTORS.glob("*.ops.jsonl")))
def test_a_peers_ledger_comes_back_as_the_peer_serves_it(control: Control, name: str) -> None:
    async def replay() -> None:
        for line in (VECTORS / f"{name}.ops.jsonl").read_text().splitlines():
            operation = json.loads(line)
            rollout_id = operation["rollout_id"]
            if operation["op"] == "record":
                record_ = msgspec.convert(operation["record"], CallRecord)
                commit = CaptureCommit(rollout_id, record_, tuple(operation["staging_chain"]))
                assert await control.ledger.record(commit)
            else:
                failure = (operation["model_call_id"], operation["reason"])
                assert await control.ledger.record_failure(rollout_id, *failure)

    asyncio.run(replay())
    expected = json.loads((VECTORS / f"{name}.manifest.json").read_text())
    answer = control.get_manifest(expected["rollout_id"]).json()
    assert answer == expected
    # dict equality ignores order, JSON text does not
    assert json.dumps(answer) == json.dumps(expected)


def test_no_answer_names_what_it_is_made_with(control: Control) -> None:
    answers = {
        200: control.get_manifest("r"),
        400: control.post("retire", b"{"),
        401: control.get_manifest("r", headers={"authorization": ""}),
        404: control.get_manifest("..%2f"),
        405: control.http.put(f"{CONTROL_ROUTE_PREFIX}/rollouts/retire"),
        415: control.post("retire", b"{}", content_type="text/plain"),
        422: control.remove("retire"),
    }
    assert {status: answer.status_code for status, answer in answers.items()} == {status: status for status in answers}
    for answer in answers.values():
        assert not re.search("litestar|msgspec|python", f"{answer.headers}{answer.text}", flags=re.IGNORECASE)
