"""nemo-gym's side: its routes on its FileLineageStore, and the removal that its next release does."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from nemo_gym.token_id_capture.control_routes import CONTROL_ROUTE_PREFIX, install_rollout_control_routes
from nemo_gym.token_id_capture.lineage import FileLineageStore


class StoreWithRemoval(FileLineageStore):
    """The released store has no `retire`. This one does what the next release's does, rollout by rollout.

    A fence file is written and synced, its directory too, and then the rows are unlinked.
    """

    async def retire(self, rollout_ids: Sequence[str]) -> dict[str, list[str]]:
        return await asyncio.to_thread(self._retire, rollout_ids)

    def _retire(self, rollout_ids: Sequence[str]) -> dict[str, list[str]]:
        removed: list[str] = []
        absent: list[str] = []
        for rollout_id in rollout_ids:
            rows = self._ledger_path(rollout_id)
            fence = rows.with_suffix(".retired")
            with self._locked(rollout_id):
                had_rows = not fence.exists() and rows.exists()
                with fence.open("wb") as handle:
                    os.fsync(handle.fileno())
                directory = os.open(self._ledger_root, os.O_RDONLY)
                try:
                    os.fsync(directory)
                finally:
                    os.close(directory)
                rows.unlink(missing_ok=True)
                self._ledger_cache.pop(rollout_id, None)
            (removed if had_rows else absent).append(rollout_id)
        return {"removed": removed, "absent": absent}


def peer_app(root: Path, token: str) -> Any:
    app = FastAPI()
    store = StoreWithRemoval(root)
    install_rollout_control_routes(app, store, auth_token=token)

    @app.post(f"{CONTROL_ROUTE_PREFIX}/rollouts/retire")
    async def retire(body: dict[str, list[str]]) -> dict[str, list[str]]:
        return await store.retire(body["rollout_ids"])

    return app
