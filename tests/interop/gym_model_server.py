"""A model server of Gym's own making, with the control routes of ours in the place of its own.

Run as a program, it is one worker process: `python gym_model_server.py WORKER_URL LEDGER_URL NUM_WORKERS`. It prints
the port that it listens on, and stops when its standard input is closed.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import nemo_gym.base_responses_api_model as gym_base
import nemo_gym.server_utils as gym_servers
import uvicorn
from fastapi import FastAPI
from nemo_gym.config_types import BaseServerConfig
from omegaconf import OmegaConf
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig
from rollout_control_server import install_rollout_control_routes

TOKEN = "control-plane-token"
OUTAGE_WAIT_S = 0.5

# All that it takes: Gym bound the name when it was imported.
gym_base.install_rollout_control_routes = install_rollout_control_routes


def capture_settings(ledger_url: str, outage_wait_s: float = OUTAGE_WAIT_S) -> dict[str, Any]:
    return {
        "enabled": True,
        "external_staging": True,
        "rebuild_response": False,
        "lineage_store": "rollout_control_server.gym:GymCaptureLedger",
        "lineage_store_kwargs": {"url": ledger_url, "outage_wait_s": outage_wait_s},
    }


def build_app(worker_url: str, token_id_capture: dict[str, Any], num_workers: int = 1) -> FastAPI:
    """Does what Gym's `run_webserver` does until its application is whole."""
    server = VLLMModel(
        config=VLLMModelConfig(
            host="127.0.0.1",
            port=0,
            entrypoint="app.py",
            name="policy",
            num_workers=num_workers,
            base_url=f"{worker_url}/v1",
            api_key="none",
            model="policy",
            return_token_id_information=False,
            uses_reasoning_parser=False,
        ),
        server_client=gym_servers.ServerClient(
            head_server_config=BaseServerConfig(host="127.0.0.1", port=0),
            global_config_dict=OmegaConf.create({"token_id_capture": token_id_capture}),
        ),
    )
    app = server.setup_webserver()
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    server.setup_cancellation_middleware(app)
    return app


@asynccontextmanager
async def serving(app: Any, **options: Any) -> AsyncGenerator[str, None]:
    """Serves an ASGI application in this event loop, and gives its base URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1, **options)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.005)
            if task.done():
                task.result()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def gym_http_client() -> AsyncGenerator[None, None]:
    """Gives Gym's process-wide HTTP client to this event loop, without the head server it would ask for settings."""
    client = gym_servers.set_global_aiohttp_client(gym_servers.GlobalAIOHTTPAsyncClientConfig())
    try:
        yield
    finally:
        await client.close()
        gym_servers._GLOBAL_AIOHTTP_CLIENT = None


async def main(worker_url: str, ledger_url: str, num_workers: str) -> None:
    app = build_app(worker_url, capture_settings(ledger_url), int(num_workers))
    async with gym_http_client(), serving(app) as base_url:
        print(base_url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
