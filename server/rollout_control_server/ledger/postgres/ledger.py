"""The ledger in a PostgreSQL database."""

import asyncio
import hashlib
import os
import uuid
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, Self
from urllib.parse import parse_qsl, urlencode

import msgspec
from rollout_control_spec import RolloutRetiredError

from rollout_control_server.errors import (
    LedgerClosedError,
    LedgerConflictError,
    LedgerError,
)
from rollout_control_server.ledger.base import (
    CaptureLedger,
    CheckedCommit,
    CheckedFailure,
    FenceCount,
    ManifestsRead,
    join_manifest,
)
from rollout_control_server.ledger.bulk_answer import BulkAnswer
from rollout_control_server.ledger.postgres.connections import MIN_CONNECTIONS, Connections, Use
from rollout_control_server.ledger.postgres.group_commit import GroupCommit
from rollout_control_server.ledger.postgres.purge import Purger
from rollout_control_server.ledger.postgres.rows import ImportedRow, Outcome, Row, imported_rows
from rollout_control_server.ledger.postgres.schema import check_name
from rollout_control_server.ledger.postgres.stored_rows import check_json, commit_of_parent, export_of
from rollout_control_server.ledger.results import (
    IdleRemoval,
    RolloutEntry,
    RolloutExport,
    RolloutFilter,
    RolloutPage,
    RolloutSummary,
)
from rollout_control_server.records import RolloutRemoval

__all__ = ["PostgresLedger"]

_FENCES_AT_A_TIME: Final = 5000

_URL_OPTIONS: Final[dict[str, Callable[[str], object]]] = {
    "schema": str,
    "max_connections": int,
    "operation_timeout_s": float,
    "prepared_statements": {"on": True, "off": False}.__getitem__,
}


class _InUse:
    """What a handle has once it is used: it belongs to one event loop of one process."""

    def __init__(self, connections: Connections, operation_timeout_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.process_id = os.getpid()
        self.connections = connections
        self.writer = GroupCommit(connections)
        self.purger = Purger(connections, operation_timeout_s)


class PostgresLedger(CaptureLedger):
    """Keeps ledgers in a schema of a PostgreSQL database (13 or newer), for model servers on many hosts.

    Building it connects to nothing; the first operation does, and makes the schema. From then on the handle belongs to
    the event loop of that operation. docs/postgres.md tells how to run it, docs/scale.md how far it goes.

    Args:
        dsn: A connection URI as libpq knows it, `postgresql://USER:PASSWORD@HOST/DATABASE?sslmode=verify-full`.
        schema: The PostgreSQL schema that holds the tables.
        max_connections: How many connections this handle may have, at least 6.
        operation_timeout_s: Seconds that an operation may take with all its attempts; one attempt may take half of it.
        prepared_statements: Whether to use named prepared statements. Without them an operation takes four round trips
            instead of one, and works through a PgBouncer older than 1.21 in transaction mode.

    Raises:
        ValueError: One of the arguments cannot be.
    """

    process_shared = True

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "rollout_control",
        max_connections: int = 8,
        operation_timeout_s: float = 5.0,
        prepared_statements: bool = True,
    ) -> None:
        if not dsn.startswith(("postgresql://", "postgres://")):
            raise ValueError("the DSN of a PostgresLedger begins with postgresql://")
        if max_connections < MIN_CONNECTIONS:
            raise ValueError(f"max_connections must be at least {MIN_CONNECTIONS}, and is {max_connections}")
        if not operation_timeout_s > 0:
            raise ValueError(f"operation_timeout_s must be above 0, and is {operation_timeout_s}")
        self._dsn = dsn
        self._schema = check_name(schema)
        self._max_connections = max_connections
        self._operation_timeout_s = operation_timeout_s
        self._prepared_statements = prepared_statements
        self._in_use: _InUse | None = None
        self._closed = False

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Returns the ledger that a ledger URL names: a DSN, whose query may hold the constructor's options too.

        For instance `postgresql://HOST/DATABASE?schema=run_7&prepared_statements=off`.

        Raises:
            ValueError: An option has a value that cannot be.
        """
        address, _, query = url.partition("?")
        options: dict[str, Any] = {}
        rest: list[tuple[str, str]] = []
        for name, text in parse_qsl(query, keep_blank_values=True):
            if name not in _URL_OPTIONS:
                rest.append((name, text))
                continue
            try:
                options[name] = _URL_OPTIONS[name](text)
            except (KeyError, ValueError):
                raise ValueError(f"{name} cannot be {text[:80]!r} in a ledger URL") from None
        return cls(f"{address}?{urlencode(rest)}" if rest else address, **options)

    def __repr__(self) -> str:
        return f"PostgresLedger(schema={self._schema!r})"

    async def check_ready(self) -> None:
        """Returns if the database answers, has the schema, and takes writes."""
        await self._call(Use.READ, "check_ready")

    async def aclose(self) -> None:
        """Waits for what was begun, which takes at most the operations' timeout, and closes the connections."""
        self._closed = True
        used, self._in_use = self._in_use, None
        if used is not None and used.loop is asyncio.get_running_loop() and used.process_id == os.getpid():
            await used.purger.aclose()
            await used.writer.drain()
            await used.connections.aclose()

    async def _record(self, commit: CheckedCommit) -> bool:
        used, deadline = self._use()
        outcome = await used.writer.write(Row.of_commit(commit), msgspec.json.encode(commit.staging_chain), deadline)
        if outcome is Outcome.HOLDS_ANOTHER_COMMIT:
            raise LedgerConflictError(
                f"call {commit.model_call_id!r} of rollout {commit.rollout_id!r} holds another commit"
            )
        if outcome is Outcome.HAS_FAILED:
            raise LedgerConflictError(
                f"call {commit.model_call_id!r} of rollout {commit.rollout_id!r} has a failure row"
            )
        return outcome is Outcome.KEPT

    async def _record_failure(self, failure: CheckedFailure) -> bool:
        used, deadline = self._use()
        return await used.writer.write(Row.of_failure(failure), None, deadline) is Outcome.KEPT

    async def _manifest(self, rollout_id: str) -> bytes:
        rows = await self._call(Use.READ, "manifest", rollout_id)
        if rows and rows[0][0] is None:
            raise RolloutRetiredError(rollout_id)
        return _join(rollout_id, rows)

    async def _manifests(self, rollout_ids: list[str], max_bytes: int) -> ManifestsRead:
        answer = BulkAnswer(rollout_ids, max_bytes)
        rows = await self._call(Use.READ, "manifests", rollout_ids, max_bytes)
        for dealt_with, group in groupby(rows, key=itemgetter(0)):
            rollout_id = rollout_ids[dealt_with - 1]
            first, *others = ((failed, row_json, json_crc) for _, failed, row_json, json_crc in group)
            if first[0] is None:
                answer.add_retired(rollout_id)
            else:
                answer.add_manifest(_join(rollout_id, others))
        return answer.read()

    async def _has_rows(self, rollout_id: str) -> bool:
        rows = await self._call(Use.READ, "is_fenced", rollout_id)
        if rows[0][0]:
            raise RolloutRetiredError(rollout_id)
        return rows[0][0] is not None

    async def _find_parent(self, rollout_id: str, fingerprint: str, fingerprint_version: int) -> CheckedCommit | None:
        rows = await self._call(
            Use.READ,
            "find_parent",
            rollout_id,
            hashlib.sha256(fingerprint.encode()).digest(),
            fingerprint_version,
        )
        if not rows:
            return None
        if rows[0]["record_json"] is None and rows[0]["chain_digest"] is None:
            raise RolloutRetiredError(rollout_id)
        return commit_of_parent(rollout_id, fingerprint, rows[0])

    async def _retire(self, rollout_ids: list[str]) -> RolloutRemoval:
        return await self._remove("retire", rollout_ids)

    async def _delete(self, rollout_ids: list[str]) -> RolloutRemoval:
        return await self._remove("delete", rollout_ids)

    async def _retire_idle(self, rollout_ids: list[str], idle_for_s: float) -> IdleRemoval:
        rows = await self._call(Use.REMOVE, "retire_idle", uuid.uuid4(), sorted(rollout_ids), idle_for_s)
        removed, active = map(frozenset, rows[0])
        self._purge(removed)
        return IdleRemoval(
            removed=[rollout_id for rollout_id in rollout_ids if rollout_id in removed],
            absent=[rollout_id for rollout_id in rollout_ids if rollout_id not in removed | active],
            active=[rollout_id for rollout_id in rollout_ids if rollout_id in active],
        )

    async def _remove(self, function: str, rollout_ids: list[str]) -> RolloutRemoval:
        rows = await self._call(Use.REMOVE, function, uuid.uuid4(), sorted(rollout_ids))
        had_rows = frozenset(rows[0][0])
        self._purge(had_rows)
        return RolloutRemoval(
            removed=[rollout_id for rollout_id in rollout_ids if rollout_id in had_rows],
            absent=[rollout_id for rollout_id in rollout_ids if rollout_id not in had_rows],
        )

    async def _forget_fences(self, older_than: timedelta) -> FenceCount:
        forgotten = kept = kept_bytes = 0
        last_id: str | None = ""
        while last_id is not None:
            rows = await self._call(Use.REMOVE, "forget_fences", last_id, older_than.total_seconds(), _FENCES_AT_A_TIME)
            last_id, *counts = rows[0]
            forgotten, kept, kept_bytes = (
                total + count for total, count in zip((forgotten, kept, kept_bytes), counts, strict=True)
            )
        return FenceCount(forgotten, kept, kept_bytes)

    async def _export(self, rollout_id: str) -> RolloutExport:
        return export_of(rollout_id, await self._call(Use.READ, "export_rows", rollout_id))

    async def _import(self, rollouts: list[RolloutExport]) -> None:
        rollouts = sorted(rollouts, key=attrgetter("rollout_id"))
        rows = [row for export in rollouts for row in imported_rows(export)]
        columns = [[row[column] for row in rows] for column in range(len(ImportedRow._fields))]
        await self._call(
            Use.REMOVE,
            "import_rollouts",
            uuid.uuid4(),
            [export.rollout_id for export in rollouts],
            [export.retired_at for export in rollouts],
            *columns,
        )
        self._purge(frozenset(export.rollout_id for export in rollouts))

    async def _list_rollouts(self, matching: RolloutFilter, limit: int, after: str | None) -> RolloutPage:
        # One more than is shown tells whether there are more.
        rows = await self._call(
            Use.READ,
            "list_rollouts",
            matching.state,
            matching.prefix,
            matching.idle_for_s,
            matching.changed_since,
            matching.has_failures,
            limit + 1,
            after or "",
        )
        page = [_entry(row) for row in rows[:limit]]
        return RolloutPage(page, page[-1].rollout_id if len(rows) > limit else None)

    async def _summary(self) -> RolloutSummary:
        rows = await self._call(Use.READ, "summary")
        return RolloutSummary(*rows[0])

    async def _call(self, use: Use, function: str, *arguments: object) -> list[Any]:
        used, deadline = self._use()
        return await used.connections.call(use, function, *arguments, deadline=deadline)

    def _purge(self, removed: Collection[str]) -> None:
        """Has the rows of these rollouts deleted in the background, unless the handle was closed meanwhile."""
        if removed and self._in_use is not None:
            self._in_use.purger.nudge(removed=True)

    def _use(self) -> tuple[_InUse, float]:
        """Returns what the handle works with in this event loop, and by when an operation that begins now must end."""
        if self._closed:
            raise LedgerClosedError("this PostgresLedger is closed")
        loop = asyncio.get_running_loop()
        used = self._in_use
        if used is None:
            connections = Connections(
                self._dsn,
                self._schema,
                max_connections=self._max_connections,
                operation_timeout_s=self._operation_timeout_s,
                prepared_statements=self._prepared_statements,
            )
            used = self._in_use = _InUse(connections, self._operation_timeout_s)
        elif used.process_id != os.getpid():
            raise LedgerError("this PostgresLedger was used before this process was forked: build one in each process")
        elif used.loop is not loop:
            raise LedgerError("this PostgresLedger belongs to the event loop that first used it: build one for each")
        used.purger.nudge()
        return used, loop.time() + self._operation_timeout_s


def _join(rollout_id: str, rows: Iterable[Any]) -> bytes:
    """Returns a manifest of rows that are each whether it is a failure, its JSON, and the CRC-32 of that."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for failed, row_json, json_crc in rows:
        parts[failed].append(check_json(rollout_id, failed, row_json, json_crc))
    return join_manifest(rollout_id, *parts)


def _entry(row: Any) -> RolloutEntry:
    rollout_id, calls, failures, first_recorded_at, last_recorded_at, retired_at, changed_at = row
    if retired_at is not None:
        return RolloutEntry(rollout_id, "retired", None, None, None, None, retired_at, changed_at)
    return RolloutEntry(
        rollout_id, "live", calls, failures, first_recorded_at, last_recorded_at, retired_at, changed_at
    )
