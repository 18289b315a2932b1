"""Servers that are each one line away from ours, and what each of them breaks."""

import unicodedata
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import rollout_control_spec
from one_line_away import (
    Line,
    Reply,
    batch_struct,
    batches,
    ids_that_match,
    ledger,
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
    token_check,
    with_header,
)
from rollout_control_server import MemoryLedger, control_routes
from rollout_control_server.auth import BearerToken
from rollout_control_server.ledger import base as ledger_base
from rollout_control_server.records import RolloutRemoval
from served import TOKEN

SENT: Final = f"Bearer {TOKEN}".encode()
AUTHENTICATION: Final = ("auth.missing-token", "auth.wrong-token", "auth.other-scheme", "auth.not-ascii")
ROWS_READ_BACK: Final = ("manifest.records", "manifest.text", "manifest.integers")


@dataclass(frozen=True)
class BrokenServer:
    """One broken server.

    Attributes:
        breaks: The requirement that it breaks.
        name: What is wrong with it.
        line: The line that does it.
        follows: What else is broken because of that.
    """

    breaks: str
    name: str
    line: Line
    follows: frozenset[str] = frozenset()


BROKEN_SERVERS: Final[list[BrokenServer]] = []


def broken(breaks: str, name: str, line: Line, *follows: str) -> None:
    BROKEN_SERVERS.append(BrokenServer(breaks, name, line, frozenset(follows) - {breaks}))


def status_is(*statuses: int) -> Any:
    return lambda reply: reply.status in statuses


def has_status(old: int, new: int) -> Line:
    return replies(status_is(old), lambda reply: reply.become(new))


# What a line needs where an expression is not enough

RECORD: Final = MemoryLedger._record
RETIRE: Final = MemoryLedger._retire
DELETE: Final = MemoryLedger._delete
MANIFEST: Final = MemoryLedger._manifest
MANIFESTS: Final = MemoryLedger._manifests
REMOVE_ROWS: Final = MemoryLedger._remove_rows
BATCH_OF: Final = control_routes._batch_of
UNIQUE_IDS: Final = rollout_control_spec.unique_rollout_ids


def batch_of_anything(body: bytes) -> Any:
    control_routes._check_json(body)
    document = msgspec.json.decode(body)
    if isinstance(document, dict) and isinstance(document.get("rollout_ids"), list):
        document["rollout_ids"] = [str(rollout_id) for rollout_id in document["rollout_ids"]]
    return BATCH_OF(msgspec.json.encode(document))


def batch_with_ids_first(body: bytes) -> Any:
    control_routes._check_json(body)
    document = msgspec.json.decode(body)
    if isinstance(document, dict) and isinstance(document.get("rollout_ids"), list):
        texts = [rollout_id for rollout_id in document["rollout_ids"] if isinstance(rollout_id, str)]
        control_routes._valid(rollout_control_spec.unique_rollout_ids, texts)
    return BATCH_OF(body)


async def read_once(self: MemoryLedger, rollout_id: str) -> bytes:
    answer = await MANIFEST(self, rollout_id)
    self._rollouts.pop(rollout_id, None)
    return answer


async def read_many_once(self: MemoryLedger, rollout_ids: list[str], limit: int) -> Any:
    answer = await MANIFESTS(self, rollout_ids, limit)
    for rollout_id in rollout_ids:
        self._rollouts.pop(rollout_id, None)
    return answer


def empty_manifest(rollout_id: str) -> dict[str, Any]:
    return {"schema_version": 2, "rollout_id": rollout_id, "records": [], "failures": []}


async def record_nothing(self: MemoryLedger, _: object) -> bool:
    return True


async def record_after_all(self: MemoryLedger, commit: Any) -> bool:
    self._fences.pop(commit.rollout_id, None)
    return await RECORD(self, commit)


async def retire_those_with_rows(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    with_rows = [rollout_id for rollout_id in rollout_ids if rollout_id in self._rollouts]
    removal_of_rows = await RETIRE(self, with_rows)
    return RolloutRemoval(removal_of_rows.removed, [name for name in rollout_ids if name not in with_rows])


async def retire_the_first(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    found = await RETIRE(self, rollout_ids)
    for rollout_id in rollout_ids[3:]:
        del self._fences[rollout_id]
    return found


async def retire_once(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    fenced = [rollout_id for rollout_id in rollout_ids if rollout_id in self._fences]
    found = await RETIRE(self, rollout_ids)
    return RolloutRemoval([*fenced, *found.removed], [name for name in found.absent if name not in fenced])


async def retire_all_that_begin_so(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    found = await RETIRE(self, rollout_ids)
    await RETIRE(self, [f"{rollout_id}0" for rollout_id in rollout_ids if len(rollout_id) < 250])
    return found


async def delete_fences_only(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    return RolloutRemoval(
        [name for name in rollout_ids if name in self._rollouts and not self._fences.pop(name, None)],
        [name for name in rollout_ids if name not in self._rollouts and self._fences.pop(name, True)],
    )


async def delete_counting_fences(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    fenced = [name for name in rollout_ids if name in self._fences]
    found = await DELETE(self, rollout_ids)
    return RolloutRemoval([*fenced, *found.removed], [name for name in found.absent if name not in fenced])


async def delete_rows_only(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    return REMOVE_ROWS(self, rollout_ids)


async def delete_failures_later(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    kept = {name: self._rollouts[name] for name in rollout_ids if name in self._rollouts}
    found = await DELETE(self, rollout_ids)
    GRAVES.update(kept)
    return found


async def record_over_graves(self: MemoryLedger, commit: Any) -> bool:
    if commit.rollout_id in GRAVES:
        self._rollouts[commit.rollout_id] = GRAVES.pop(commit.rollout_id)
    return await RECORD(self, commit)


GRAVES: Final[dict[str, Any]] = {}


def remove_but_count_records_only(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    without = [name for name in rollout_ids if name in self._rollouts and not self._rollouts[name].commits]
    found = REMOVE_ROWS(self, rollout_ids)
    return RolloutRemoval(
        [name for name in found.removed if name not in without],
        [name for name in rollout_ids if name in without or name in found.absent],
    )


def valid_rollout_ids(rollout_ids: list[str]) -> list[str]:
    return [rollout_control_spec.validate_rollout_id(rollout_id) for rollout_id in rollout_ids]


def act_on_the_valid_ones(fence: bool) -> Line:
    """A server that does what it can of a batch before it finds the invalid id."""

    def line(server: Any) -> None:
        def unique(rollout_ids: list[str]) -> list[str]:
            try:
                return UNIQUE_IDS(rollout_ids)
            except ValueError:
                act = server.ledger._fences.setdefault if fence else server.ledger._fences.pop
                for rollout_id in rollout_ids:
                    act(rollout_id, 0.0)
                raise

        server.monkeypatch.setattr(control_routes, "unique_rollout_ids", unique)

    return line


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
    patched(control_routes, "unique_rollout_ids", lambda ids: [*UNIQUE_IDS(ids[:1]), *dict.fromkeys(ids[1:])]),
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
    patched(control_routes, "_batch_of", lambda body: BATCH_OF(body.removesuffix(b" x"))),
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
    patched(control_routes, "_batch_of", batch_of_anything),
    "order.schema-before-ids",
)
broken(
    "bodies.unknown-field", "unknown fields are ignored", batches(batch_struct(closed=False)), "order.schema-before-ids"
)
broken("bodies.too-many-ids", "a batch has no limit", batches(batch_struct(most=None)), "order.schema-before-ids")
broken("bodies.most-ids", "a batch has at most 4095 ids", batches(batch_struct(most=4095)))
broken("bodies.largest", "a body has at most 1 MiB", patched(control_routes, "BODY_LIMIT", 2**20))
broken(
    "bodies.too-large", "a body has no limit", patched(control_routes, "BODY_LIMIT", 2**30), "order.size-before-json"
)
broken(
    "bodies.too-large",
    "a body of one byte too many will do",
    patched(control_routes, "BODY_LIMIT", 2**23 + 1),
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
broken("order.json-before-schema", "the first fault decides", patched(control_routes, "_check_json", lambda _: None))
broken(
    "order.schema-before-ids", "ids come before the schema", patched(control_routes, "_batch_of", batch_with_ids_first)
)
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
    *("retire.gone", "retire.whole-batch", "retire.late-write", "delete.bad-batch"),
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

# Reading

broken(
    "manifest.never-recorded",
    "a rollout without calls is not found",
    replies(
        lambda reply: reply.is_manifest and b'"records":[],"failures":[]' in reply.body,
        lambda reply: reply.become_problem(404),
    ),
)
broken("manifest.changes-nothing", "a manifest can be read once", ledger("_manifest", read_once))
broken(
    "manifest.not-empty",
    "calls are recorded elsewhere",
    ledger("_record", record_nothing),
    *(*ROWS_READ_BACK, "manifest.failures", "retire.removed", "delete.removed", "delete.id-used-again"),
    "delete.after-retire-starts-new",
)
broken(
    "manifest.records",
    "the last of many records is missing",
    manifest(lambda document: document["records"][5:] and document["records"].pop()),
)
broken(
    "manifest.records",
    "weight versions are forgotten",
    records(lambda record: record.update(weight_version=0)),
    *ROWS_READ_BACK,
)
broken(
    "manifest.commit-order",
    "records are sorted by their ids",
    manifest(lambda document: document["records"].sort(key=lambda record: record["model_call_id"])),
    "records.parent-first",
)
broken(
    "manifest.commit-order",
    "the newest record comes first",
    manifest(lambda document: document["records"].reverse()),
    "records.parent-first",
)
broken(
    "manifest.failures",
    "a call has one failure",
    manifest(
        lambda document: document.update(
            failures=list({failure["model_call_id"]: failure for failure in document["failures"]}.values())
        )
    ),
)
broken("manifest.nulls", "null is 0", records(lambda record: record.update(admitted_at=record["admitted_at"] or 0)))
broken(
    "manifest.text",
    "text ends at U+0000",
    records(lambda record: record.update(response_id=record["response_id"].partition("\0")[0])),
)
broken(
    "manifest.text",
    "text is normalised",
    records(lambda record: record.update(staging_key=unicodedata.normalize("NFKD", record["staging_key"]))),
)
broken(
    "manifest.integers",
    "integers pass through floats",
    records(lambda record: record.update(weight_version=min(int(float(record["weight_version"])), 2**63 - 1))),
)

# Retiring

broken(
    "retire.offered",
    "there is no retire",
    requests(
        lambda scope: scope["path"].endswith("/retire"),
        lambda scope: scope.update(raw_path=scope["raw_path"].replace(b"/retire", b"/nothing")),
    ),
)
broken(
    "retire.offered",
    "retire is done later",
    replies(
        lambda reply: reply.is_removal and reply.path.endswith("/retire"), lambda reply: setattr(reply, "status", 202)
    ),
    "errors.documented",
)
broken(
    "retire.gone",
    "a retired rollout is empty",
    replies(status_is(410), Reply.become_manifest),
    "retire.late-write",
)
broken(
    "retire.gone",
    "a retired rollout is not found",
    has_status(410, 404),
    *("retire.whole-batch", "retire.late-write", "delete.bad-batch"),
)
broken("retire.gone", "only rollouts with rows are retired", ledger("_retire", retire_those_with_rows))
broken(
    "retire.absent",
    "what was never there was removed",
    removal(lambda document: document.update(removed=document["absent"] + document["removed"], absent=[]), "/retire"),
    *("retire.repeated", "retire.removed-once", "retire.late-write"),
)
broken(
    "retire.repeated",
    "retiring again removes again",
    ledger("_retire", retire_once),
    *("retire.removed-once", "retire.late-write"),
)
broken("retire.whole-batch", "three rollouts are retired at once", ledger("_retire", retire_the_first))
broken("retire.nothing-else", "ids are prefixes of ids", ledger("_retire", retire_all_that_begin_so))
broken("retire.bad-batch", "valid ids of a bad batch are retired", act_on_the_valid_ones(fence=True))
broken(
    "retire.removed",
    "nothing was ever removed",
    removal(
        lambda document: document.update(removed=[], absent=[*document["removed"], *document["absent"]]), "/retire"
    ),
    *("removal.failure-rows-count", "removal.order"),
)
broken("removal.failure-rows-count", "failure rows are no rows", ledger("_remove_rows", remove_but_count_records_only))
broken("retire.late-write", "a late write starts anew", ledger("_record", record_after_all))
broken(
    "removal.duplicates",
    "a repeated id counts twice",
    lambda server: [
        patched(module, "unique_rollout_ids", valid_rollout_ids)(server) for module in (control_routes, ledger_base)
    ],
    *("removal.partition", "removal.order"),
)
broken(
    "removal.duplicates",
    "a repeated id counts at its last place",
    patched(control_routes, "unique_rollout_ids", lambda ids: UNIQUE_IDS(ids[::-1])[::-1]),
    "removal.order",
)

# Deleting

broken(
    "delete.offered",
    "there is a delete, and it is broken",
    ledger("_delete", lambda *_: None),
    "errors.none-internal",
)
broken(
    "delete.absent",
    "what was never there was removed",
    removal(lambda document: document.update(removed=document["absent"] + document["removed"], absent=[]), "/delete"),
    *("delete.fence-is-absent", "delete.rows-gone"),
)
broken(
    "delete.lifts-fence",
    "delete leaves the fence",
    ledger("_delete", delete_rows_only),
    "delete.after-retire-starts-new",
)
broken("delete.fence-is-absent", "a fence counts as a row", ledger("_delete", delete_counting_fences))
broken("delete.bad-batch", "fences of a bad batch are lifted", act_on_the_valid_ones(fence=False))
broken(
    "delete.removed",
    "nothing was ever deleted",
    removal(
        lambda document: document.update(removed=[], absent=[*document["removed"], *document["absent"]]), "/delete"
    ),
)
broken(
    "delete.rows-gone",
    "a deleted rollout still answers",
    ledger("_delete", delete_fences_only),
    *("delete.id-used-again",),
)
broken(
    "delete.id-used-again",
    "the old rows come back with a new one",
    lambda server: (ledger("_delete", delete_failures_later)(server), ledger("_record", record_over_graves)(server)),
)

# Reading many manifests


def bulk(change: Any) -> Line:
    return replies(
        lambda reply: reply.status == 200 and reply.path.endswith("/manifests"), lambda reply: reply.edit(change)
    )


broken(
    "manifests.offered",
    "many manifests are refused for now",
    replies(
        lambda reply: reply.path.endswith("/manifests") and reply.status == 200, lambda reply: reply.become_problem(409)
    ),
)
broken(
    "manifests.schema",
    "retired ids are counted",
    bulk(lambda document: document.update(retired=[3])),
    "manifests.partition",
    "manifests.retired",
)
broken(
    "manifests.partition",
    "retired ids are not named",
    bulk(lambda document: document.update(retired=[])),
    "manifests.retired",
)
broken(
    "manifests.same-as-single",
    "many manifests have no records",
    bulk(lambda document: [manifest.update(records=[]) for manifest in document["manifests"]]),
)
broken(
    "manifests.retired",
    "a retired rollout has a manifest among many",
    bulk(
        lambda document: document.update(
            manifests=document["manifests"] + [empty_manifest(name) for name in document["retired"]], retired=[]
        )
    ),
    "manifests.partition",
)
broken(
    "manifests.progress",
    "there is never any room",
    bulk(
        lambda document: document.update(
            manifests=[], remaining=[manifest["rollout_id"] for manifest in document["manifests"]]
        )
    ),
)
broken(
    "manifests.changes-nothing",
    "many manifests can be read once",
    ledger("_manifests", read_many_once),
    "manifests.same-as-single",
)
