"""The control routes in applications of others: FastAPI, Starlette and Litestar, mounted, prefixed and proxied."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from litestar import Litestar, MediaType, get
from litestar import Request as LitestarRequest
from litestar.openapi import OpenAPIConfig
from litestar.response import Response as LitestarResponse
from rollout_control_server import MemoryLedger, install_rollout_control_routes
from rollout_control_server.samples import sample_conversation
from rollout_control_spec import CONTROL_ROUTE_PREFIX
from served import TOKEN, Control, control_client, serving
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount, Route

ROLLOUT = "train-0007.sample-3"


class HostError(Exception):
    """What a host's own route raises, and its own handler answers."""


def fastapi_host(**options: Any) -> FastAPI:
    app = FastAPI(title="the host", **options)

    @app.get("/hello")
    async def hello(name: str) -> dict[str, str]:
        return {"hello": name}

    @app.get("/broken")
    async def broken() -> None:
        raise HostError

    @app.exception_handler(HostError)
    async def answer(request: Request, error: HostError) -> JSONResponse:
        return JSONResponse({"host": "sorry"}, status_code=418)

    return app


def starlette_host() -> Starlette:
    async def hello(request: Any) -> JSONResponse:
        return JSONResponse({"hello": request.query_params["name"]})

    async def broken(request: Any) -> None:
        raise HostError

    async def answer(request: Any, error: Exception) -> JSONResponse:
        return JSONResponse({"host": "sorry"}, status_code=418)

    return Starlette(routes=[Route("/hello", hello), Route("/broken", broken)], exception_handlers={HostError: answer})


def litestar_host() -> Litestar:
    @get("/hello")
    async def hello(request: LitestarRequest[Any, Any, Any]) -> dict[str, str]:
        return {"hello": request.query_params["name"]}

    @get("/broken")
    async def broken() -> None:
        raise HostError

    def answer(request: Any, error: HostError) -> LitestarResponse[dict[str, str]]:
        return LitestarResponse({"host": "sorry"}, status_code=418, media_type=MediaType.JSON)

    return Litestar(
        [hello, broken],
        exception_handlers={HostError: answer},
        openapi_config=OpenAPIConfig(title="the host", version="1", path="/", create_examples=False),
        logging_config=None,
    )


HOSTS = [fastapi_host, starlette_host, litestar_host]
OWN_PATHS = ["/hello?name=you", "/broken", "/openapi.json", "/docs", "/no-such-path", "/hello/"]


@pytest.fixture(params=HOSTS)
def build_host(request: pytest.FixtureRequest) -> Callable[[], Any]:
    build: Callable[[], Any] = request.param
    return build


def ledger_with_a_rollout() -> MemoryLedger:
    ledger = MemoryLedger()

    async def record() -> None:
        for commit in sample_conversation(ROLLOUT, 3):
            await ledger.record(commit)

    asyncio.run(record())
    return ledger


@contextlib.contextmanager
def client_of(app: Any, ledger: MemoryLedger, below: str = "", **options: Any) -> Iterator[Control]:
    with serving(app, **options) as base_url, control_client(f"{base_url}{below}") as http:
        yield Control(base_url, ledger, http)


def check_control_plane(control: Control) -> None:
    """Everything that a mounting could break: the paths, the bodies, and the errors of each stage."""
    assert len(control.get_manifest(ROLLOUT).json()["records"]) == 3
    unauthorized = control.get_manifest(ROLLOUT, headers={"authorization": "Bearer wrong"})
    assert (unauthorized.status_code, unauthorized.headers["www-authenticate"]) == (401, "Bearer")
    assert control.http.get(f"{CONTROL_ROUTE_PREFIX}/no-such-path").status_code == 404
    assert control.http.get(f"{CONTROL_ROUTE_PREFIX}/no-such-path", headers={"authorization": ""}).status_code == 401
    wrong_method = control.http.get(f"{CONTROL_ROUTE_PREFIX}/rollouts/retire")
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
    assert control.get_manifest("not:an:id").status_code == 400
    assert control.post("retire", b"{}").status_code == 422
    assert control.post("retire", b"{").status_code == 400
    assert control.post("retire", b"{}", content_type="text/plain").status_code == 415
    assert control.remove("retire", ROLLOUT, "never").json() == {"removed": [ROLLOUT], "absent": ["never"]}
    gone = control.get_manifest(ROLLOUT)
    assert (gone.status_code, gone.headers["content-type"]) == (410, "application/problem+json")
    assert control.remove("delete", ROLLOUT).json() == {"removed": [], "absent": [ROLLOUT]}
    assert control.get_manifest(ROLLOUT).json()["records"] == []


def test_the_control_plane_is_whole_in_any_host(build_host: Callable[[], Any]) -> None:
    app, ledger = build_host(), ledger_with_a_rollout()
    install_rollout_control_routes(app, ledger, auth_token=TOKEN)
    with client_of(app, ledger) as control:
        check_control_plane(control)


def test_a_line_feed_in_a_path_does_not_reach_the_host(build_host: Callable[[], Any]) -> None:
    app, ledger = build_host(), MemoryLedger()
    install_rollout_control_routes(app, ledger, auth_token=TOKEN)
    with client_of(app, ledger) as control:
        assert control.get_manifest("a%0A").status_code == 400
        assert control.get_manifest("a%0A", headers={"authorization": ""}).status_code == 401


def test_it_needs_no_lifespan(build_host: Callable[[], Any]) -> None:
    app, ledger = build_host(), ledger_with_a_rollout()
    install_rollout_control_routes(app, ledger, auth_token=TOKEN)
    with client_of(app, ledger, lifespan="off") as control:
        check_control_plane(control)


def test_what_the_host_serves_is_the_same_to_the_byte(build_host: Callable[[], Any]) -> None:
    answers: list[dict[str, tuple[int, bytes]]] = []
    for with_control in (False, True):
        app, ledger = build_host(), MemoryLedger()
        if with_control:
            install_rollout_control_routes(app, ledger, auth_token=TOKEN)
        with client_of(app, ledger) as control:
            answers.append({path: _answer(control.http, path) for path in OWN_PATHS})
    assert answers[0] == answers[1]
    assert answers[0]["/broken"] == (418, b'{"host":"sorry"}')


def _answer(http: httpx.Client, path: str) -> tuple[int, bytes]:
    response = http.get(path)
    return response.status_code, response.content


def test_the_hosts_handlers_and_logging_are_the_same(build_host: Callable[[], Any]) -> None:
    app = build_host()
    root = logging.getLogger()
    before = (dict(app.exception_handlers), list(root.handlers), root.level, root.disabled)
    install_rollout_control_routes(app, MemoryLedger(), auth_token=TOKEN)
    assert (dict(app.exception_handlers), list(root.handlers), root.level, root.disabled) == before


def test_installing_twice_is_refused(build_host: Callable[[], Any]) -> None:
    app = build_host()
    install_rollout_control_routes(app, MemoryLedger(), auth_token=TOKEN)
    with pytest.raises(ValueError, match="install them once"):
        install_rollout_control_routes(app, MemoryLedger(), auth_token="another-token")
    with client_of(app, ledger_with_a_rollout()) as control:
        assert control.get_manifest("never").status_code == 200, "the first installation goes on"


@pytest.mark.parametrize("mount", [fastapi_host, starlette_host])
def test_behind_a_route_that_catches_all_paths_it_is_refused(mount: Callable[[], Any]) -> None:
    app = mount()
    app.mount("/", PlainTextResponse("everything else"))
    with pytest.raises(ValueError, match="before a route that catches all paths"):
        install_rollout_control_routes(app, MemoryLedger(), auth_token=TOKEN)


def test_a_bad_token_or_host_changes_nothing(build_host: Callable[[], Any]) -> None:
    app = build_host()
    for token in ("", "not\nfor a header"):
        with pytest.raises(ValueError, match="token"):
            install_rollout_control_routes(app, MemoryLedger(), auth_token=token)
    install_rollout_control_routes(app, MemoryLedger(), auth_token=TOKEN)
    with pytest.raises(TypeError, match="Litestar, Starlette or FastAPI"):
        install_rollout_control_routes(object(), MemoryLedger(), auth_token=TOKEN)


@pytest.mark.parametrize("build", [fastapi_host, starlette_host])
def test_middlewares_that_are_added_afterwards_see_its_requests(build: Callable[[], Any]) -> None:
    app, ledger = build(), ledger_with_a_rollout()
    install_rollout_control_routes(app, ledger, auth_token=TOKEN)
    seen: list[str] = []

    async def note(request: Any, call_next: Any) -> Any:
        seen.append(request.url.path)
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=note)
    with client_of(app, ledger) as control:
        check_control_plane(control)
    assert f"{CONTROL_ROUTE_PREFIX}/rollouts/retire" in seen


def test_the_hosts_own_lifespan_runs_as_before() -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        events.append("up")
        yield
        events.append("down")

    app, ledger = fastapi_host(lifespan=lifespan), ledger_with_a_rollout()
    install_rollout_control_routes(app, ledger, auth_token=TOKEN)
    with client_of(app, ledger) as control:
        check_control_plane(control)
    assert events == ["up", "down"]
    # The ledger is its owner's to close, who may serve it elsewhere as well.
    assert asyncio.run(ledger.has_rows(ROLLOUT)) is False


# Hosts that set it in their code are warned by FastAPI, and go on.
@pytest.mark.filterwarnings("ignore:The `root_path` parameter is deprecated")
@pytest.mark.parametrize("below", ["", "/models/policy"])
def test_under_root_path(below: str) -> None:
    """A request may come with the root path, as ASGI servers send it, or without, as proxies that strip it do."""
    app, ledger = fastapi_host(root_path="/models/policy"), ledger_with_a_rollout()
    install_rollout_control_routes(app, ledger, auth_token=TOKEN)
    with client_of(app, ledger, below) as control:
        check_control_plane(control)


def test_in_an_application_that_is_mounted_in_another() -> None:
    inner, ledger = fastapi_host(), ledger_with_a_rollout()
    install_rollout_control_routes(inner, ledger, auth_token=TOKEN)
    outer = Starlette(routes=[Mount("/models", routes=[Mount("/policy", app=inner)])])
    with client_of(outer, ledger, "/models/policy") as control:
        check_control_plane(control)


@pytest.mark.parametrize("root_path", ["", "/models/policy"])
def test_behind_a_proxy_that_strips_a_path(build_host: Callable[[], Any], root_path: str) -> None:
    """The server behind it may know the path that was stripped, as its root path, or not."""
    app, ledger = build_host(), ledger_with_a_rollout()
    install_rollout_control_routes(app, ledger, auth_token=TOKEN)
    with (
        serving(app, root_path=root_path) as behind,
        client_of(stripping_proxy("/models/policy", behind), ledger, "/models/policy") as control,
    ):
        check_control_plane(control)


def stripping_proxy(stripped: str, behind: str) -> Starlette:
    async def forward(request: Any) -> Any:
        path = request.scope["raw_path"].decode().removeprefix(stripped)
        headers = {name: value for name, value in request.headers.items() if name != "host"}
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.request(
                request.method, f"{behind}{path}", headers=headers, content=await request.body()
            )
        return PlainTextResponse(answer.content, answer.status_code, dict(answer.headers))

    return Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST"])])
