"""Checks of rollout ids and of the bodies that carry them."""

import json
from collections.abc import Iterable, Iterator
from typing import Final

from rollout_control_spec import BODY_LIMIT, MAX_LEDGER_BATCH, MAX_ROLLOUT_ID_LENGTH

from rollout_control_check.examination import (
    BATCH_OPERATIONS,
    JSON,
    Examination,
    batch_path,
    check,
    manifest_path,
)
from rollout_control_check.wire import Request

ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
INVALID_IN_PATH: Final = ("a%20b", "a%3Ab", "%C3%A9", "a%00", "~a", "a+b", "a@b", "%F0%9F%8E%B2", "a%25b")
INVALID_IN_BATCH: Final = ("", "a b", "a/b", "a:b", "é", "a\x00", "~a", "a+b", "🎲", "\u0430", "a\u2028")


def _each(server: Examination, bodies: Iterable[bytes], status: int, because: str) -> None:
    for operation in _present(server):
        for body in bodies:
            server.post(operation, body, status, because=because)


def _present(server: Examination) -> Iterator[str]:
    return (operation for operation in BATCH_OPERATIONS if operation in server.present)


def _batch(*rollout_ids: object) -> bytes:
    return json.dumps({"rollout_ids": rollout_ids}).encode()


def _longest_id(server: Examination) -> str:
    rollout_id = server.new_id().ljust(MAX_ROLLOUT_ID_LENGTH, "x")
    server.touched[rollout_id] = None
    return rollout_id


# Rollout ids


@check("ids.valid")
def _(server: Examination) -> None:
    for rollout_id in (f"{server.prefix}{ALPHABET}", _longest_id(server), f"{server.prefix}...", f"{server.prefix}-_."):
        server.manifest(rollout_id, because="the rollout id is valid")
    # Whoever uses this server may use these, so they are only read, and may be retired.
    for rollout_id in ("a", "Z", "0", "-", "_", "...", ".a", "retire", "delete", "manifest", "rollouts"):
        server.manifest(rollout_id, 200, 410, because="the rollout id is valid")


@check("ids.valid-in-batch")
def _(server: Examination) -> None:
    rollout_id = f"{server.prefix}{ALPHABET}"
    server.touched[rollout_id] = None
    server.send_batch(
        "delete", [rollout_id, _longest_id(server), server.new_id("..")], because="the rollout ids are valid"
    )


@check("ids.invalid-in-path")
def _(server: Examination) -> None:
    for written in INVALID_IN_PATH:
        server.ask(Request("GET", manifest_path(written), server.credentials), 400, because="the rollout id is invalid")


@check("ids.invalid-in-batch")
def _(server: Examination) -> None:
    _each(server, [_batch(rollout_id) for rollout_id in INVALID_IN_BATCH], 400, "the rollout id is invalid")


@check("ids.dot-segments")
def _(server: Examination) -> None:
    for written in ("%2E", "%2E%2E"):
        request = Request("GET", manifest_path(written), server.credentials)
        server.ask(request, 400, 404, because="dot segments are no rollout ids")
    _each(server, [_batch("."), _batch("..")], 400, "dot segments are no rollout ids")


@check("ids.trailing-newline")
def _(server: Examination) -> None:
    server.ask(Request("GET", manifest_path("a%0A"), server.credentials), 400, because="a line feed belongs to no id")
    _each(server, [_batch(f"{server.new_id()}\n")], 400, "a line feed belongs to no id")


@check("ids.too-long")
def _(server: Examination) -> None:
    rollout_id = f"{_longest_id(server)}x"
    server.manifest(rollout_id, 400, because="a rollout id has at most 255 characters")
    _each(server, [_batch(rollout_id)], 400, "a rollout id has at most 255 characters")


@check("ids.anywhere-in-batch")
def _(server: Examination) -> None:
    valid = [server.new_id("valid") for _ in range(4)]
    for place in (0, 2, 4):
        batch = [*valid[:place], "a b", *valid[place:]]
        _each(server, [_batch(*batch)], 400, f"the id at index {place} is invalid")


# Media type and size


@check("bodies.media-type")
def _(server: Examination) -> None:
    body = _batch(server.new_id())
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", "application/xml", None):
        headers = () if media_type is None else (("Content-Type", media_type),)
        for operation in _present(server):
            server.post(operation, body, 415, headers=headers, because="the body is not sent as application/json")


@check("bodies.media-type-parameter")
def _(server: Examination) -> None:
    body = _batch(server.new_id())
    for media_type in ("application/json; charset=utf-8", "application/json;charset=UTF-8"):
        server.post("delete", body, 200, headers=(("Content-Type", media_type),), because="this is application/json")


@check("bodies.content-coding")
def _(server: Examination) -> None:
    body = _batch(server.new_id())
    for coding in ("gzip", "deflate", "br"):
        headers = (*JSON, ("Content-Encoding", coding))
        for operation in _present(server):
            server.post(operation, body, 415, headers=headers, because="the body has a content coding")


@check("bodies.media-type-first")
def _(server: Examination) -> None:
    for operation in _present(server):
        request = Request(
            "POST", batch_path(operation), server.credentials, (("Content-Type", "text/plain"),), withheld=100
        )
        server.ask(request, 415, because="the media type is decided before the body is read")


@check("bodies.too-large")
def _(server: Examination) -> None:
    body = _batch(server.new_id()).ljust(BODY_LIMIT + 1)
    _each(server, [body], 413, "the body has one byte more than the limit")
    for operation in _present(server):
        server.post(
            operation,
            body,
            413,
            headers=(*JSON, ("Transfer-Encoding", "chunked")),
            because="the body, sent in chunks, has one byte more than the limit",
        )


@check("bodies.largest")
def _(server: Examination) -> None:
    server.post("delete", _batch(server.new_id()).ljust(BODY_LIMIT), 200, because="the body has as much as the limit")


@check("bodies.of-a-get")
def _(server: Examination) -> None:
    request = Request(
        "GET", manifest_path(server.new_id()), server.credentials, (("Content-Type", "text/plain"),), b"x"
    )
    server.ask(request, 200, because="the body of a GET is not read")


# JSON and its schema


@check("bodies.not-json")
def _(server: Examination) -> None:
    bodies = [b"", b"not json", b"{", b'{"rollout_ids":["x"]', b'{"rollout_ids":["x"]} x', b"{'rollout_ids': ['x']}"]
    _each(server, [*bodies, b'{"rollout_ids":["\xff"]}', b"\xff"], 400, "the body is not JSON in UTF-8")


@check("bodies.schema")
def _(server: Examination) -> None:
    rollout_id = json.dumps(server.new_id())
    bodies = ["{}", "[]", "null", "1", '"x"', f"[{rollout_id}]", f'{{"ids":[{rollout_id}]}}']
    values = ["[]", "null", "{}", "1", rollout_id, "[null]", "[1]", "[true]", "[[]]", f"[{rollout_id}, 1]"]
    bodies += [f'{{"rollout_ids":{value}}}' for value in values]
    _each(server, [body.encode() for body in bodies], 422, "the body is JSON and no LedgerBatchRequest")


@check("bodies.unknown-field")
def _(server: Examination) -> None:
    body = json.dumps({"rollout_ids": [server.new_id()], "dry_run": True}).encode()
    _each(server, [body], 422, "the body has a field that LedgerBatchRequest doesn't have")


def _many(server: Examination, count: int) -> list[str]:
    first = server.new_id("many")
    rollout_ids = [f"{first}-{index}" for index in range(count)]
    server.touched.update(dict.fromkeys(rollout_ids))
    return rollout_ids


@check("bodies.too-many-ids")
def _(server: Examination) -> None:
    _each(server, [_batch(*_many(server, MAX_LEDGER_BATCH + 1))], 422, f"more than {MAX_LEDGER_BATCH} ids")


@check("bodies.most-ids")
def _(server: Examination) -> None:
    server.send_batch("delete", _many(server, MAX_LEDGER_BATCH), because=f"a batch may have {MAX_LEDGER_BATCH} ids")


# The order of decisions


@check("order.size-before-json")
def _(server: Examination) -> None:
    _each(server, [b"not json".ljust(BODY_LIMIT + 1)], 413, "the size is decided before whether the body is JSON")


@check("order.json-before-schema")
def _(server: Examination) -> None:
    bodies = [b'{"rollout_ids":[1', b'{"rollout_ids":[],"x":', b'[] "']
    _each(server, bodies, 400, "whether the body is JSON is decided before its schema")


@check("order.schema-before-ids")
def _(server: Examination) -> None:
    bodies = [_batch("a b", 5), json.dumps({"rollout_ids": ["a b"], "x": 1}).encode()]
    bodies.append(_batch(*["a b"] * (MAX_LEDGER_BATCH + 1)))
    _each(server, bodies, 422, "the schema is decided before the rollout ids")
