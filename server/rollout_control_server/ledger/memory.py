"""The reference ledger: plain dictionaries in one process, gone with it."""

import sys
import threading
import time
from datetime import timedelta

from rollout_control_spec import RolloutRetiredError

from rollout_control_server.errors import LedgerClosedError, LedgerConflictError
from rollout_control_server.ledger.base import (
    CaptureLedger,
    CheckedCommit,
    CheckedFailure,
    FenceCount,
    ManifestsRead,
    join_manifest,
)
from rollout_control_server.records import RolloutRemoval

__all__ = ["MemoryLedger"]


class _Rows:
    """The rows of one rollout, in the order of their writing."""

    __slots__ = ("commits", "failed_calls", "failures", "parents")

    def __init__(self) -> None:
        self.commits: dict[str, CheckedCommit] = {}
        self.failures: dict[tuple[str, str], CheckedFailure] = {}
        self.failed_calls: set[str] = set()
        self.parents: dict[tuple[str, int], list[CheckedCommit]] = {}


class MemoryLedger(CaptureLedger):
    """Keeps everything in this process's memory: for tests, demos and single-process servers that may forget.

    Every method does its work in one step without awaiting, under a lock, so it is atomic for tasks and threads.
    """

    process_shared = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rollouts: dict[str, _Rows] = {}
        self._fences: dict[str, float] = {}
        self._closed = False

    async def check_ready(self) -> None:
        """Returns unless the ledger is closed: memory is always ready."""
        self._check_open()

    async def aclose(self) -> None:
        """Forgets all ledgers."""
        with self._lock:
            self._closed = True
            self._rollouts.clear()
            self._fences.clear()

    async def _record(self, commit: CheckedCommit) -> bool:
        with self._lock:
            self._check_open()
            if commit.rollout_id in self._fences:
                return False
            rows = self._rollouts.get(commit.rollout_id) or _Rows()
            existing = rows.commits.get(commit.model_call_id)
            if existing is not None:
                if not existing.same(commit):
                    raise LedgerConflictError(
                        f"call {commit.model_call_id!r} of rollout {commit.rollout_id!r} holds another commit"
                    )
                return True
            if commit.model_call_id in rows.failed_calls:
                raise LedgerConflictError(
                    f"call {commit.model_call_id!r} of rollout {commit.rollout_id!r} has a failure row"
                )
            rows.commits[commit.model_call_id] = commit
            if commit.lookup is not None:
                key = (commit.lookup.fingerprint, commit.fingerprint_version)
                rows.parents.setdefault(key, []).append(commit)
            self._rollouts[commit.rollout_id] = rows
            return True

    async def _record_failure(self, failure: CheckedFailure) -> bool:
        with self._lock:
            self._check_open()
            if failure.rollout_id in self._fences:
                return False
            rows = self._rollouts.setdefault(failure.rollout_id, _Rows())
            rows.failures.setdefault((failure.model_call_id, failure.reason), failure)
            rows.failed_calls.add(failure.model_call_id)
            return True

    async def _manifest(self, rollout_id: str) -> bytes:
        with self._lock:
            return self._joined(rollout_id)

    async def _manifests(self, rollout_ids: list[str], max_bytes: int) -> ManifestsRead:
        read = ManifestsRead([], [], [])
        size = 0
        with self._lock:
            for index, rollout_id in enumerate(rollout_ids):
                try:
                    manifest = self._joined(rollout_id)
                except RolloutRetiredError:
                    read.retired.append(rollout_id)
                    continue
                size += len(manifest)
                if size > max_bytes and index > 0:
                    read.remaining.extend(rollout_ids[index:])
                    break
                read.manifests.append(manifest)
        return read

    async def _has_rows(self, rollout_id: str) -> bool:
        with self._lock:
            rows = self._readable(rollout_id)
            return bool(rows.commits or rows.failures)

    async def _find_parent(self, rollout_id: str, fingerprint: str, fingerprint_version: int) -> CheckedCommit | None:
        with self._lock:
            found = self._readable(rollout_id).parents.get((fingerprint, fingerprint_version), [])
            return found[0] if len(found) == 1 else None

    async def _retire(self, rollout_ids: list[str]) -> RolloutRemoval:
        with self._lock:
            self._check_open()
            now = time.time()
            for rollout_id in rollout_ids:
                self._fences.setdefault(rollout_id, now)
            return self._remove_rows(rollout_ids)

    async def _delete(self, rollout_ids: list[str]) -> RolloutRemoval:
        with self._lock:
            self._check_open()
            for rollout_id in rollout_ids:
                self._fences.pop(rollout_id, None)
            return self._remove_rows(rollout_ids)

    async def _forget_fences(self, older_than: timedelta) -> FenceCount:
        with self._lock:
            self._check_open()
            before = time.time() - older_than.total_seconds()
            forgotten = [rollout_id for rollout_id, fenced_at in self._fences.items() if fenced_at < before]
            for rollout_id in forgotten:
                del self._fences[rollout_id]
            cost = sys.getsizeof(self._fences) + sum(
                sys.getsizeof(rollout_id) + sys.getsizeof(fenced_at) for rollout_id, fenced_at in self._fences.items()
            )
            return FenceCount(len(forgotten), len(self._fences), cost)

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerClosedError("this MemoryLedger is closed")

    def _readable(self, rollout_id: str) -> _Rows:
        self._check_open()
        if rollout_id in self._fences:
            raise RolloutRetiredError(rollout_id)
        return self._rollouts.get(rollout_id) or _Rows()

    def _joined(self, rollout_id: str) -> bytes:
        rows = self._readable(rollout_id)
        return join_manifest(
            rollout_id,
            [commit.record_json for commit in rows.commits.values()],
            [failure.failure_json for failure in rows.failures.values()],
        )

    def _remove_rows(self, rollout_ids: list[str]) -> RolloutRemoval:
        removal = RolloutRemoval(removed=[], absent=[])
        for rollout_id in rollout_ids:
            had_rows = self._rollouts.pop(rollout_id, None) is not None
            (removal.removed if had_rows else removal.absent).append(rollout_id)
        return removal
