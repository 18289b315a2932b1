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
    rollout_id = server.new_id("listed")
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


@check("summary.offered")
def summary_offered(server: Examination) -> None:
    _note_if_offered(server, "summary", Request("GET", SUMMARY, server.credentials))


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
