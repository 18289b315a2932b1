"""The control plane as an application of its own, for a ledger that no model server mounts."""

from typing import Final

from litestar import HttpMethod, Litestar, Response, route
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send
from rollout_control_spec import CONTROL_ROUTE_PREFIX, openapi_yaml

from rollout_control_server.control_routes import RefuseRemoval, control_application
from rollout_control_server.ledger import CaptureLedger
from rollout_control_server.manifests import DEFAULT_ANSWER_LIMIT
from rollout_control_server.problems import EXCEPTION_HANDLERS, told

__all__ = ["create_app"]

READ: Final = [HttpMethod.GET, HttpMethod.HEAD]
"""Load balancers ask for health with HEAD; whatever serves the application leaves the body out."""


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
        TypeError: The token is no string.
        ValueError: The token is empty or cannot be sent in a header, or `answer_limit` is less than 1.
    """
    control = control_application(ledger, auth_token, refuse_removal, answer_limit)
    spec = openapi_yaml()

    @route("/livez", http_method=READ, media_type="text/plain")
    async def livez() -> str:
        return "alive\n"

    @route("/readyz", http_method=READ, media_type="text/plain")
    async def readyz() -> str:
        try:
            await ledger.check_ready()
        except Exception as error:
            raise told(error, "readiness") from error
        return "ready\n"

    @route("/openapi.yaml", http_method=READ, media_type="application/yaml")
    async def openapi() -> Response[bytes]:
        return Response(spec, media_type="application/yaml")

    around = Litestar(
        [livez, readyz, openapi],
        debug=False,
        openapi_config=None,
        logging_config=None,
        on_shutdown=[ledger.aclose],
        exception_handlers=EXCEPTION_HANDLERS,
    )

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        # Two applications side by side, since a mounted one would route every request twice.
        controlled = scope["type"] in (ScopeType.HTTP, ScopeType.WEBSOCKET) and scope["path"].startswith(
            f"{CONTROL_ROUTE_PREFIX}/"
        )
        await (control if controlled else around)(scope, receive, send)

    return application
