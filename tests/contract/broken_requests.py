"""Servers that answer a request wrongly, whatever is in the ledger."""

import json
import re
from typing import Any, Final

from broken_server_layers import (
    Call,
    Reply,
    authorizes,
    batch_bodies,
    batches,
    broken,
    has_status,
    ids_that_match,
    is_valid,
    manifest,
    problem,
    reading_first,
    records,
    removal,
    replies,
    requests,
    status_is,
)
from rollout_control_server.records import CallRecord
from rollout_control_spec import BODY_LIMIT, MAX_LEDGER_BATCH
from served import TOKEN

SENT: Final = f"Bearer {TOKEN}".encode()
AUTHENTICATION: Final = ("auth.missing-token", "auth.wrong-token", "auth.other-scheme", "auth.not-ascii")
ROWS_READ_BACK: Final = ("manifest.records", "manifest.text", "manifest.integers")
KNOWN_ENDINGS: Final = ("t", "retire", "delete", "manifests", "rollouts", "summary", "retire-idle")
INVALID_BATCH: Final = b'{"rollout_ids":["a b"]}'


def is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def is_authorized(call: Call) -> bool:
    return call.header(b"authorization") == SENT


def without_unknown_fields(call: Call) -> None:
    if isinstance(call.document, dict) and set(call.document) > {"rollout_ids"}:
        call.set_body(json.dumps({"rollout_ids": call.document["rollout_ids"]}).encode())


def with_the_ids_decided_first(call: Call) -> None:
    if any(isinstance(name, str) and not is_valid(name) for name in call.rollout_ids):
        call.set_body(INVALID_BATCH)


def with_the_first_id_checked(call: Call) -> None:
    others = [name for name in call.rollout_ids[1:] if is_valid(name) or not isinstance(name, str)]
    call.set_rollout_ids([*call.rollout_ids[:1], *others])


def with_the_first_fault_deciding(body: bytes) -> bytes:
    """Returns a body that breaks the schema for one that breaks it before it turns out to be no JSON."""
    begins_with_a_fault = re.match(rb'\{"rollout_ids":\[(1|\])|\[\]', body)
    return b"{}" if begins_with_a_fault and not is_json(body) else body


def answered_as_done(_: Call) -> Reply:
    return Reply(200, {"content-type": "application/json"}, b'{"removed":[],"absent":[]}')


# Authentication

broken("auth.accepted", "the token is refused", authorizes(lambda _: False))
broken("auth.missing-token", "everybody is let in", requests(lambda _: True, Call.let_in), *AUTHENTICATION)
broken(
    "auth.missing-token",
    "one operation forgets to ask for the token",
    requests(lambda call: call.path.endswith("/delete"), Call.let_in),
    *AUTHENTICATION,
)
broken("auth.wrong-token", "the token's case is ignored", authorizes(lambda sent: sent.lower() == SENT.lower()))
broken(
    "auth.wrong-token",
    "the beginning of the token is enough",
    authorizes(lambda sent: sent[:20] == SENT[:20]),
    "auth.not-ascii",
)
broken("auth.wrong-token", "an empty token is a token", authorizes(lambda sent: sent in {SENT, b"Bearer"}))
broken("auth.other-scheme", "any scheme will do", authorizes(lambda sent: sent.endswith(SENT[6:]) and len(sent) > 20))
broken("auth.other-scheme", "the token alone will do", authorizes(lambda sent: sent in {SENT, SENT[7:]}))
broken(
    "auth.not-ascii",
    "a header that is not ASCII is an internal error",
    replies(
        lambda call: not call.header(b"authorization").isascii(), lambda reply: reply.become_problem(500, "internal")
    ),
    "errors.none-internal",
)
broken("auth.missing-token", "forbidden instead of unauthorized", has_status(401, 403), *AUTHENTICATION)
broken(
    "auth.challenge",
    "no challenge",
    replies(status_is(401), lambda reply: reply.headers.pop("www-authenticate")),
)
broken(
    "auth.before-path",
    "everybody is told which paths there are not",
    requests(
        lambda call: not call.path.endswith(KNOWN_ENDINGS),
        Call.let_in,
    ),
)
broken(
    "auth.before-all-else",
    "everybody is told which methods there are not",
    requests(lambda call: call.method == "PUT", Call.let_in),
)
broken(
    "auth.body-unread",
    "the body is read before the token",
    reading_first(lambda call: not call.header(b"authorization")),
    "http.answers",
)

# Paths and methods

broken(
    "paths.unknown",
    "an unknown path is a bad request",
    has_status(404, 400),
    *("paths.encoded-slash", "order.path-before-body"),
)
broken(
    "paths.unknown",
    "what follows a path is ignored",
    requests(lambda _: True, lambda call: call.scope.update(raw_path=call.scope["raw_path"].removesuffix(b"/further"))),
)
broken(
    "paths.encoded-slash",
    "an encoded slash is part of an id",
    requests(lambda _: True, lambda call: call.scope.update(raw_path=call.scope["raw_path"].replace(b"%2F", b"%20"))),
)
broken(
    "paths.query-ignored",
    "a manifest takes no query",
    replies(
        lambda call: call.is_manifest and call.scope["query_string"],
        lambda reply: reply.become_problem(422, "invalid-query"),
    ),
)
broken("methods.not-allowed", "a wrong method is not found", has_status(405, 404), "order.path-before-body")
broken(
    "methods.not-allowed",
    "PATCH does what POST does",
    requests(lambda call: call.method == "PATCH", lambda call: call.scope.update(method="POST")),
)
broken(
    "methods.allow",
    "the right method is not told",
    replies(status_is(405), lambda reply: reply.headers.pop("allow")),
)
broken(
    "methods.allow",
    "methods are allowed that are not",
    replies(status_is(405), lambda reply: reply.headers.update(allow="GET, POST, PUT")),
)
broken(
    "methods.head",
    "HEAD is not found",
    replies(lambda call: call.method == "HEAD", lambda reply: reply.become_problem(404)),
)
broken(
    "order.path-before-body",
    "the media type is decided before the method",
    replies(
        lambda call: call.reply.status == 405 and call.header(b"content-type") == b"text/plain",
        lambda reply: reply.become(415),
    ),
)

# Rollout ids

broken(
    "ids.valid",
    "capital letters are invalid",
    ids_that_match("[a-z0-9._-]{1,255}"),
    *("ids.valid-in-batch", "retire.nothing-else", "rollouts.pages"),
)
broken("ids.valid", "an id has at most 254 characters", ids_that_match("[A-Za-z0-9._-]{1,254}"), "ids.valid-in-batch")
broken(
    "ids.valid",
    "a rollout cannot have an operation's name",
    replies(lambda call: call.path.endswith("/retire/manifest"), lambda reply: reply.become_problem(404)),
)
broken(
    "ids.percent-decoded",
    "an id is compared as it is written",
    replies(
        lambda call: call.is_manifest and b"%" in call.scope["raw_path"],
        lambda reply: reply.become_problem(400, "invalid-rollout-id"),
    ),
)
broken(
    "ids.percent-decoded",
    "an id is decoded twice",
    requests(lambda _: True, lambda call: call.scope.update(raw_path=call.scope["raw_path"].replace(b"%2561", b"%61"))),
)
broken("ids.too-long", "an id may have 256 characters", ids_that_match("[A-Za-z0-9._-]{1,256}"))
broken("ids.trailing-newline", "a line feed may follow an id", ids_that_match("[A-Za-z0-9._-]{1,255}\n?"))
broken(
    "ids.invalid-in-path",
    "letters of all alphabets are valid",
    ids_that_match(r"[\w.-]{1,255}", in_batches=False),
)
broken("ids.invalid-in-batch", "an id may be empty", ids_that_match("[A-Za-z0-9._-]{0,255}"))
broken("ids.dot-segments", "dot segments are ids", ids_that_match("[A-Za-z0-9._-]{1,255}", dot_segments=True))
broken(
    "ids.anywhere-in-batch",
    "only the first id of a batch is checked",
    batches(with_the_first_id_checked),
    *("order.schema-before-ids", "removal.partition"),
)
broken(
    "ids.invalid-in-batch",
    "an invalid id in a batch breaks the schema",
    replies(
        lambda call: call.method == "POST" and b"invalid-rollout-id" in call.reply.body,
        lambda reply: reply.become(422),
    ),
    *("ids.dot-segments", "ids.trailing-newline", "ids.too-long", "ids.anywhere-in-batch", "retire-idle.bad-batch"),
)
broken(
    "ids.invalid-in-path",
    "an invalid id in a path is not found",
    replies(lambda call: call.path.endswith("/manifest") and call.reply.status == 400, lambda reply: reply.become(404)),
    *("ids.percent-decoded", "ids.trailing-newline", "ids.too-long", "errors.title"),
)
broken(
    "ids.too-long",
    "an id that is too long breaks the ledger",
    replies(lambda call: b"of 256 characters" in call.reply.body, lambda reply: reply.become(500)),
    "errors.none-internal",
)

# Bodies

broken(
    "bodies.media-type",
    "any media type will do",
    requests(lambda call: call.method == "POST", lambda call: call.set_header(b"content-type", b"application/json")),
    *("bodies.media-type-first", "http.answers"),
)
broken(
    "bodies.media-type",
    "what begins like JSON is JSON",
    requests(
        lambda call: call.header(b"content-type").startswith(b"application/json"),
        lambda call: call.set_header(b"content-type", b"application/json"),
    ),
)
broken(
    "bodies.media-type",
    "a body without a media type is taken for JSON",
    requests(
        lambda call: call.method == "POST" and not call.header(b"content-type"),
        lambda call: call.set_header(b"content-type", b"application/json"),
    ),
)
broken(
    "bodies.media-type-parameter",
    "a charset is refused",
    requests(
        lambda call: b";" in call.header(b"content-type"),
        lambda call: call.set_header(b"content-type", b"text/plain"),
    ),
)
broken(
    "bodies.content-coding",
    "a content coding is overlooked",
    requests(lambda _: True, lambda call: call.set_header(b"content-encoding", b"identity")),
)
broken(
    "bodies.media-type-first",
    "the body is read before its media type",
    reading_first(lambda call: call.header(b"content-type") == b"text/plain" and is_authorized(call)),
    "http.answers",
)
broken(
    "bodies.not-json",
    "a body that is not JSON breaks the schema",
    replies(lambda call: b"malformed-body" in call.reply.body, lambda reply: reply.become(422)),
    "order.json-before-schema",
)
broken("bodies.not-json", "what follows the JSON is ignored", batch_bodies(lambda body: body.removesuffix(b" x")))
broken(
    "bodies.schema",
    "400 where 422 belongs",
    replies(lambda call: call.reply.status == 422 and call.method == "POST", lambda reply: reply.become(400)),
    *("bodies.unknown-field", "bodies.too-many-ids", "order.schema-before-ids", "retire-idle.schema"),
)
broken(
    "bodies.schema",
    "an empty batch is done at once",
    requests(lambda call: call.document == {"rollout_ids": []}, answered_as_done),
)
broken(
    "bodies.schema",
    "numbers are taken for text",
    batches(lambda call: call.set_rollout_ids([str(name) for name in call.rollout_ids])),
    "order.schema-before-ids",
)
broken(
    "bodies.unknown-field",
    "unknown fields are ignored",
    batches(without_unknown_fields),
    "order.schema-before-ids",
)
broken(
    "bodies.too-many-ids",
    "a batch has no limit",
    batches(lambda call: call.set_rollout_ids(call.rollout_ids[:MAX_LEDGER_BATCH])),
    "order.schema-before-ids",
)
broken(
    "bodies.most-ids",
    "a batch has at most 4095 ids",
    requests(
        lambda call: len(call.rollout_ids) == MAX_LEDGER_BATCH,
        lambda call: call.set_rollout_ids([*call.rollout_ids, "one-more"]),
    ),
)
broken(
    "bodies.largest",
    "a body has at most 1 MiB",
    batch_bodies(lambda body: body.ljust(BODY_LIMIT + 1) if len(body) > 2**20 else body),
)
broken(
    "bodies.too-large",
    "a body has no limit",
    batch_bodies(lambda body: body.strip() if len(body) > BODY_LIMIT else body),
    "order.size-before-json",
)
broken(
    "bodies.too-large",
    "a body of one byte too many will do",
    batch_bodies(lambda body: body[:-1] if len(body) == BODY_LIMIT + 1 else body),
    "order.size-before-json",
)
broken(
    "bodies.too-large",
    "a body that is too large makes the ledger busy",
    has_status(413, 503),
    *("order.size-before-json", "errors.retry-after"),
)
broken(
    "bodies.chunked",
    "a body must have a length",
    replies(
        lambda call: call.header(b"transfer-encoding") == b"chunked" and call.reply.status == 200,
        lambda reply: reply.become_problem(411),
    ),
    "errors.documented",
)
broken(
    "bodies.of-a-get",
    "a GET with a body is refused",
    replies(
        lambda call: call.is_manifest and call.header(b"content-length"),
        lambda reply: reply.become_problem(400),
    ),
)
broken("order.json-before-schema", "the first fault decides", batch_bodies(with_the_first_fault_deciding))
broken("order.schema-before-ids", "ids come before the schema", batches(with_the_ids_decided_first))
broken(
    "order.size-before-json",
    "what is too large and not JSON is not JSON",
    batch_bodies(lambda body: b"not json" if len(body) > BODY_LIMIT and not is_json(body) else body),
)

# Errors

broken(
    "errors.media-type",
    "errors are plain JSON",
    replies(lambda call: call.reply.is_error, lambda reply: reply.headers.update({"content-type": "application/json"})),
)
broken(
    "errors.members",
    "errors are of the older form",
    problem(lambda document: [document.pop(name) for name in ("type", "title", "status")]),
)
broken("errors.members", "a problem without detail", problem(lambda document: document.pop("detail")))
broken("errors.status-member", "a problem has another status", problem(lambda document: document.update(status=400)))
broken("errors.type", "problems have no kinds", problem(lambda document: document.update(type="about:blank")))
broken("errors.title", "the title is the detail", problem(lambda document: document.update(title=document["detail"])))

# The bodies of success


def without_further_fields(record: dict[str, Any]) -> None:
    for name in set(record) - set(CallRecord.__struct_fields__):
        del record[name]


broken(
    "success.media-type",
    "JSON is sent as text",
    replies(status_is(200), lambda reply: reply.headers.update({"content-type": "text/plain"})),
)
broken("success.exact-fields", "a manifest has one field more", manifest(lambda document: document.update(etag="x")))
broken("success.exact-fields", "a removal has a version", removal(lambda document: document.update(schema_version=2)))
broken(
    "success.exact-fields",
    "a failure has one field more",
    manifest(lambda document: [failure.update(at=None) for failure in document["failures"]]),
)
broken(
    "success.exact-fields",
    "nulls are left out",
    records(lambda record: [record.pop(name) for name in list(record) if record[name] is None]),
    "manifest.nulls",
)
broken(
    "success.exact-fields",
    "failures have no version",
    manifest(lambda document: [failure.pop("schema_version") for failure in document["failures"]]),
)
broken("manifest.schema", "a manifest of version 3", manifest(lambda document: document.update(schema_version=3)))
broken(
    "manifest.rollout-id",
    "ids are written in capitals",
    manifest(lambda document: document.update(rollout_id=document["rollout_id"].upper())),
)
broken(
    "records.schema",
    "digests are in capitals",
    records(lambda record: record.update(digest=record["digest"].upper())),
    *ROWS_READ_BACK,
)
broken(
    "records.schema",
    "a root has the mode of a child",
    records(lambda record: record.update(mode="token_in")),
    *ROWS_READ_BACK,
)
broken("records.schema", "an empty capture_key", records(lambda record: record.setdefault("capture_key", "")))
broken(
    "records.sums",
    "cum_len leaves out this call",
    records(lambda record: record.update(cum_len=record["prev_len"])),
    *ROWS_READ_BACK,
)
broken("records.further-fields", "further fields are dropped", records(without_further_fields))
broken("records.further-fields", "nulls are served", records(lambda record: record.update(later_null=None)))
broken(
    "failures.schema",
    "failures have no reason",
    manifest(lambda document: [failure.update(reason="") for failure in document["failures"]]),
    *("manifest.failures", "manifest.text"),
)
broken(
    "removal.schema",
    "names are objects",
    removal(lambda document: document.update(removed=[{"id": name} for name in document["removed"]])),
    *("removal.partition", "retire.removed", "delete.removed", "removal.failure-rows-count"),
)
broken(
    "removal.partition",
    "what was removed is absent too",
    removal(lambda document: document["absent"].extend(document["removed"])),
)
broken(
    "removal.order",
    "a long list is turned around",
    removal(lambda document: document["absent"].reverse() if len(document["absent"]) > 4 else None),
)
