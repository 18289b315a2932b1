"""The control routes of ours in Gym's model server: nothing else of it changes."""

import logging
from collections.abc import Callable
from typing import Any

import httpx
import nemo_gym.base_responses_api_model as gym_base
import pytest
from fastapi import FastAPI
from gym_model_server import TOKEN, build_app, capture_settings
from nemo_gym.token_id_capture import control_routes as gym_routes
from rollout_control_server import MemoryLedger, install_rollout_control_routes

MANIFEST = "/training-token-capture/control/rollouts/r/manifest"

Build = Callable[[Callable[..., None]], FastAPI]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    def build(install: Callable[..., None]) -> FastAPI:
        monkeypatch.setattr(gym_base, "install_rollout_control_routes", install)
        return build_app("http://127.0.0.1:9", capture_settings("memory://"))

    return build


def install_nothing(app: FastAPI, ledger: object, *, auth_token: str) -> None:
    """What Gym's server is without any control routes."""


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gym.test")


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc", "/", "/livez", "/no-such-path", "/v1/responses"])
async def test_what_gym_serves_is_the_same_to_the_byte(path: str, build: Build) -> None:
    answers = []
    for install in (install_nothing, install_rollout_control_routes):
        async with client_of(build(install)) as client:
            answer = await client.get(path)
            answers.append((answer.status_code, answer.content))
    assert answers[0] == answers[1]


async def test_a_bad_request_to_the_model_is_answered_by_gym(build: Build) -> None:
    async with client_of(build(install_rollout_control_routes)) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": "none"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/json"


def test_gyms_handlers_and_logging_are_the_same(build: Build) -> None:
    def logging_now() -> list[Any]:
        root = logging.getLogger()
        gyms = logging.getLogger("nemo_gym")
        return [list(root.handlers), root.level, list(gyms.handlers), gyms.level, logging.getLogger("uvicorn").handlers]

    before = build(install_nothing)
    logged = logging_now()
    after = build(install_rollout_control_routes)
    assert logging_now() == logged
    assert set(after.exception_handlers) == set(before.exception_handlers)
    assert [middleware.cls for middleware in after.user_middleware] == [
        middleware.cls for middleware in before.user_middleware
    ]


async def test_the_token_comes_from_gyms_environment_variable(build: Build) -> None:
    async with client_of(build(install_rollout_control_routes)) as client:
        assert (await client.get(MANIFEST)).status_code == 401
        answer = await client.get(MANIFEST, headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert answer.json() == {"schema_version": 2, "rollout_id": "r", "records": [], "failures": []}


def test_installing_again_is_refused(build: Build) -> None:
    for first in (install_rollout_control_routes, gym_routes.install_rollout_control_routes):
        app = build(first)
        with pytest.raises(ValueError, match="install them once"):
            install_rollout_control_routes(app, MemoryLedger(), auth_token=TOKEN)
