"""Servers that are one line away from ours, and answer a request wrongly, whatever is in the ledger."""

from typing import Any, Final

import msgspec
import rollout_control_spec
from one_line_away import (
    batch_struct,
    batches,
    broken,
    has_status,
    ids_that_match,
    let_in,
    manifest,
    patched,
    problem,
    reading_first,
    records,
    removal,
    replies,
    requests,
    sent,
    status_is,
    token_check,
    with_header,
)
from rollout_control_server import operations, request_body
from rollout_control_server.auth import BearerToken
from served import TOKEN

SENT: Final = f"Bearer {TOKEN}".encode()
AUTHENTICATION: Final = ("auth.missing-token", "auth.wrong-token", "auth.other-scheme", "auth.not-ascii")
ROWS_READ_BACK: Final = ("manifest.records", "manifest.text", "manifest.integers")


DECODE: Final = request_body._decode
UNIQUE_IDS: Final = rollout_control_spec.unique_rollout_ids


def batch_of_anything(body: bytes, decoder: Any) -> Any:
    request_body._check_json(body)
    document = msgspec.json.decode(body)
    if isinstance(document, dict) and isinstance(document.get("rollout_ids"), list):
        document["rollout_ids"] = [str(rollout_id) for rollout_id in document["rollout_ids"]]
    return DECODE(msgspec.json.encode(document), decoder)


def batch_with_ids_first(body: bytes, decoder: Any) -> Any:
    request_body._check_json(body)
    document = msgspec.json.decode(body)
    if isinstance(document, dict) and isinstance(document.get("rollout_ids"), list):
        texts = [rollout_id for rollout_id in document["rollout_ids"] if isinstance(rollout_id, str)]
        operations._validate(rollout_control_spec.unique_rollout_ids, texts)
    return DECODE(body, decoder)


# Authentication

broken("auth.accepted", "the token is refused", token_check(lambda _: False))
broken("auth.missing-token", "everybody is let in", patched(BearerToken, "check", lambda *_: None), *AUTHENTICATION)
broken(
    "auth.missing-token",
    "one operation forgets to ask for the token",
    requests(lambda scope: scope["path"].endswith("/delete"), let_in),
    *AUTHENTICATION,
)
broken("auth.wrong-token", "the token's case is ignored", token_check(lambda sent: sent.lower() == SENT.lower()))
broken(
    "auth.wrong-token",
    "the beginning of the token is enough",
    token_check(lambda sent: sent[:20] == SENT[:20]),
    "auth.not-ascii",
)
broken("auth.wrong-token", "an empty token is a token", token_check(lambda sent: sent in {SENT, b"Bearer"}))
broken("auth.other-scheme", "any scheme will do", token_check(lambda sent: sent.endswith(SENT[6:]) and len(sent) > 20))
broken("auth.other-scheme", "the token alone will do", token_check(lambda sent: sent in {SENT, SENT[7:]}))
broken(
    "auth.not-ascii",
    "a header that is not ASCII is an internal error",
    token_check(lambda sent: sent.decode("ascii") == SENT.decode()),
    "errors.none-internal",
)
broken(
    "auth.missing-token",
    "forbidden instead of unauthorized",
    has_status(401, 403),
    *(*AUTHENTICATION, "errors.documented"),
)
broken(
    "auth.challenge",
    "no challenge",
    replies(status_is(401), lambda reply: reply.headers.pop("www-authenticate")),
)
broken(
    "auth.before-path",
    "everybody is told which paths there are not",
    requests(lambda scope: not scope["path"].endswith(("t", "retire", "delete", "manifests")), let_in),
)
broken(
    "auth.before-all-else",
    "everybody is told which methods there are not",
    requests(lambda scope: scope["method"] == "PUT", let_in),
)
broken(
    "auth.body-unread",
    "the body is read before the token",
    reading_first(lambda scope: not sent(scope, b"authorization")),
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
    requests(bool, lambda scope: scope.update(raw_path=scope["raw_path"].removesuffix(b"/further"))),
)
broken(
    "paths.encoded-slash",
    "an encoded slash is part of an id",
    requests(bool, lambda scope: scope.update(raw_path=scope["raw_path"].replace(b"%2F", b"%20"))),
)
broken("methods.not-allowed", "a wrong method is not found", has_status(405, 404), "order.path-before-body")
broken(
    "methods.not-allowed",
    "PATCH does what POST does",
    requests(lambda scope: scope["method"] == "PATCH", lambda scope: scope.update(method="POST")),
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
    "order.path-before-body",
    "the media type is decided before the method",
    replies(
        lambda reply: reply.status == 405 and reply.request_headers.get(b"content-type") == b"text/plain",
        lambda reply: reply.become(415),
    ),
)

# Rollout ids

broken(
    "ids.valid",
    "capital letters are invalid",
    ids_that_match("[a-z0-9._-]{1,255}"),
    "ids.valid-in-batch",
    "retire.nothing-else",
)
broken("ids.valid", "an id has at most 254 characters", ids_that_match("[A-Za-z0-9._-]{1,254}"), "ids.valid-in-batch")
broken(
    "ids.valid",
    "a rollout cannot have an operation's name",
    replies(lambda reply: reply.path.endswith("/retire/manifest"), lambda reply: reply.become_problem(404)),
)
broken("ids.too-long", "an id may have 256 characters", ids_that_match("[A-Za-z0-9._-]{1,256}"))
broken("ids.trailing-newline", "a line feed may follow an id", ids_that_match("[A-Za-z0-9._-]{1,255}\n?"))
broken(
    "ids.invalid-in-path",
    "letters of all alphabets are valid",
    ids_that_match(r"[\w.-]{1,255}"),
    "ids.invalid-in-batch",
)
broken("ids.invalid-in-batch", "an id may be empty", ids_that_match("[A-Za-z0-9._-]{0,255}"))
broken("ids.dot-segments", "dot segments are ids", patched(rollout_control_spec, "_DOT_SEGMENTS", frozenset()))
broken(
    "ids.anywhere-in-batch",
    "only the first id of a batch is checked",
    patched(operations, "unique_rollout_ids", lambda ids: [*UNIQUE_IDS(ids[:1]), *dict.fromkeys(ids[1:])]),
    "errors.none-internal",
)
broken(
    "ids.invalid-in-batch",
    "an invalid id in a batch breaks the schema",
    replies(
        lambda reply: reply.method == "POST" and b"invalid-rollout-id" in reply.body, lambda reply: reply.become(422)
    ),
    *("ids.dot-segments", "ids.trailing-newline", "ids.too-long", "ids.anywhere-in-batch"),
)
broken(
    "ids.invalid-in-path",
    "an invalid id in a path is not found",
    replies(lambda reply: reply.method == "GET" and reply.status == 400, lambda reply: reply.become(404)),
    *("ids.trailing-newline", "ids.too-long", "errors.title"),
)

# Bodies

broken(
    "bodies.media-type",
    "any media type will do",
    requests(
        lambda scope: scope["method"] == "POST", lambda scope: with_header(scope, b"content-type", b"application/json")
    ),
    *("bodies.media-type-first", "http.answers"),
)
broken(
    "bodies.media-type",
    "what begins like JSON is JSON",
    requests(
        lambda scope: sent(scope, b"content-type").startswith(b"application/json"),
        lambda scope: with_header(scope, b"content-type", b"application/json"),
    ),
)
broken(
    "bodies.media-type",
    "a body without a media type is taken for JSON",
    requests(
        lambda scope: not sent(scope, b"content-type"),
        lambda scope: with_header(scope, b"content-type", b"application/json"),
    ),
)
broken(
    "bodies.media-type-parameter",
    "a charset is refused",
    requests(
        lambda scope: b";" in sent(scope, b"content-type"),
        lambda scope: with_header(scope, b"content-type", b"text/plain"),
    ),
)
broken(
    "bodies.content-coding",
    "a content coding is overlooked",
    requests(bool, lambda scope: with_header(scope, b"content-encoding", b"identity")),
)
broken(
    "bodies.media-type-first",
    "the body is read before its media type",
    reading_first(lambda scope: sent(scope, b"content-type") == b"text/plain" and bool(sent(scope, b"authorization"))),
    "http.answers",
)
broken(
    "bodies.not-json",
    "a body that is not JSON breaks the schema",
    replies(lambda reply: b"malformed-body" in reply.body, lambda reply: reply.become(422)),
    "order.json-before-schema",
)
broken(
    "bodies.not-json",
    "what follows the JSON is ignored",
    patched(request_body, "_decode", lambda body, decoder: DECODE(body.removesuffix(b" x"), decoder)),
)
broken(
    "bodies.schema",
    "400 where 422 belongs",
    has_status(422, 400),
    *("bodies.unknown-field", "bodies.too-many-ids", "order.schema-before-ids"),
)
broken("bodies.schema", "an empty batch is done at once", batches(batch_struct(least=0)))
broken(
    "bodies.schema",
    "numbers are taken for text",
    patched(request_body, "_decode", batch_of_anything),
    "order.schema-before-ids",
)
broken(
    "bodies.unknown-field", "unknown fields are ignored", batches(batch_struct(closed=False)), "order.schema-before-ids"
)
broken("bodies.too-many-ids", "a batch has no limit", batches(batch_struct(most=None)), "order.schema-before-ids")
broken("bodies.most-ids", "a batch has at most 4095 ids", batches(batch_struct(most=4095)))
broken("bodies.largest", "a body has at most 1 MiB", patched(request_body, "BODY_LIMIT", 2**20))
broken("bodies.too-large", "a body has no limit", patched(request_body, "BODY_LIMIT", 2**30), "order.size-before-json")
broken(
    "bodies.too-large",
    "a body of one byte too many will do",
    patched(request_body, "BODY_LIMIT", 2**23 + 1),
    "order.size-before-json",
)
broken(
    "bodies.of-a-get",
    "a GET with a body is refused",
    replies(
        lambda reply: reply.is_manifest and b"content-length" in reply.request_headers,
        lambda reply: reply.become_problem(400),
    ),
)
broken("order.json-before-schema", "the first fault decides", patched(request_body, "_check_json", lambda _: None))
broken("order.schema-before-ids", "ids come before the schema", patched(request_body, "_decode", batch_with_ids_first))
broken(
    "order.size-before-json",
    "what is too large and not JSON is not JSON",
    replies(
        lambda reply: (
            reply.status == 413 and reply.path.endswith("/retire") and b"transfer-encoding" not in reply.request_headers
        ),
        lambda reply: reply.become(400),
    ),
    "bodies.too-large",
)

# Errors

broken(
    "errors.media-type",
    "errors are plain JSON",
    replies(lambda reply: reply.is_error, lambda reply: reply.headers.update({"content-type": "application/json"})),
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
broken(
    "errors.retry-after",
    "a busy ledger does not say when to come back",
    has_status(413, 503),
    *("bodies.too-large", "order.size-before-json"),
)
broken(
    "errors.none-internal",
    "an invalid id breaks the ledger",
    replies(lambda reply: b"of 256 characters" in reply.body, lambda reply: reply.become(500)),
    "ids.too-long",
)
broken(
    "errors.documented",
    "a retired rollout is a teapot",
    has_status(410, 418),
    *("retire.gone", "retire.whole-batch", "retire.late-write", "delete.bad-batch", "manifests.retired"),
)

# The bodies of success

broken(
    "success.media-type",
    "JSON is sent as text",
    replies(status_is(200), lambda reply: reply.headers.update({"content-type": "text/plain"})),
)
broken("success.exact-fields", "a manifest has one field more", manifest(lambda document: document.update(etag="x")))
broken("success.exact-fields", "a removal has a version", removal(lambda document: document.update(schema_version=2)))
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
broken(
    "records.sums",
    "cum_len leaves out this call",
    records(lambda record: record.update(cum_len=record["prev_len"])),
    *ROWS_READ_BACK,
)
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
    "names are sorted",
    removal(lambda document: document["absent"].sort(key=str.swapcase)),
    "removal.duplicates",
)
