"""The ASGI application of the control plane: it authenticates, finds the operation of a path, and sends its answer.

Every operation has its path and its method in `ControlApplication`, and its work in `operations`.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from urllib.parse import quote, unquote

import msgspec
from rollout_control_spec import CONTROL_ROUTE_PREFIX, REQUEST_ID_HEADER

from rollout_control_server.asgi import Answer, Receive, Scope, Send
from rollout_control_server.auth import BearerToken
from rollout_control_server.errors import ProblemKind, RequestRefusedError
from rollout_control_server.operations import Operations
from rollout_control_server.problems import problem_answer, unexpected_problem
from rollout_control_server.records import IdleRemovalRequest, LedgerBatchRequest
from rollout_control_server.request_body import read_body
from rollout_control_server.request_ids import request_id_of
from rollout_control_server.request_query import read_listing_query

__all__ = ["ControlApplication"]

logger = logging.getLogger("rollout_control_server")

T = TypeVar("T")

_MANIFEST_PATH: Final = re.compile("/rollouts/([^/]+)/manifest")
_BATCH_DECODER: Final = msgspec.json.Decoder(LedgerBatchRequest)
_IDLE_DECODER: Final = msgspec.json.Decoder(IdleRemovalRequest)


class ControlApplication:
    """Answers every request whose path is below `CONTROL_ROUTE_PREFIX`, wherever it is mounted.

    It is an ASGI application without a lifespan. A web framework's router would take several times as long as reading
    a short manifest does, and would answer some requests (OPTIONS, a slash at the end) in a way of its own.
    """

    def __init__(self, operations: Operations, auth_token: str) -> None:
        """Takes what it serves and the secret that a request must carry.

        Raises:
            TypeError: The token is not a string.
            ValueError: The token is empty or cannot be sent in a header.
        """
        self._token = BearerToken(auth_token)
        self._operations = operations
        self._routes: dict[str, tuple[str, Callable[[Scope, Receive], Awaitable[bytes]]]] = {
            "/rollouts": ("GET", lambda scope, _: operations.rollouts(read_listing_query(scope))),
            "/rollouts/summary": ("GET", lambda scope, _: operations.summary()),
            "/rollouts/manifests": ("POST", _on_body(operations.manifests, _BATCH_DECODER)),
            "/rollouts/retire": ("POST", _on_body(operations.retire, _BATCH_DECODER)),
            "/rollouts/retire-idle": ("POST", _on_body(operations.retire_idle, _IDLE_DECODER)),
            "/rollouts/delete": ("POST", _on_body(operations.delete, _BATCH_DECODER)),
        }
        """The method and the operation of each path that has no rollout id in it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; a web socket is closed."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008, "reason": "the control plane speaks HTTP"})
            return
        request_id = request_id_of(scope["headers"])
        try:
            answer = Answer(200, await self._body_of_answer(scope, receive))
        except RequestRefusedError as refusal:
            answer = problem_answer(refusal)
        except Exception as error:
            answer = problem_answer(unexpected_problem(error))
        answer.headers = {**answer.headers, REQUEST_ID_HEADER: request_id}
        await answer.send(send)

    async def _body_of_answer(self, scope: Scope, receive: Receive) -> bytes:
        """Makes the decisions in the spec's order: token, path, method; those on the body and its ids follow."""
        self._token.check(scope["headers"])
        path = _path_below_prefix(scope)
        if manifest_path := _MANIFEST_PATH.fullmatch(path):
            _require_method(scope, "GET")
            return await self._operations.manifest(manifest_path[1])
        if path not in self._routes:
            raise _no_such_path()
        method, operation = self._routes[path]
        _require_method(scope, method)
        return await operation(scope, receive)


def _on_body(
    operation: Callable[[T], Awaitable[bytes]], decoder: msgspec.json.Decoder[T]
) -> Callable[[Scope, Receive], Awaitable[bytes]]:
    """Returns the operation of a request whose body is the operation's argument."""

    async def read_and_operate(scope: Scope, receive: Receive) -> bytes:
        return await operation(await read_body(scope, receive, decoder))

    return read_and_operate


def _path_below_prefix(scope: Scope) -> str:
    """Returns the path relative to the prefix, decoded.

    It is read from the path as it was sent: hosts and proxies move parts of the decoded one to `root_path`, and add or
    remove slashes at its end.

    Raises:
        RequestRefusedError: 404, for a path that decoding or normalising would turn into another one: with an encoded
            slash, an empty segment, or a slash at the end.
    """
    sent = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
    head, prefix, tail = sent.partition(CONTROL_ROUTE_PREFIX)
    path = tail if prefix else head
    if "%2f" in path.lower() or "//" in path or path.endswith("/"):
        raise _no_such_path()
    return unquote(path)


def _require_method(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        raise RequestRefusedError(ProblemKind.METHOD_NOT_ALLOWED, f"this path takes {method}", {"Allow": method})


def _no_such_path() -> RequestRefusedError:
    return RequestRefusedError(ProblemKind.NOT_FOUND, "the control plane has no such path")
