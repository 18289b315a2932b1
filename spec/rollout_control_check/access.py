"""Checks of authentication, paths and methods."""

from collections.abc import Iterator
from typing import Final

from rollout_control_spec import CONTROL_ROUTE_PREFIX

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

VALID_BODY: Final = b'{"rollout_ids":["%s"]}'
UNKNOWN_PATHS: Final = ("/nothing-here", "/rollout", "/rollouts/some-rollout/manifest/further")


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
def _(server: Examination) -> None:
    statuses = [status for status in DOCUMENTED_STATUSES if status != 401]
    exchange = server.manifest(server.new_id(), *statuses, because="the token is the right one")
    if document_of(exchange) is None:
        raise ShortfallError("JSON; is this the base URL of a control plane?", exchange)


@check("auth.missing-token")
def _(server: Examination) -> None:
    _refused(server, None, "no token was sent")


@check("auth.wrong-token")
def _(server: Examination) -> None:
    token = server.token
    wrong = {
        "not-the-token": "not-the-token",
        token + "x": f"{TOKEN_IN_SHELL}x",
        token[:-1]: "${ROLLOUT_CONTROL_AUTH_TOKEN%?}",
        token.swapcase(): "TOKEN-IN-THE-OTHER-CASE",
        "": "",
    }
    for value, in_shell in wrong.items():
        if value != token:
            credentials = Credentials(f"Bearer {value}".rstrip().encode(), f'"Authorization: Bearer {in_shell}"')
            _refused(server, credentials, "the token is a wrong one")


@check("auth.other-scheme")
def _(server: Examination) -> None:
    for scheme in ("Basic ", "Token ", "Bearer", ""):
        credentials = Credentials(
            f"{scheme}{server.token}".encode(), f'"Authorization: {scheme}{TOKEN_IN_SHELL.replace("$", "${")}}}"'
        )
        _refused(server, credentials, "the scheme is not Bearer")


@check("auth.not-ascii")
def _(server: Examination) -> None:
    for raw in (b"\xff\xfe", "токен".encode(), server.token.encode() + b"\xe9"):
        shown = "".join(f"\\x{byte:02x}" for byte in raw if byte >= 0x80)
        _refused(server, Credentials(b"Bearer " + raw, f"$'Authorization: Bearer {shown}'"), "the header is not ASCII")


@check("auth.before-path")
def _(server: Examination) -> None:
    for path in UNKNOWN_PATHS:
        server.ask(Request("GET", CONTROL_ROUTE_PREFIX + path), 401, because="there is no token")


@check("auth.before-all-else")
def _(server: Examination) -> None:
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
def _(server: Examination) -> None:
    for operation in sorted(server.present) or [""]:
        if not operation:
            raise NotCheckedError("the server has no operation that takes a batch")
        server.ask(
            Request("POST", batch_path(operation), None, JSON, withheld=100),
            401,
            because="there is no token, and the server does not wait for the body",
        )


@observer("auth.challenge", when=lambda exchange: exchange.answer is not None and exchange.answer.status == 401)
def _(exchange: Exchange) -> str | None:
    challenge = exchange.answer and exchange.answer.header("www-authenticate")
    if not challenge or challenge.split()[0].rstrip(",").lower() != "bearer":
        return "a header WWW-Authenticate: Bearer"
    return None


@check("paths.unknown")
def _(server: Examination) -> None:
    for path in UNKNOWN_PATHS:
        server.ask(Request("GET", CONTROL_ROUTE_PREFIX + path, server.credentials), 404, because="no such path")
    server.ask(
        Request("POST", batch_path("nothing-here"), server.credentials, JSON, b'{"rollout_ids":["x"]}'),
        404,
        because="no such path",
    )


@check("paths.encoded-slash")
def _(server: Examination) -> None:
    for rollout_id in (f"{server.new_id()}%2Fx", "a%2fb"):
        server.ask(Request("GET", manifest_path(rollout_id), server.credentials), 404, because="an encoded slash")


def _wrong_methods(server: Examination) -> Iterator[Request]:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        yield Request(method, manifest_path(server.new_id()), server.credentials, JSON, b"{}")
    for operation in sorted(server.present):
        yield Request("GET", batch_path(operation), server.credentials)
        for method in ("PUT", "PATCH", "DELETE"):
            yield Request(method, batch_path(operation), server.credentials, JSON, b"{}")


@check("methods.not-allowed")
def _(server: Examination) -> None:
    for request in _wrong_methods(server):
        server.ask(request, 405, because="the path takes another method")


@observer("methods.allow", when=lambda exchange: exchange.answer is not None and exchange.answer.status == 405)
def _(exchange: Exchange) -> str | None:
    method = "GET" if exchange.request.path.endswith("/manifest") else "POST"
    allowed = (exchange.answer and exchange.answer.header("allow")) or ""
    methods = {name.strip() for name in allowed.split(",")}
    if method not in methods or exchange.request.method in methods:
        return f"a header Allow that names {method}, and not {exchange.request.method}"
    return None


@check("order.path-before-body")
def _(server: Examination) -> None:
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


def _offered(server: Examination, operation: str) -> None:
    rollout_id = server.new_id(operation)
    request = Request("POST", batch_path(operation), server.credentials, JSON, VALID_BODY % rollout_id.encode())
    refusals = (409, 501) if operation in REMOVALS else (501,)
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
        words = {409: "the server refuses removals for now", 501: "the server's ledger has no such operation"}
        raise NotCheckedError(f"{words[status]} (status {status}: {reason})")


@check("retire.offered")
def _(server: Examination) -> None:
    _offered(server, "retire")


@check("delete.offered")
def _(server: Examination) -> None:
    _offered(server, "delete")


@check("errors.title")
def _(server: Examination) -> None:
    titles: dict[str, str] = {}
    for written in ("a%20b", "a%3Ab"):
        exchange = server.ask(Request("GET", manifest_path(written), server.credentials), 400)
        problem = document_of(exchange)
        if not isinstance(problem, dict) or not isinstance(problem.get("title"), str):
            raise NotCheckedError("the errors have no title: see errors.members")
        known = titles.setdefault(str(problem.get("type")), problem["title"])
        if problem["title"] != known:
            raise ShortfallError(f"the title {known!r} once more, for the same type", exchange)


@check("manifests.offered")
def _(server: Examination) -> None:
    _offered(server, "manifests")
