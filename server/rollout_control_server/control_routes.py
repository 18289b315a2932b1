"""The control routes, and how they are installed in an application.

The name of the module, and the names in it, are those of `nemo_gym.token_id_capture.control_routes`.
"""

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote

import msgspec
from litestar import Litestar, Request, asgi, post
from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.exceptions import InternalServerException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.types import ASGIApp, Receive, Scope, Send
from rollout_control_spec import (
    BODY_LIMIT,
    CONTROL_ROUTE_PREFIX,
    MAX_LEDGER_BATCH,
    unique_rollout_ids,
    validate_rollout_id,
)

from rollout_control_server.auth import BearerToken
from rollout_control_server.errors import ProblemKind, RequestRefusedError
from rollout_control_server.manifests import DEFAULT_ANSWER_LIMIT, joined, read_manifest, read_manifests
from rollout_control_server.problems import EXCEPTION_HANDLERS, problem_response, told
from rollout_control_server.records import LedgerBatchRequest, RolloutRemoval

if TYPE_CHECKING:
    from rollout_control_client import RolloutControlClient

__all__ = [
    "CONTROL_ROUTE_PREFIX",
    "MAX_LEDGER_BATCH",
    "LedgerBatchRequest",
    "RolloutControlClient",
    "install_rollout_control_routes",
]

T = TypeVar("T")

RefuseRemoval = Callable[[], str | Awaitable[str | None] | None]
"""Returns why retire and delete are refused for now, or None; plain or async."""

_MANIFEST_PATH: Final = re.compile("/rollouts/([^/]+)/manifest")
_BATCH_DECODER: Final = msgspec.json.Decoder(LedgerBatchRequest)


def install_rollout_control_routes(
    app: Any,
    lineage_store: Any,
    auth_token: str,
    refuse_removal: RefuseRemoval | None = None,
    *,
    answer_limit: int = DEFAULT_ANSWER_LIMIT,
) -> None:
    """Installs the routes that read, retire and delete ledgers, below `CONTROL_ROUTE_PREFIX`, for bearers of a token.

    Everything below the prefix is answered here, errors included; the application's own routes, schema, exception
    handlers and logging stay as they are. No lifespan is needed.

    Args:
        app: A Litestar, Starlette or FastAPI application.
        lineage_store: The ledger: a CaptureLedger of ours, or an object of another make with a coroutine `manifest`,
            and perhaps `retire` and `delete`; the operations that it lacks are 501.
        auth_token: The secret that a request must carry.
        refuse_removal: Asked before each retire and delete. A reason refuses it for now, with 409, and the caller
            retries later.
        answer_limit: Bytes that the manifests of one bulk answer may have together; a single larger manifest is sent
            by itself.

    Raises:
        TypeError: `app` or `lineage_store` is of another kind, or `refuse_removal` cannot be called.
        ValueError: The token is empty or cannot be sent in a header, `answer_limit` is less than 1, or the application
            has routes already that would answer in their place.
    """
    if isinstance(lineage_store, type) or not callable(getattr(lineage_store, "manifest", None)):
        raise TypeError(f"lineage_store is a ledger with a coroutine 'manifest', not {lineage_store!r:.80}")
    control = control_application(lineage_store, auth_token, refuse_removal, answer_limit)
    mount = _mounting(app)
    if _answers_control_paths(app):
        raise ValueError(
            f"this application already has routes that answer paths below {CONTROL_ROUTE_PREFIX}; install them once, "
            "and before a route that catches all paths"
        )
    mount(control)


def _mounting(app: Any) -> Callable[[ASGIApp], object]:
    if isinstance(app, Litestar):
        litestar_app = app
        return lambda control: litestar_app.register(
            asgi(CONTROL_ROUTE_PREFIX, is_mount=True, copy_scope=True)(_as_handler(control))
        )
    # By name: neither Starlette nor FastAPI is a dependency.
    if any(base.__name__ == "Starlette" and base.__module__.startswith("starlette.") for base in type(app).__mro__):
        return lambda control: _mount_in_starlette(app, control)
    raise TypeError(
        f"control routes are installed in a Litestar, Starlette or FastAPI application, not in {type(app).__name__}"
    )


def _mount_in_starlette(app: Any, control: ASGIApp) -> None:
    app.mount(CONTROL_ROUTE_PREFIX, control)
    # As Starlette compiles it, a mount lets a path with a line feed through to the host, without any authentication.
    route = app.routes[-1]
    route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)


def _answers_control_paths(app: Any) -> bool:
    if isinstance(app, Litestar):
        return any(route.path.startswith(CONTROL_ROUTE_PREFIX) for route in app.routes)
    # A router that FastAPI has included shows no path, but can be asked like any route whether it matches one.
    path = f"{CONTROL_ROUTE_PREFIX}/rollouts/r/manifest"
    scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "headers": []}
    return any(route.matches(scope)[0].value for route in app.routes)


def _as_handler(control: ASGIApp) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    async def rollout_control(scope: Scope, receive: Receive, send: Send) -> None:
        await control(scope, receive, send)

    return rollout_control


def control_application(
    ledger: Any, auth_token: str, refuse_removal: RefuseRemoval | None, answer_limit: int
) -> ASGIApp:
    """Returns the ASGI application that answers everything below the prefix, wherever it is mounted.

    It makes the first decision of the spec's order, authentication, on the bare request. A manifest, which a trainer
    reads once for each rollout, it answers by itself: that takes a tenth of the time that routing it would. The rest it
    hands to an inner Litestar application that sees nothing but method, path and the headers that describe the body.

    Raises:
        TypeError: The token is no string.
        ValueError: The token is empty or cannot be sent in a header, or `answer_limit` is less than 1.
    """
    if refuse_removal is not None and not callable(refuse_removal):
        raise TypeError(f"refuse_removal is called for a reason, and {refuse_removal!r:.80} cannot be")
    if answer_limit < 1:
        raise ValueError(f"answer_limit must be at least 1 byte, and is {answer_limit}")
    token = BearerToken(auth_token)
    inner = _routes(ledger, refuse_removal, answer_limit)

    async def control(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await send({"type": "websocket.close", "code": 1008, "reason": "the control plane speaks HTTP"})
            return
        try:
            token.check(scope["headers"])
            path = _path_below_prefix(scope)
            if asked_for := _MANIFEST_PATH.fullmatch(path):
                await _json(await _manifest(ledger, scope["method"], asked_for[1]))(scope, receive, send)
                return
        except RequestRefusedError as refusal:
            await problem_response(refusal)(scope, receive, send)
            return
        inner_scope: Any = {
            **scope,
            "path": path,
            "root_path": "",
            "query_string": b"",
            # A host's own state, and headers that could make Litestar refuse or log a request, stay outside.
            "state": {},
            "headers": [header for header in scope["headers"] if header[0].startswith(b"content-")],
            # Litestar answers OPTIONS by itself; the protocol has no such method.
            "method": "TRACE" if scope["method"] == "OPTIONS" else scope["method"],
        }
        await inner(inner_scope, receive, send)

    return control


def _path_below_prefix(scope: Scope) -> str:
    """Returns the path relative to the prefix, decoded.

    Read from the path as it was sent: hosts and proxies move parts of the decoded one to `root_path`, and add or
    remove slashes at its end.

    Raises:
        RequestRefusedError: 404, for what decoding or normalisation would make another path of: an encoded slash, an
            empty segment, a slash at the end.
    """
    sent = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
    head, prefix, tail = sent.partition(CONTROL_ROUTE_PREFIX)
    path = tail if prefix else head
    if "%2f" in path.lower() or "//" in path or path.endswith("/"):
        raise RequestRefusedError(ProblemKind.NOT_FOUND, "the control plane has no such path")
    return unquote(path) or "/"


async def _manifest(ledger: Any, method: str, rollout_id: str) -> bytes:
    if method != "GET":
        raise RequestRefusedError(ProblemKind.METHOD_NOT_ALLOWED, "this path takes GET", {"Allow": "GET"})
    _valid(validate_rollout_id, rollout_id)
    try:
        return await read_manifest(ledger, rollout_id)
    except Exception as error:
        raise told(error, f"manifest of rollout {rollout_id!r}") from error


def _routes(ledger: Any, refuse_removal: RefuseRemoval | None, answer_limit: int) -> Litestar:
    """Returns the Litestar application of the operations on a batch, with paths relative to the prefix."""

    @post("/rollouts/manifests", guards=[_check_media_type], status_code=200)
    async def manifests(request: Request[Any, Any, Any]) -> ASGIApp:
        rollout_ids = _valid(unique_rollout_ids, _batch_of(await _body_of(request)).rollout_ids)
        try:
            return _json(joined(await read_manifests(ledger, rollout_ids, answer_limit)))
        except Exception as error:
            raise told(error, f"manifests of {len(rollout_ids)} rollouts") from error

    async def remove(operation: str, request: Request[Any, Any, Any]) -> ASGIApp:
        rollout_ids = _valid(unique_rollout_ids, _batch_of(await _body_of(request)).rollout_ids)
        removal = getattr(ledger, operation, None)
        if removal is None:
            raise RequestRefusedError(
                ProblemKind.NOT_IMPLEMENTED, f"this server's ledger has no operation {operation!r}"
            )
        await _ask_to_remove(refuse_removal)
        try:
            return _json(msgspec.json.encode(_removal_of(await removal(rollout_ids))))
        except Exception as error:
            raise told(error, f"{operation} of {len(rollout_ids)} rollouts") from error

    @post("/rollouts/retire", guards=[_check_media_type], status_code=200)
    async def retire(request: Request[Any, Any, Any]) -> ASGIApp:
        return await remove("retire", request)

    @post("/rollouts/delete", guards=[_check_media_type], status_code=200)
    async def delete(request: Request[Any, Any, Any]) -> ASGIApp:
        return await remove("delete", request)

    return Litestar(
        [manifests, retire, delete],
        debug=False,
        openapi_config=None,
        # Otherwise Litestar replaces the root logger's handlers, which are the host's.
        logging_config=None,
        request_max_body_size=BODY_LIMIT,
        exception_handlers=EXCEPTION_HANDLERS,
    )


async def _check_media_type(request: ASGIConnection[Any, Any, Any, Any], _: object) -> None:
    """Refuses a body that is not plain `application/json`, before it is read."""
    content_type = ",".join(request.headers.getall("content-type", []))
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [part.partition("=")[2].strip('"') for part in parameters if part.startswith("charset=")]
    if media_type != "application/json" or any(charset != "utf-8" for charset in charsets):
        raise RequestRefusedError(
            ProblemKind.UNSUPPORTED_MEDIA_TYPE, "send the body as 'Content-Type: application/json', in UTF-8"
        )
    # A header that stands more than once is one list (RFC 9110, section 5.3).
    codings = ",".join(request.headers.getall("content-encoding", [])).split(",")
    if any(coding.strip().lower() not in {"", "identity"} for coding in codings):
        raise RequestRefusedError(
            ProblemKind.UNSUPPORTED_MEDIA_TYPE, "send the body as it is, without a Content-Encoding"
        )


async def _body_of(request: Request[Any, Any, Any]) -> bytes:
    try:
        return await request.body()
    except RequestEntityTooLarge as error:
        raise RequestRefusedError(
            ProblemKind.BODY_TOO_LARGE, f"a body may have {BODY_LIMIT} bytes; send fewer rollout ids at once"
        ) from error
    except InternalServerException as error:
        # Litestar's word for a client that went away; nobody reads the answer.
        raise RequestRefusedError(ProblemKind.MALFORMED_BODY, "the body ended before it was whole") from error


def _batch_of(body: bytes) -> LedgerBatchRequest:
    try:
        return _BATCH_DECODER.decode(body)
    except msgspec.ValidationError as error:
        # The decoder stops at the first rule that is broken, which can come before the place where the JSON is.
        _check_json(body)
        raise RequestRefusedError(ProblemKind.INVALID_BODY, str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(error) from error


def _check_json(body: bytes) -> None:
    """Refuses what is not JSON from its first byte to its last. Numbers are not looked into."""
    try:
        json.loads(body.decode(), parse_int=str, parse_float=str, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _malformed(error) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _malformed(error: Exception) -> RequestRefusedError:
    return RequestRefusedError(ProblemKind.MALFORMED_BODY, f"the body is not JSON in UTF-8: {error}")


def _valid(check: Callable[[Any], T], ids: object) -> T:
    try:
        return check(ids)
    except ValueError as error:
        raise RequestRefusedError(ProblemKind.INVALID_ROLLOUT_ID, str(error)) from error


async def _ask_to_remove(refuse_removal: RefuseRemoval | None) -> None:
    if refuse_removal is None:
        return
    reason = refuse_removal()
    if inspect.isawaitable(reason):
        reason = await reason
    if reason is not None:
        detail = str(reason).encode("utf-8", "replace").decode()
        raise RequestRefusedError(ProblemKind.REMOVAL_REFUSED, detail)


def _removal_of(answer: Any) -> RolloutRemoval:
    """Returns a ledger's answer as exactly the fields of the wire; another's ledger answers with a plain dict."""
    if isinstance(answer, RolloutRemoval):
        return answer
    return RolloutRemoval(removed=list(answer["removed"]), absent=list(answer["absent"]))


def _json(body: bytes) -> ASGIApp:
    """Returns an answer of these bytes."""

    async def answer(_: Scope, __: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return answer


def __getattr__(name: str) -> Any:
    """Imports the client when it is asked for: a server has no other need of it."""
    if name == "RolloutControlClient":
        return import_module("rollout_control_client").RolloutControlClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
