"""The reference ledger: plain dictionaries in one process, gone with it."""

import sys
import threading
import time
from collections import defaultdict
from datetime import timedelta

from rollout_control_spec import RolloutRetiredError

from rollout_control_server.errors import LedgerClosedError, LedgerConflictError
from rollout_control_server.ledger.base import CaptureLedger, join_manifest
from rollout_control_server.ledger.bulk_answer import BulkAnswer
from rollout_control_server.ledger.checked_rows import CheckedCommit, CheckedFailure
from rollout_control_server.ledger.results import (
    FenceCount,
    IdleRemoval,
    LedgerRow,
    ManifestsRead,
    RolloutEntry,
    RolloutExport,
    RolloutFilter,
    RolloutPage,
    RolloutSummary,
)
from rollout_control_server.records import RolloutRemoval

__all__ = ["MemoryLedger"]


class _Rollout:
    """The rows of one rollout, in the order of their writing, and what finds them."""

    __slots__ = ("changed_at", "commits", "failed_calls", "failures", "parents", "rows")

    def __init__(self) -> None:
        self.rows: list[LedgerRow] = []
        self.commits: dict[str, CheckedCommit] = {}
        self.failures: dict[tuple[str, str], CheckedFailure] = {}
        self.failed_calls: set[str] = set()
        self.parents: defaultdict[tuple[str, int], list[CheckedCommit]] = defaultdict(list)
        self.changed_at: float | None = None

    def append(self, row: CheckedCommit | CheckedFailure, recorded_at: float | None) -> None:
        self.rows.append(LedgerRow(row, recorded_at))
        if isinstance(row, CheckedFailure):
            self.failures[row.model_call_id, row.reason] = row
            self.failed_calls.add(row.model_call_id)
            return
        self.commits[row.model_call_id] = row
        if row.lookup is not None:
            self.parents[row.lookup.fingerprint, row.fingerprint_version].append(row)

    def idle_at(self, moment: float) -> bool:
        """Tells whether the last row was recorded at a known time, which is not after the moment."""
        last = self.rows[-1].recorded_at
        return last is not None and last <= moment


class MemoryLedger(CaptureLedger):
    """Keeps everything in this process's memory: for tests, demos and single-process servers that may forget.

    Every method does its work in one step without awaiting, under a lock, so it is atomic for tasks and threads.
    """

    process_shared = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A rollout is in one of the two, or in neither. A fence is the time of its setting and of its last change.
        self._rollouts: dict[str, _Rollout] = {}
        self._fences: dict[str, tuple[float, float]] = {}
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
            rollout = self._rollouts.get(commit.rollout_id) or _Rollout()
            existing = rollout.commits.get(commit.model_call_id)
            if existing is not None:
                if not existing.same(commit):
                    raise LedgerConflictError(
                        f"call {commit.model_call_id!r} of rollout {commit.rollout_id!r} holds another commit"
                    )
                return True
            if commit.model_call_id in rollout.failed_calls:
                raise LedgerConflictError(
                    f"call {commit.model_call_id!r} of rollout {commit.rollout_id!r} has a failure row"
                )
            self._append(rollout, commit)
            return True

    async def _record_failure(self, failure: CheckedFailure) -> bool:
        with self._lock:
            self._check_open()
            if failure.rollout_id in self._fences:
                return False
            rollout = self._rollouts.get(failure.rollout_id) or _Rollout()
            if (failure.model_call_id, failure.reason) not in rollout.failures:
                self._append(rollout, failure)
            return True

    async def _manifest(self, rollout_id: str) -> bytes:
        with self._lock:
            return self._joined(rollout_id)

    async def _manifests(self, rollout_ids: list[str], max_bytes: int) -> ManifestsRead:
        answer = BulkAnswer(rollout_ids, max_bytes)
        with self._lock:
            for rollout_id in rollout_ids:
                try:
                    manifest = self._joined(rollout_id)
                except RolloutRetiredError:
                    answer.add_retired(rollout_id)
                    continue
                if len(manifest) > answer.room:
                    break
                answer.add_manifest(manifest)
        return answer.read()

    async def _has_rows(self, rollout_id: str) -> bool:
        with self._lock:
            return bool(self._readable(rollout_id).rows)

    async def _find_parent(self, rollout_id: str, fingerprint: str, fingerprint_version: int) -> CheckedCommit | None:
        with self._lock:
            found = self._readable(rollout_id).parents.get((fingerprint, fingerprint_version), [])
            return found[0] if len(found) == 1 else None

    async def _retire(self, rollout_ids: list[str]) -> RolloutRemoval:
        with self._lock:
            self._check_open()
            self._fence(rollout_ids)
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
            forgotten = [rollout_id for rollout_id, (fenced_at, _) in self._fences.items() if fenced_at < before]
            for rollout_id in forgotten:
                del self._fences[rollout_id]
            cost = sys.getsizeof(self._fences) + sum(
                sys.getsizeof(rollout_id) + sys.getsizeof(times) + sum(map(sys.getsizeof, times))
                for rollout_id, times in self._fences.items()
            )
            return FenceCount(len(forgotten), len(self._fences), cost)

    async def _export(self, rollout_id: str) -> RolloutExport:
        with self._lock:
            self._check_open()
            fence = self._fences.get(rollout_id)
            rollout = self._rollouts.get(rollout_id)
            return RolloutExport(rollout_id, fence[0] if fence else None, list(rollout.rows) if rollout else [])

    async def _import(self, rollouts: list[RolloutExport]) -> None:
        with self._lock:
            self._check_open()
            for export in rollouts:
                self._rollouts.pop(export.rollout_id, None)
                self._fences.pop(export.rollout_id, None)
                if export.retired_at is not None:
                    self._fences[export.rollout_id] = (export.retired_at, time.time())
                elif export.rows:
                    rollout = self._rollouts[export.rollout_id] = _Rollout()
                    rollout.changed_at = time.time()
                    for row, recorded_at in export.rows:
                        rollout.append(row, recorded_at)

    async def _list_rollouts(self, matching: RolloutFilter, limit: int, after: str | None) -> RolloutPage:
        with self._lock:
            self._check_open()
            now = time.time()
            page: list[RolloutEntry] = []
            for rollout_id in sorted(self._rollouts.keys() | self._fences.keys()):
                if (after is not None and rollout_id <= after) or not self._matches(rollout_id, matching, now):
                    continue
                if len(page) == limit:
                    return RolloutPage(page, page[-1].rollout_id)
                page.append(self._entry(rollout_id))
            return RolloutPage(page, None)

    async def _summary(self) -> RolloutSummary:
        with self._lock:
            self._check_open()
            live = self._rollouts.values()
            known = [at for rollout in live if (at := rollout.rows[0].recorded_at) is not None]
            return RolloutSummary(
                live=len(live),
                retired=len(self._fences),
                with_failures=sum(bool(rollout.failures) for rollout in live),
                rows=sum(len(rollout.rows) for rollout in live),
                waiting_rows=0,
                oldest_recorded_at=min(known, default=None),
            )

    async def _retire_idle(self, rollout_ids: list[str], idle_for_s: float) -> IdleRemoval:
        with self._lock:
            self._check_open()
            moment = time.time() - idle_for_s
            removal = IdleRemoval([], [], [])
            for rollout_id in rollout_ids:
                rollout = self._rollouts.get(rollout_id)
                if rollout is None:
                    removal.absent.append(rollout_id)
                else:
                    (removal.removed if rollout.idle_at(moment) else removal.active).append(rollout_id)
            self._fence(removal.removed)
            self._remove_rows(removal.removed)
            return removal

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerClosedError("this MemoryLedger is closed")

    def _append(self, rollout: _Rollout, row: CheckedCommit | CheckedFailure) -> None:
        rollout.changed_at = time.time()
        rollout.append(row, rollout.changed_at)
        self._rollouts[row.rollout_id] = rollout

    def _readable(self, rollout_id: str) -> _Rollout:
        self._check_open()
        if rollout_id in self._fences:
            raise RolloutRetiredError(rollout_id)
        return self._rollouts.get(rollout_id) or _Rollout()

    def _joined(self, rollout_id: str) -> bytes:
        rollout = self._readable(rollout_id)
        return join_manifest(
            rollout_id,
            [commit.record_json for commit in rollout.commits.values()],
            [failure.failure_json for failure in rollout.failures.values()],
        )

    def _fence(self, rollout_ids: list[str]) -> None:
        now = time.time()
        for rollout_id in rollout_ids:
            self._fences.setdefault(rollout_id, (now, now))

    def _remove_rows(self, rollout_ids: list[str]) -> RolloutRemoval:
        removal = RolloutRemoval(removed=[], absent=[])
        for rollout_id in rollout_ids:
            had_rows = self._rollouts.pop(rollout_id, None) is not None
            (removal.removed if had_rows else removal.absent).append(rollout_id)
        return removal

    def _matches(self, rollout_id: str, matching: RolloutFilter, now: float) -> bool:
        rollout = self._rollouts.get(rollout_id)
        if not rollout_id.startswith(matching.prefix):
            return False
        if matching.state is not None and (matching.state == "live") != (rollout is not None):
            return False
        changed_at = self._fences[rollout_id][1] if rollout is None else rollout.changed_at
        if matching.changed_since is not None and changed_at is not None and changed_at < matching.changed_since:
            return False
        if matching.idle_for_s is not None and (rollout is None or not rollout.idle_at(now - matching.idle_for_s)):
            return False
        return matching.has_failures is None or (
            rollout is not None and bool(rollout.failures) == matching.has_failures
        )

    def _entry(self, rollout_id: str) -> RolloutEntry:
        rollout = self._rollouts.get(rollout_id)
        if rollout is None:
            retired_at, changed_at = self._fences[rollout_id]
            return RolloutEntry(rollout_id, "retired", None, None, None, None, retired_at, changed_at)
        return RolloutEntry(
            rollout_id,
            "live",
            calls=len(rollout.commits),
            failures=len(rollout.failures),
            first_recorded_at=rollout.rows[0].recorded_at,
            last_recorded_at=rollout.rows[-1].recorded_at,
            retired_at=None,
            changed_at=rollout.changed_at,
        )
