"""The stand-alone application: the control plane, health and the spec, for a ledger that no model server mounts."""

from typing import Any, Final

from litestar import HttpMethod, Litestar, Request, Response, route
from litestar.exceptions import MethodNotAllowedException, NotFoundException
from rollout_control_spec import CONTROL_ROUTE_PREFIX, openapi_yaml

from rollout_control_server.asgi import ASGIApp, Receive, Scope, Send
from rollout_control_server.control_application import ControlApplication
from rollout_control_server.errors import ProblemKind, RequestRefusedError
from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.manifests import DEFAULT_ANSWER_LIMIT
from rollout_control_server.operations import Operations, RefuseRemoval
from rollout_control_server.problems import problem_answer, problem_for, unexpected_problem

__all__ = ["create_app"]

_READ: Final = [HttpMethod.GET, HttpMethod.HEAD]
"""Load balancers ask for health with HEAD. The HTTP server leaves the body out."""


def create_app(
    ledger: CaptureLedger,
    auth_token: str,
    refuse_removal: RefuseRemoval | None = None,
    *,
    answer_limit: int = DEFAULT_ANSWER_LIMIT,
) -> ASGIApp:
    """Returns the stand-alone ASGI application.

    Beside the control routes it serves, without a token and to HEAD as well: `/livez` (the process answers), `/readyz`
    (the ledger can take a write) and `/openapi.yaml` (the spec's file). It closes the ledger when its lifespan ends.

    Args:
        ledger: The ledgers that are read and removed.
        auth_token: The secret that a request to the control routes must carry.
        refuse_removal: Asked before each retire and delete; see `install_rollout_control_routes`.
        answer_limit: Bytes of manifests in one bulk answer; see there.

    Raises:
        TypeError: The token is no string, or `refuse_removal` cannot be called.
        ValueError: The token is empty or cannot be sent in a header, or `answer_limit` is less than 1.
    """
    control = ControlApplication(Operations(ledger, refuse_removal, answer_limit), auth_token)
    public = _public_application(ledger)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        # Beside each other, since mounting one in the other would route every request twice.
        is_control = scope["type"] != "lifespan" and scope["path"].startswith(f"{CONTROL_ROUTE_PREFIX}/")
        await (control if is_control else public)(scope, receive, send)

    return application


def _public_application(ledger: CaptureLedger) -> ASGIApp:
    """Returns the application of the paths that need no token, with the lifespan."""
    spec = openapi_yaml()

    @route("/livez", http_method=_READ, media_type="text/plain")
    async def livez() -> str:
        return "alive\n"

    @route("/readyz", http_method=_READ, media_type="text/plain")
    async def readyz() -> str:
        try:
            await ledger.check_ready()
        except Exception as error:
            raise problem_for(error, "readiness") from error
        return "ready\n"

    @route("/openapi.yaml", http_method=_READ, media_type="application/yaml")
    async def openapi() -> Response[bytes]:
        return Response(spec, media_type="application/yaml")

    return Litestar(
        [livez, readyz, openapi],
        debug=False,
        openapi_config=None,
        # Otherwise Litestar replaces the handlers of the root logger.
        logging_config=None,
        on_shutdown=[ledger.aclose],
        exception_handlers={Exception: _problem_response},
    )


def _problem_response(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    if isinstance(error, RequestRefusedError):
        refusal = error
    elif isinstance(error, NotFoundException):
        refusal = RequestRefusedError(ProblemKind.NOT_FOUND, "this server has no such path")
    elif isinstance(error, MethodNotAllowedException):
        allow = ", ".join(_READ)
        refusal = RequestRefusedError(ProblemKind.METHOD_NOT_ALLOWED, f"this path takes {allow}", {"Allow": allow})
    else:
        refusal = unexpected_problem(error)
    answer = problem_answer(refusal)
    return Response(answer.body, status_code=answer.status, media_type=answer.media_type, headers=answer.headers)
