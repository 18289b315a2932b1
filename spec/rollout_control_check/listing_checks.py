"""Checks of the optional operations that list rollouts, count them, and retire the idle ones."""

import json
from typing import Any, Final

from rollout_control_spec import CONTROL_ROUTE_PREFIX
from rollout_control_spec.samples import sample_calls

from rollout_control_check.examination import (
    JSON,
    Examination,
    NotCheckedError,
    ShortfallError,
    batch_path,
    check,
    document_of,
)
from rollout_control_check.recorder import failure_row
from rollout_control_check.wire import Exchange, Request

LISTING: Final = f"{CONTROL_ROUTE_PREFIX}/rollouts"
SUMMARY: Final = f"{LISTING}/summary"
LONG_IDLE_S: Final = 86400.0
"""Seconds for which no rollout of a check can have been idle."""
MISSING: Final = (404, 405, 501)


def _note_if_offered(server: Examination, operation: str, request: Request, *refusals: int) -> None:
    """Notes in `server.listing` whether the server has an optional operation, and expects it to be done.

    Raises:
        NotCheckedError: The server does not have it, or refuses it for now.
        ShortfallError: It answers with another status.
    """
    exchange = server.ask(request, 200, *MISSING, *refusals)
    status = exchange.answer.status if exchange.answer else 0
    if status not in {404, 405}:
        server.listing.add(operation)
    if status in MISSING:
        raise NotCheckedError("an optional operation, which this server does not have")
    if status != 200:
        raise NotCheckedError(f"the server refuses it (status {status})")


def _page(server: Examination, query: str) -> tuple[list[dict[str, Any]], Any, Exchange]:
    """Returns the rollouts of a page, its `next`, and the exchange."""
    exchange = server.ask(Request("GET", f"{LISTING}?{query}", server.credentials), 200)
    document = document_of(exchange)
    if not isinstance(document, dict) or not isinstance(document.get("rollouts"), list):
        raise ShortfallError("a RolloutPage as JSON", exchange)
    return [entry for entry in document["rollouts"] if isinstance(entry, dict)], document.get("next"), exchange


def _idle_request(server: Examination, rollout_ids: list[str], idle_for_s: float) -> Request:
    body = json.dumps({"rollout_ids": rollout_ids, "idle_for_s": idle_for_s}).encode()
    return Request("POST", batch_path("retire-idle"), server.credentials, JSON, body)


def _expect_in(exchange: Exchange, kind: str, rollout_id: str, because: str) -> None:
    document = document_of(exchange)
    named = document.get(kind) if isinstance(document, dict) else None
    if not isinstance(named, list) or rollout_id not in named:
        raise ShortfallError(f"{rollout_id} in {kind}: {because}", exchange)


@check("rollouts.offered")
def rollouts_offered(server: Examination) -> None:
    _note_if_offered(
        server, "rollouts", Request("GET", f"{LISTING}?prefix={server.new_id('listed')}", server.credentials)
    )


@check("rollouts.query")
def rollouts_query(server: Examination) -> None:
    faults = {
        "older_than=5": "the operation has no such parameter",
        "limit=1&limit=2": "a parameter comes twice",
        "limit=0": "limit is at least 1",
        "limit=x": "limit is an integer",
        "state=gone": "state is live or retired",
        "prefix=another": "a parameter comes twice",
        "has_failures=maybe": "has_failures is true or false",
    }
    of_no_rollout = f"{LISTING}?prefix={server.new_id('query')}"
    for query, because in faults.items():
        server.ask(Request("GET", f"{of_no_rollout}&{query}", server.credentials), 422, because=because)
    after = Request("GET", f"{of_no_rollout}&after=a%20b", server.credentials)
    server.ask(after, 400, because="after is an invalid rollout id")


@check("rollouts.live")
def rollouts_live(server: Examination) -> None:
    rollout_id, another = server.new_id("listed"), server.new_id("unlisted")
    # So that the prefix is seen to be regarded also where the ledger holds nothing else.
    server.record(another, sample_calls(another, 1))
    server.record(rollout_id, [*sample_calls(rollout_id, 3), failure_row("failed", "worker_capture_failed")])
    entries, _, exchange = _page(server, f"prefix={rollout_id}")
    wanted = {"rollout_id": rollout_id, "state": "live", "calls": 3, "failures": 1, "retired_at": None}
    if [{name: entry.get(name) for name in wanted} for entry in entries] != [wanted]:
        raise ShortfallError(f"one rollout with {json.dumps(wanted)}", exchange)


@check("rollouts.retired")
def rollouts_retired(server: Examination) -> None:
    rollout_id = server.new_id("listed")
    server.send_batch("retire", [rollout_id])
    entries, _, exchange = _page(server, f"prefix={rollout_id}&state=retired")
    wanted = {"rollout_id": rollout_id, "state": "retired", "calls": None, "failures": None}
    if [{name: entry.get(name) for name in wanted} for entry in entries] != [wanted]:
        raise ShortfallError(f"one rollout with {json.dumps(wanted)}", exchange)


@check("rollouts.pages")
def rollouts_pages(server: Examination) -> None:
    prefix = server.new_id("pages")
    # ASCII has capitals before small letters, and `_` between them.
    rollout_ids = [f"{prefix}-{name}" for name in ("B", "_", "a", "b", "b.c")]
    server.touched.update(dict.fromkeys(rollout_ids))
    server.send_batch("retire", rollout_ids[::-1])
    found: list[object] = []
    after = ""
    for _page_number in rollout_ids:
        entries, follows, exchange = _page(server, f"prefix={prefix}-&limit=2{after}")
        found += [entry.get("rollout_id") for entry in entries]
        if found != rollout_ids[: len(found)] or not entries:
            raise ShortfallError(f"the ids in the order of ASCII: {', '.join(rollout_ids)}", exchange)
        if follows is None:
            break
        if follows != found[-1]:
            raise ShortfallError(f"next: {found[-1]}, the last id of the page", exchange)
        after = f"&after={follows}"
    if found != rollout_ids:
        raise ShortfallError(f"no end of the listing before {rollout_ids[-1]}", exchange)


def _expect_listed(server: Examination, query: str, wanted: list[str], because: str) -> None:
    entries, _, exchange = _page(server, query)
    if [entry.get("rollout_id") for entry in entries] != wanted:
        raise ShortfallError(f"{', '.join(wanted) or 'no rollout'}: {because}", exchange)


def _time_of(server: Examination, rollout_id: str, name: str) -> float:
    """Returns a time of a listed rollout.

    Raises:
        NotCheckedError: The ledger does not know it.
    """
    entries, _, exchange = _page(server, f"prefix={rollout_id}")
    if len(entries) != 1:
        raise ShortfallError(f"one rollout, {rollout_id}", exchange)
    at = entries[0].get(name)
    if not isinstance(at, int | float):
        raise NotCheckedError("the ledger does not know when a row was recorded")
    return at


@check("rollouts.state")
def rollouts_state(server: Examination) -> None:
    prefix = server.new_id("state")
    live, retired = f"{prefix}-a", f"{prefix}-b"
    server.touched.update(dict.fromkeys([live, retired]))
    server.record(live, sample_calls(live, 1))
    server.send_batch("retire", [retired])
    _expect_listed(server, f"prefix={prefix}&state=live", [live], "only live rollouts were asked for")
    _expect_listed(server, f"prefix={prefix}&state=retired", [retired], "only retired rollouts were asked for")
    _expect_listed(server, f"prefix={prefix}", [live, retired], "no state was asked for, so both are shown")


@check("rollouts.has-failures")
def rollouts_has_failures(server: Examination) -> None:
    prefix = server.new_id("failures")
    failed, whole = f"{prefix}-a", f"{prefix}-b"
    server.touched.update(dict.fromkeys([failed, whole]))
    server.record(failed, [failure_row("failed", "worker_capture_failed")])
    server.record(whole, sample_calls(whole, 1))
    _expect_listed(server, f"prefix={prefix}&has_failures=true", [failed], "the other rollout has no failure")
    _expect_listed(server, f"prefix={prefix}&has_failures=false", [whole], "the other rollout has a failure")


@check("rollouts.idle-for")
def rollouts_idle_for(server: Examination) -> None:
    rollout_id = server.new_id("idle")
    server.record(rollout_id, sample_calls(rollout_id, 2))
    _time_of(server, rollout_id, "last_recorded_at")
    _expect_listed(
        server, f"prefix={rollout_id}&idle_for_s={LONG_IDLE_S:.0f}", [], "its last row was recorded a moment ago"
    )
    _expect_listed(server, f"prefix={rollout_id}&idle_for_s=0", [rollout_id], "its last row is at least 0 s old")


@check("rollouts.changed-since")
def rollouts_changed_since(server: Examination) -> None:
    rollout_id = server.new_id("changed")
    server.record(rollout_id, sample_calls(rollout_id, 2))
    recorded_at = _time_of(server, rollout_id, "last_recorded_at")
    before, after = f"{recorded_at - LONG_IDLE_S:.0f}", f"{recorded_at + LONG_IDLE_S:.0f}"
    _expect_listed(server, f"prefix={rollout_id}&changed_since={after}", [], "that is a day after its last row")
    _expect_listed(server, f"prefix={rollout_id}&changed_since={before}", [rollout_id], "that is a day before its rows")


@check("rollouts.limit")
def rollouts_limit(server: Examination) -> None:
    prefix = server.new_id("limit")
    rollout_ids = [f"{prefix}-{number}" for number in range(3)]
    server.touched.update(dict.fromkeys(rollout_ids))
    server.send_batch("retire", rollout_ids)
    entries, _, exchange = _page(server, f"prefix={prefix}-&limit=2")
    if len(entries) > 2:
        raise ShortfallError("at most 2 rollouts, the limit that was asked for", exchange)


@check("summary.offered")
def summary_offered(server: Examination) -> None:
    _note_if_offered(server, "summary", Request("GET", SUMMARY, server.credentials))


@check("summary.counts")
def summary_counts(server: Examination) -> None:
    live, failed, retired = (server.new_id("counted") for _ in range(3))
    server.record(live, sample_calls(live, 3))
    server.record(failed, [failure_row("failed", "worker_capture_failed")])
    server.send_batch("retire", [retired])
    exchange = server.ask(Request("GET", SUMMARY, server.credentials), 200)
    document = document_of(exchange)
    # Whoever else uses the server has rollouts there too, so there may be more.
    least = {"live": 2, "retired": 1, "with_failures": 1, "rows": 4}
    for name, number in least.items():
        counted = document.get(name) if isinstance(document, dict) else None
        if not isinstance(counted, int) or counted < number:
            raise ShortfallError(f"{name} to be at least {number}: the check has made as many", exchange)


@check("retire-idle.offered")
def retire_idle_offered(server: Examination) -> None:
    request = _idle_request(server, [server.new_id("idle")], LONG_IDLE_S)
    _note_if_offered(server, "retire-idle", request, 403, 409)


@check("retire-idle.fences-no-absent")
def retire_idle_fences_no_absent(server: Examination) -> None:
    rollout_id = server.new_id("idle")
    exchange = server.ask(_idle_request(server, [rollout_id], 0), 200)
    _expect_in(exchange, "absent", rollout_id, "it never recorded a call")
    server.manifest(rollout_id, because="the id has no rows, and retire-idle fences no such id")


@check("retire-idle.active")
def retire_idle_active(server: Examination) -> None:
    rollout_id = server.new_id("idle")
    server.record(rollout_id, sample_calls(rollout_id, 2))
    exchange = server.ask(_idle_request(server, [rollout_id], LONG_IDLE_S), 200)
    _expect_in(exchange, "active", rollout_id, "it has had a row within the last day")
    server.manifest(rollout_id, because="the rollout is active, and so not retired")


@check("retire-idle.idle")
def retire_idle_idle(server: Examination) -> None:
    rollout_id = server.new_id("idle")
    server.record(rollout_id, sample_calls(rollout_id, 2))
    exchange = server.ask(_idle_request(server, [rollout_id], 0), 200)
    _expect_in(exchange, "removed", rollout_id, "its last row is at least 0 s old")
    server.manifest(rollout_id, 410, because="the rollout was idle, and is retired")


@check("retire-idle.fenced")
def retire_idle_fenced(server: Examination) -> None:
    rollout_id = server.new_id("idle")
    server.send_batch("retire", [rollout_id])
    exchange = server.ask(_idle_request(server, [rollout_id], 0), 200)
    _expect_in(exchange, "absent", rollout_id, "it was fenced before")


@check("retire-idle.partition")
def retire_idle_partition(server: Examination) -> None:
    one, two, three = (server.new_id("idle") for _ in range(3))
    exchange = server.ask(_idle_request(server, [two, one, two, three, one], LONG_IDLE_S), 200)
    document = document_of(exchange)
    lists = [document.get(kind) for kind in ("removed", "active", "absent")] if isinstance(document, dict) else []
    named = [rollout_id for ids in lists if isinstance(ids, list) for rollout_id in ids]
    if named != [two, one, three]:
        raise ShortfallError(f"absent: {two}, {one}, {three}, each once", exchange)


@check("retire-idle.schema")
def retire_idle_schema(server: Examination) -> None:
    rollout_id = server.new_id("idle")
    faults: dict[str, dict[str, object]] = {
        "idle_for_s is required": {},
        "idle_for_s is a number": {"idle_for_s": "1"},
        "idle_for_s is not negative": {"idle_for_s": -1},
        "the object has no such field": {"idle_for_s": 1, "prefix": "a"},
    }
    for because, fields in faults.items():
        body = json.dumps({"rollout_ids": [rollout_id], **fields}).encode()
        server.ask(Request("POST", batch_path("retire-idle"), server.credentials, JSON, body), 422, because=because)


@check("retire-idle.bad-batch")
def retire_idle_bad_batch(server: Examination) -> None:
    rollout_id = server.new_id("idle")
    server.record(rollout_id, sample_calls(rollout_id, 2))
    server.ask(_idle_request(server, [rollout_id, "a b"], 0), 400, because="an id is invalid")
    server.manifest(rollout_id, because="the batch had an invalid id, so nothing of it was done")
