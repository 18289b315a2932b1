"""Imports one of the clients and makes its first request: `python -m bench.first_request SIDE BASE_URL ROLLOUT_ID`.

It prints the seconds from before the import until the answer is there. Nothing that a client imports is imported
before.
"""

import sys
import time

begun = time.perf_counter()
side, base_url, rollout_id = sys.argv[1:]
TOKEN = "the-token-of-the-benchmarks"

if side == "ours":
    import asyncio

    from rollout_control_client import RolloutControlClient

    async def first_request() -> int:
        async with RolloutControlClient(base_url, TOKEN, 30) as client:
            return len((await client.manifest(rollout_id)).records)

elif side == "peer":
    import asyncio

    from nemo_gym.token_id_capture.control_routes import RolloutControlClient as GymClient

    async def first_request() -> int:
        # Gym's processes have this client made from the settings of a head server, which there is none of here.
        from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig, set_global_aiohttp_client

        http = set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
        client = GymClient(base_url, auth_token=TOKEN, request_timeout_s=30)
        manifest = await client.manifest(rollout_id)
        await http.close()
        return len(manifest.records)

else:
    import asyncio
    import json

    import httpx

    async def first_request() -> int:
        async with httpx.AsyncClient(base_url=base_url, headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            answer = await http.get(f"/training-token-capture/control/rollouts/{rollout_id}/manifest")
            return len(json.loads(answer.content)["records"])


calls = asyncio.run(first_request())
seconds = time.perf_counter() - begun
if calls == 0:
    sys.exit("the manifest was empty")
sys.stdout.write(f"{seconds}\n")
