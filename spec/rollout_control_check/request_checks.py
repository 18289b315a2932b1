"""Checks of requests that a server must refuse, or must not: authentication, paths, methods, ids and bodies."""

import json
import shlex
from collections.abc import Iterable, Iterator
from typing import Final

from rollout_control_spec import (
    AUTH_TOKEN_VARIABLE,
    BODY_LIMIT,
    CONTROL_ROUTE_PREFIX,
    MAX_LEDGER_BATCH,
    MAX_ROLLOUT_ID_LENGTH,
)

from rollout_control_check.examination import (
    BATCH_OPERATIONS,
    DOCUMENTED_STATUSES,
    JSON,
    REMOVALS,
    Examination,
    NotCheckedError,
    ShortfallError,
    batch_path,
    check,
    document_of,
    manifest_path,
    observer,
)
from rollout_control_check.requirements import requirements
from rollout_control_check.wire import TOKEN_IN_SHELL, Credentials, Exchange, Request

CHUNKED: Final = ("Transfer-Encoding", "chunked")
VALID_BODY: Final = b'{"rollout_ids":["%s"]}'
UNKNOWN_PATHS: Final = ("/nothing-here", "/rollout", "/rollouts/some-rollout/manifest/further")

ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
INVALID_IN_PATH: Final = ("a%20b", "a%3Ab", "%C3%A9", "a%00", "~a", "a+b", "a@b", "%F0%9F%8E%B2", "a%25b")
INVALID_IN_BATCH: Final = ("", "a b", "a/b", "a:b", "é", "a\x00", "~a", "a+b", "🎲", "\u0430", "a\u2028")


# Authentication


def _operations(server: Examination, credentials: Credentials | None) -> Iterator[Request]:
    """Yields one well-formed request for each operation that the server has."""
    rollout_id = server.new_id("auth")
    yield Request("GET", manifest_path(rollout_id), credentials)
    for operation in BATCH_OPERATIONS:
        if operation in server.present or f"{operation}.offered" not in server.outcomes:
            yield Request("POST", batch_path(operation), credentials, JSON, VALID_BODY % rollout_id.encode())


def _refused(server: Examination, credentials: Credentials | None, because: str) -> None:
    for request in _operations(server, credentials):
        server.ask(request, 401, because=because)


@check("auth.accepted")
def auth_accepted(server: Examination) -> None:
    exchange = server.manifest(server.new_id(), *DOCUMENTED_STATUSES)
    if exchange.answer is not None and exchange.answer.status == 401:
        raise ShortfallError("another status than 401: the token is the right one", exchange)
    if document_of(exchange) is None:
        raise ShortfallError("JSON; is this the base URL of a control plane?", exchange)


@check("auth.missing-token")
def auth_missing_token(server: Examination) -> None:
    _refused(server, None, "no token was sent")


@check("auth.wrong-token")
def auth_wrong_token(server: Examination) -> None:
    token = server.token
    wrong = {
        "not-the-token": "not-the-token",
        token + "x": f"${{{AUTH_TOKEN_VARIABLE}}}x",
        token[:-1]: f"${{{AUTH_TOKEN_VARIABLE}%?}}",
        token.swapcase(): f"$(printf %s \"{TOKEN_IN_SHELL}\" | tr 'A-Za-z' 'a-zA-Z')",
        "": "",
    }
    for value, in_shell in wrong.items():
        if value != token:
            header = f"Authorization: Bearer {in_shell}".rstrip()
            credentials = Credentials(f"Bearer {value}".rstrip().encode(), f'"{header}"')
            _refused(server, credentials, "the token is a wrong one")


@check("auth.other-scheme")
def auth_other_scheme(server: Examination) -> None:
    for scheme in ("Basic ", "Token ", "Bearer", ""):
        credentials = Credentials(
            f"{scheme}{server.token}".encode(), f'"Authorization: {scheme}${{{AUTH_TOKEN_VARIABLE}}}"'
        )
        _refused(server, credentials, "the scheme is not Bearer")


@check("auth.not-ascii")
def auth_not_ascii(server: Examination) -> None:
    token = server.token.encode()
    for start, raw in ((b"", b"\xff\xfe"), (b"", "токен".encode()), (token, b"\xe9")):
        bytes_in_shell = "".join(f"\\x{byte:02x}" for byte in raw)
        in_shell = f"\"Authorization: Bearer {TOKEN_IN_SHELL if start else ''}\"$'{bytes_in_shell}'"
        _refused(server, Credentials(b"Bearer " + start + raw, in_shell), "the header is not ASCII")


@check("auth.before-path")
def auth_before_path(server: Examination) -> None:
    for path in UNKNOWN_PATHS:
        server.ask(Request("GET", CONTROL_ROUTE_PREFIX + path), 401, because="there is no token")


@check("auth.before-all-else")
def auth_before_all_else(server: Examination) -> None:
    requests = [Request("PUT", manifest_path(server.new_id())), Request("GET", manifest_path("a%20b"))]
    for operation in sorted(server.present):
        path = batch_path(operation)
        requests += [
            Request("PUT", path, None, JSON, b"{}"),
            Request("POST", path, None, (("Content-Type", "text/plain"),), b"text"),
            Request("POST", path, None, JSON, b"not json"),
            Request("POST", path, None, JSON, b"{}"),
            Request("POST", path, None, JSON, b'{"rollout_ids":["a b"]}'),
        ]
    for request in requests:
        server.ask(request, 401, because="there is no token, and that is decided first")


@check("auth.body-unread")
def auth_body_unread(server: Examination) -> None:
    for operation in sorted(server.present) or [""]:
        if not operation:
            raise NotCheckedError("the server has no operation that takes a batch")
        server.ask(
            Request("POST", batch_path(operation), None, JSON, withheld=100),
            401,
            because="there is no token, and the server does not wait for the body",
        )


@observer("auth.challenge", when=lambda exchange: exchange.answer is not None and exchange.answer.status == 401)
def auth_challenge(exchange: Exchange) -> str | None:
    challenge = exchange.answer and exchange.answer.header("www-authenticate")
    if not challenge or challenge.split()[0].rstrip(",").lower() != "bearer":
        return "a header WWW-Authenticate: Bearer"
    return None


@check("paths.unknown")
def paths_unknown(server: Examination) -> None:
    for path in UNKNOWN_PATHS:
        server.ask(Request("GET", CONTROL_ROUTE_PREFIX + path, server.credentials), 404, because="no such path")
    server.ask(
        Request("POST", batch_path("nothing-here"), server.credentials, JSON, b'{"rollout_ids":["x"]}'),
        404,
        because="no such path",
    )


@check("paths.encoded-slash")
def paths_encoded_slash(server: Examination) -> None:
    for rollout_id in (f"{server.new_id()}%2Fx", "a%2fb"):
        server.ask(Request("GET", manifest_path(rollout_id), server.credentials), 404, because="an encoded slash")


def _wrong_methods(server: Examination) -> Iterator[Request]:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        yield Request(method, manifest_path(server.new_id()), server.credentials, JSON, b"{}")
    for operation in sorted(server.present):
        yield Request("GET", batch_path(operation), server.credentials)
        for method in ("PUT", "PATCH", "DELETE"):
            yield Request(method, batch_path(operation), server.credentials, JSON, b"{}")


@check("paths.query-ignored")
def paths_query_ignored(server: Examination) -> None:
    because = "the operation declares no query parameters, and ignores a query"
    path = f"{manifest_path(server.new_id())}?limit=1&limit=x"
    server.ask(Request("GET", path, server.credentials), 200, because=because)


@check("methods.head")
def methods_head(server: Examination) -> None:
    request = Request("HEAD", manifest_path(server.new_id()), server.credentials)
    server.ask(request, 200, 405, because="HEAD gets what GET gets, or is a method that the path does not take")


@check("methods.not-allowed")
def methods_not_allowed(server: Examination) -> None:
    for request in _wrong_methods(server):
        server.ask(request, 405, because="the path takes another method")


@observer("methods.allow", when=lambda exchange: exchange.answer is not None and exchange.answer.status == 405)
def methods_allow(exchange: Exchange) -> str | None:
    method = "GET" if exchange.request.path.partition("?")[0].endswith("/manifest") else "POST"
    allowed = (exchange.answer and exchange.answer.header("allow")) or ""
    methods = {name.strip() for name in allowed.split(",")}
    if method not in methods or exchange.request.method in methods:
        return f"a header Allow that names {method}, and not {exchange.request.method}"
    return None


@check("order.path-before-body")
def order_path_before_body(server: Examination) -> None:
    text = (("Content-Type", "text/plain"),)
    server.ask(
        Request("POST", batch_path("nothing-here"), server.credentials, text, b"text"),
        404,
        because="that there is no such path is decided before the media type",
    )
    for operation in sorted(server.present):
        server.ask(
            Request("PUT", batch_path(operation), server.credentials, text, b"text"),
            405,
            because="the method is decided before the media type",
        )


def _is_offered(server: Examination, operation: str) -> None:
    """Notes in `server.present` whether the server has the path of an operation, and expects it to be done."""
    rollout_id = server.new_id(operation)
    request = Request("POST", batch_path(operation), server.credentials, JSON, VALID_BODY % rollout_id.encode())
    refusals = (403, 409, 501) if operation in REMOVALS else (501,)
    try:
        exchange = server.ask(request, 200, *refusals)
    except ShortfallError as shortfall:
        exchange = shortfall.exchange
        if exchange.answer is None:
            raise
        if exchange.answer.status not in {404, 405}:
            server.present.add(operation)
            raise
        if requirements()[f"{operation}.offered"].optional:
            raise NotCheckedError("an optional operation, which this server does not have") from shortfall
        raise ShortfallError("status 200: every server has this operation", exchange) from shortfall
    server.present.add(operation)
    status = exchange.answer.status if exchange.answer else 0
    if status != 200:
        reason = (document_of(exchange) or {}).get("detail", "")
        words = {
            403: "the token may read, and not remove",
            409: "the server refuses removals for now",
            501: "the server's ledger has no such operation",
        }
        raise NotCheckedError(f"{words[status]} (status {status}: {reason})")


@check("retire.offered")
def retire_offered(server: Examination) -> None:
    _is_offered(server, "retire")


@check("delete.offered")
def delete_offered(server: Examination) -> None:
    _is_offered(server, "delete")


@check("manifests.offered")
def manifests_offered(server: Examination) -> None:
    _is_offered(server, "manifests")


@check("errors.title")
def errors_title(server: Examination) -> None:
    first = server.ask(Request("GET", manifest_path("a%20b"), server.credentials), 400)
    second = server.ask(Request("GET", manifest_path("a%3Ab"), server.credentials), 400)
    problem, again = document_of(first), document_of(second)
    for document in (problem, again):
        if not isinstance(document, dict) or not isinstance(document.get("title"), str):
            raise NotCheckedError("the errors have no title: see errors.members")
    if problem.get("type") == again.get("type") and problem["title"] != again["title"]:
        raise ShortfallError(f"the title {problem['title']!r} once more, for the same type", second, first)


def _each(server: Examination, bodies: Iterable[bytes], status: int, because: str) -> None:
    """Sends each body to each operation that takes a batch, and expects one status."""
    for operation in _present(server):
        for body in bodies:
            server.post(operation, body, status, because=because)


def _each_made(server: Examination, body: bytes, in_shell: str, status: int, because: str) -> None:
    """Sends a long body to each operation that takes a batch, and expects one status."""
    for operation in _present(server):
        server.post(operation, body, status, in_shell=in_shell, because=because)


def _padded(body: bytes, size: int) -> tuple[bytes, str]:
    """Returns a body with spaces at its end, and the shell commands that print it."""
    spaces = f"head -c {size - len(body)} /dev/zero | tr '\\0' ' '"
    return body.ljust(size), f"{{ printf %s {shlex.quote(body.decode())}; {spaces}; }}"


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
def ids_valid(server: Examination) -> None:
    for rollout_id in (f"{server.prefix}{ALPHABET}", _longest_id(server), f"{server.prefix}...", f"{server.prefix}-_."):
        server.manifest(rollout_id, because="the rollout id is valid")
    # Whoever uses this server may use these, so they are only read, and may be retired.
    for rollout_id in ("a", "Z", "0", "-", "_", "...", ".a", "retire", "delete", "manifest", "rollouts"):
        server.manifest(rollout_id, 200, 410, because="the rollout id is valid")


@check("ids.valid-in-batch")
def ids_valid_in_batch(server: Examination) -> None:
    rollout_id = f"{server.prefix}{ALPHABET}"
    server.touched[rollout_id] = None
    server.send_batch(
        "delete", [rollout_id, _longest_id(server), server.new_id("..")], because="the rollout ids are valid"
    )


@check("ids.invalid-in-path")
def ids_invalid_in_path(server: Examination) -> None:
    for written in INVALID_IN_PATH:
        server.ask(Request("GET", manifest_path(written), server.credentials), 400, because="the rollout id is invalid")


@check("ids.invalid-in-batch")
def ids_invalid_in_batch(server: Examination) -> None:
    _each(server, [_batch(rollout_id) for rollout_id in INVALID_IN_BATCH], 400, "the rollout id is invalid")


@check("ids.percent-decoded")
def ids_percent_decoded(server: Examination) -> None:
    rollout_id = f"{server.new_id()}-a"
    written = f"{rollout_id[:-2]}%2D%61"
    server.ask(Request("GET", manifest_path(written), server.credentials), 200, because=f"it is {rollout_id}")
    twice = Request("GET", manifest_path("%2561"), server.credentials)
    server.ask(twice, 400, because="it is decoded once, to %61, which is no rollout id")


@check("ids.dot-segments")
def ids_dot_segments(server: Examination) -> None:
    for written in ("%2E", "%2E%2E"):
        request = Request("GET", manifest_path(written), server.credentials)
        server.ask(request, 400, 404, because="dot segments are no rollout ids")
    _each(server, [_batch("."), _batch("..")], 400, "dot segments are no rollout ids")


@check("ids.trailing-newline")
def ids_trailing_newline(server: Examination) -> None:
    server.ask(Request("GET", manifest_path("a%0A"), server.credentials), 400, because="a line feed belongs to no id")
    _each(server, [_batch(f"{server.new_id()}\n")], 400, "a line feed belongs to no id")


@check("ids.too-long")
def ids_too_long(server: Examination) -> None:
    rollout_id = f"{_longest_id(server)}x"
    server.manifest(rollout_id, 400, because="a rollout id has at most 255 characters")
    _each(server, [_batch(rollout_id)], 400, "a rollout id has at most 255 characters")


@check("ids.anywhere-in-batch")
def ids_anywhere_in_batch(server: Examination) -> None:
    valid = [server.new_id("valid") for _ in range(4)]
    for place in (0, 2, 4):
        batch = [*valid[:place], "a b", *valid[place:]]
        _each(server, [_batch(*batch)], 400, f"the id at index {place} is invalid")


# Media type and size


@check("bodies.media-type")
def bodies_media_type(server: Examination) -> None:
    body = _batch(server.new_id())
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", "application/xml", None):
        headers = () if media_type is None else (("Content-Type", media_type),)
        for operation in _present(server):
            server.post(operation, body, 415, headers=headers, because="the body is not sent as application/json")


@check("bodies.media-type-parameter")
def bodies_media_type_parameter(server: Examination) -> None:
    body = _batch(server.new_id())
    for media_type in ("application/json; charset=utf-8", "application/json;charset=UTF-8"):
        server.post("delete", body, 200, headers=(("Content-Type", media_type),), because="this is application/json")


@check("bodies.content-coding")
def bodies_content_coding(server: Examination) -> None:
    body = _batch(server.new_id())
    for coding in ("gzip", "deflate", "br"):
        headers = (*JSON, ("Content-Encoding", coding))
        for operation in _present(server):
            server.post(operation, body, 415, headers=headers, because="the body has a content coding")


@check("bodies.media-type-first")
def bodies_media_type_first(server: Examination) -> None:
    for operation in _present(server):
        request = Request(
            "POST", batch_path(operation), server.credentials, (("Content-Type", "text/plain"),), withheld=100
        )
        server.ask(request, 415, because="the media type is decided before the body is read")


@check("bodies.too-large")
def bodies_too_large(server: Examination) -> None:
    body, in_shell = _padded(_batch(server.new_id()), BODY_LIMIT + 1)
    _each_made(server, body, in_shell, 413, "the body has one byte more than the limit")
    for operation in _present(server):
        server.post(
            operation,
            body,
            413,
            headers=(*JSON, CHUNKED),
            in_shell=in_shell,
            because="the body, sent in chunks, has one byte more than the limit",
        )


@check("bodies.largest")
def bodies_largest(server: Examination) -> None:
    body, in_shell = _padded(_batch(server.new_id()), BODY_LIMIT)
    server.post("delete", body, 200, in_shell=in_shell, because="the body has as much as the limit")


@check("bodies.chunked")
def bodies_chunked(server: Examination) -> None:
    body = _batch(server.new_id())
    server.post("delete", body, 200, headers=(*JSON, CHUNKED), because="a body may be sent in chunks")


@check("bodies.of-a-get")
def bodies_of_a_get(server: Examination) -> None:
    request = Request(
        "GET", manifest_path(server.new_id()), server.credentials, (("Content-Type", "text/plain"),), b"x"
    )
    server.ask(request, 200, because="the body of a GET is not read")


# JSON and its schema


@check("bodies.not-json")
def bodies_not_json(server: Examination) -> None:
    bodies = [b"", b"not json", b"{", b'{"rollout_ids":["x"]', b'{"rollout_ids":["x"]} x', b"{'rollout_ids': ['x']}"]
    _each(server, [*bodies, b'{"rollout_ids":["\xff"]}', b"\xff"], 400, "the body is not JSON in UTF-8")


@check("bodies.schema")
def bodies_schema(server: Examination) -> None:
    rollout_id = json.dumps(server.new_id())
    bodies = ["{}", "[]", "null", "1", '"x"', f"[{rollout_id}]", f'{{"ids":[{rollout_id}]}}']
    values = ["[]", "null", "{}", "1", rollout_id, "[null]", "[1]", "[true]", "[[]]", f"[{rollout_id}, 1]"]
    bodies += [f'{{"rollout_ids":{value}}}' for value in values]
    _each(server, [body.encode() for body in bodies], 422, "the body is JSON and no LedgerBatchRequest")


@check("bodies.unknown-field")
def bodies_unknown_field(server: Examination) -> None:
    body = json.dumps({"rollout_ids": [server.new_id()], "dry_run": True}).encode()
    _each(server, [body], 422, "the body has a field that LedgerBatchRequest doesn't have")


def _batch_of(server: Examination, count: int) -> tuple[bytes, str]:
    """Returns a batch of many ids, and the shell commands that print it."""
    name = server.new_id("many")
    rollout_ids = [f"{name}-{index}" for index in range(count)]
    server.touched.update(dict.fromkeys(rollout_ids))
    others = f"seq -f ', \"{name}-%.0f\"' 1 {count - 1} | tr -d '\\n'"
    return _batch(*rollout_ids), f"{{ printf %s '{{\"rollout_ids\": [\"{name}-0\"'; {others}; printf ']}}'; }}"


@check("bodies.too-many-ids")
def bodies_too_many_ids(server: Examination) -> None:
    body, in_shell = _batch_of(server, MAX_LEDGER_BATCH + 1)
    _each_made(server, body, in_shell, 422, f"the batch has more than {MAX_LEDGER_BATCH} ids")


@check("bodies.most-ids")
def bodies_most_ids(server: Examination) -> None:
    body, in_shell = _batch_of(server, MAX_LEDGER_BATCH)
    server.post("delete", body, 200, in_shell=in_shell, because=f"a batch may have {MAX_LEDGER_BATCH} ids")


# The order of decisions


@check("order.size-before-json")
def order_size_before_json(server: Examination) -> None:
    body, in_shell = _padded(b"not json", BODY_LIMIT + 1)
    _each_made(server, body, in_shell, 413, "the size is decided before whether the body is JSON")


@check("order.json-before-schema")
def order_json_before_schema(server: Examination) -> None:
    bodies = [b'{"rollout_ids":[1', b'{"rollout_ids":[],"x":', b'[] "']
    _each(server, bodies, 400, "whether the body is JSON is decided before its schema")


@check("order.schema-before-ids")
def order_schema_before_ids(server: Examination) -> None:
    because = "the schema is decided before the rollout ids"
    _each(server, [_batch("a b", 5), json.dumps({"rollout_ids": ["a b"], "x": 1}).encode()], 422, because)
    others = f"yes ', \"a b\"' | head -n {MAX_LEDGER_BATCH} | tr -d '\\n'"
    in_shell = f"{{ printf %s '{{\"rollout_ids\": [\"a b\"'; {others}; printf ']}}'; }}"
    _each_made(server, _batch(*["a b"] * (MAX_LEDGER_BATCH + 1)), in_shell, 422, because)
