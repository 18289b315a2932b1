"""A SqliteLedger with a handle here and another in a second process, which take the operations in turn."""

import asyncio
import itertools
import multiprocessing
import threading
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rollout_control_server.errors import LedgerClosedError
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.base import CaptureLedger, CheckedCommit, CheckedFailure, FenceCount, ManifestsRead
from rollout_control_server.ledger.results import IdleRemoval, RolloutExport, RolloutFilter, RolloutPage, RolloutSummary
from rollout_control_server.records import RolloutRemoval

__all__ = ["TwoProcessLedger"]


class TwoProcessLedger(CaptureLedger):
    """Opens the ledger in both processes. It belongs to the running event loop."""

    process_shared = True

    def __init__(self, path: Path) -> None:
        self._here = SqliteLedger(path)
        # Forked from a process that has imported everything: it starts at once.
        start = multiprocessing.get_context("forkserver")
        start.set_forkserver_preload(["two_process_ledger"])
        self._pipe, other_end = start.Pipe()
        self._process = start.Process(target=_serve, args=(path, other_end))
        self._process.start()
        other_end.close()
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._answers = threading.Thread(target=self._receive)
        self._answers.start()
        self._closed = False

    async def check_ready(self) -> None:
        await self._call("check_ready")
        await self._call("check_ready")

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._pipe.send(None)
            await self._here.aclose()
            await asyncio.to_thread(self._answers.join)
            await asyncio.to_thread(self._process.join)
            assert self._process.exitcode == 0

    async def _call(self, method: str, *arguments: object) -> Any:
        if self._closed:
            raise LedgerClosedError("closed")
        number = next(self._numbers)
        if number % 2 == 0:
            return await getattr(self._here, method)(*arguments)
        answer = self._waiting[number] = self._loop.create_future()
        self._pipe.send((number, method, arguments))
        return await answer

    def _receive(self) -> None:
        while True:
            try:
                number, outcome = self._pipe.recv()
            except EOFError:
                return
            self._loop.call_soon_threadsafe(self._settle, number, outcome)

    def _settle(self, number: int, outcome: object) -> None:
        answer = self._waiting.pop(number)
        if answer.done():
            return
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    async def _record(self, commit: CheckedCommit) -> bool:
        kept: bool = await self._call("_record", commit)
        return kept

    async def _record_failure(self, failure: CheckedFailure) -> bool:
        kept: bool = await self._call("_record_failure", failure)
        return kept

    async def _manifest(self, rollout_id: str) -> bytes:
        manifest: bytes = await self._call("_manifest", rollout_id)
        return manifest

    async def _manifests(self, rollout_ids: list[str], max_bytes: int) -> ManifestsRead:
        read: ManifestsRead = await self._call("_manifests", rollout_ids, max_bytes)
        return read

    async def _has_rows(self, rollout_id: str) -> bool:
        has_rows: bool = await self._call("_has_rows", rollout_id)
        return has_rows

    async def _find_parent(self, rollout_id: str, fingerprint: str, fingerprint_version: int) -> CheckedCommit | None:
        found: CheckedCommit | None = await self._call("_find_parent", rollout_id, fingerprint, fingerprint_version)
        return found

    async def _retire(self, rollout_ids: list[str]) -> RolloutRemoval:
        removal: RolloutRemoval = await self._call("_retire", rollout_ids)
        return removal

    async def _delete(self, rollout_ids: list[str]) -> RolloutRemoval:
        removal: RolloutRemoval = await self._call("_delete", rollout_ids)
        return removal

    async def _forget_fences(self, older_than: timedelta) -> FenceCount:
        count: FenceCount = await self._call("_forget_fences", older_than)
        return count

    async def _export(self, rollout_id: str) -> RolloutExport:
        export: RolloutExport = await self._call("_export", rollout_id)
        return export

    async def _import(self, rollouts: list[RolloutExport]) -> None:
        await self._call("_import", rollouts)

    async def _list_rollouts(self, matching: RolloutFilter, limit: int, after: str | None) -> RolloutPage:
        page: RolloutPage = await self._call("_list_rollouts", matching, limit, after)
        return page

    async def _summary(self) -> RolloutSummary:
        summary: RolloutSummary = await self._call("_summary")
        return summary

    async def _retire_idle(self, rollout_ids: list[str], idle_for_s: float) -> IdleRemoval:
        removal: IdleRemoval = await self._call("_retire_idle", rollout_ids, idle_for_s)
        return removal


def _serve(path: Path, pipe: Connection) -> None:
    """Answers what comes through the pipe, many operations at once, until None comes."""

    async def answer(ledger: SqliteLedger, number: int, method: str, arguments: tuple[object, ...]) -> None:
        try:
            outcome = await getattr(ledger, method)(*arguments)
        except Exception as error:
            outcome = error
        pipe.send((number, outcome))

    async def serve() -> None:
        async with SqliteLedger(path) as ledger, asyncio.TaskGroup() as tasks:
            while (request := await asyncio.to_thread(pipe.recv)) is not None:
                tasks.create_task(answer(ledger, *request))

    asyncio.run(serve())
