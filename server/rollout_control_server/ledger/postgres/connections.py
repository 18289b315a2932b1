"""Connections to one database, and attempts that are repeated until a deadline."""

import asyncio
import enum
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from rollout_control_server.errors import LedgerUnavailableError
from rollout_control_server.ledger.postgres.faults import LockTimeoutError, ledger_error_of
from rollout_control_server.ledger.postgres.schema import make_schema_ready

MIN_CONNECTIONS: Final = 5
"""One for each use."""

_HARMLESS: Final = (asyncpg.LockNotAvailableError, asyncpg.TransactionRollbackError)
"""Errors after which a connection is as good as before, unless it is left in a transaction."""


class Use(enum.Enum):
    """What a connection is taken for. Each has connections of its own, so that none can starve another."""

    READ = enum.auto()
    WRITE = enum.auto()
    CONTENDED_WRITE = enum.auto()
    REMOVE = enum.auto()
    PURGE = enum.auto()


class Connections:
    """A pool for one event loop, whose connections are made when they are needed.

    A connection is kept only after an attempt that ended well or with an error of a single statement; after a
    fault, all idle ones are dropped too, as they are likely to have it. There is no state in a session, so nothing is
    reset in between. asyncpg's own pool spends a round trip on that, and waits for a stalled connection.
    """

    def __init__(
        self,
        dsn: str,
        schema: str,
        *,
        max_connections: int,
        operation_timeout_s: float,
        prepared_statements: bool,
    ) -> None:
        self._dsn = dsn
        self._schema = schema
        self._attempt_timeout_s = operation_timeout_s / 2
        self._prepared_statements = prepared_statements
        shares = dict.fromkeys(Use, 1) | {Use.WRITE: max(1, max_connections // 4)}
        shares[Use.READ] += max_connections - sum(shares.values())
        self._shares = shares
        self._turns = {use: asyncio.Semaphore(share) for use, share in shares.items()}
        self._idle: list[Any] = []
        self._schema_lock = asyncio.Lock()
        self._schema_is_ready = False
        self._schema_was_ready = False
        self._calls = 0
        self._no_calls = asyncio.Event()

    def share(self, use: Use) -> int:
        """Returns how many connections a use may have at a time."""
        return self._shares[use]

    async def call(
        self, use: Use, function: str, *arguments: object, deadline: float, wait_for_locks: bool = True
    ) -> list[Any]:
        """Returns the rows of one of the schema's functions, which must be safe to repeat.

        After a fault it is repeated, on another connection, until the deadline: the outcome of an attempt whose
        connection died at its commit is unknown.

        Args:
            use: Which share of the connections it takes.
            function: Its name.
            arguments: Its parameters.
            deadline: The event loop's time.
            wait_for_locks: Whether a lock that is not granted is a fault to be repeated.

        Raises:
            LedgerError: As `ledger_error_of` translates what happened.
        """
        placeholders = ", ".join(f"${number}" for number in range(1, len(arguments) + 1))
        statement = f'SELECT * FROM "{self._schema}".{function}({placeholders})'
        self._calls += 1
        try:
            return await self._call(use, statement, arguments, deadline, wait_for_locks=wait_for_locks)
        finally:
            self._calls -= 1
            if not self._calls:
                self._no_calls.set()

    async def _call(
        self, use: Use, statement: str, arguments: tuple[object, ...], deadline: float, *, wait_for_locks: bool
    ) -> list[Any]:
        loop = asyncio.get_running_loop()
        pause_s = 0.02
        while True:
            try:
                async with asyncio.timeout_at(deadline), self._turns[use]:
                    return await self._attempt(statement, arguments, deadline)
            except Exception as error:
                fault = ledger_error_of(error)
                give_up = not isinstance(fault, LedgerUnavailableError) or (
                    isinstance(fault, LockTimeoutError) and not wait_for_locks
                )
                wait_s = pause_s * random.uniform(0.5, 1.0)
                if give_up or loop.time() + wait_s >= deadline:
                    raise fault from _without_secrets(error)
            await asyncio.sleep(wait_s)
            pause_s = min(pause_s * 2, 0.5)

    async def aclose(self) -> None:
        """Waits for the calls that were begun, and closes all connections."""
        while self._calls:
            self._no_calls.clear()
            await self._no_calls.wait()
        idle, self._idle = self._idle, []
        for connection in idle:
            try:
                await connection.close(timeout=1)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                connection.terminate()

    async def _attempt(self, statement: str, arguments: tuple[object, ...], deadline: float) -> list[Any]:
        attempt_deadline = min(deadline, asyncio.get_running_loop().time() + self._attempt_timeout_s)
        async with asyncio.timeout_at(attempt_deadline), self._connection() as connection:
            if not self._schema_is_ready:
                await self._make_schema_ready(connection)
            try:
                return await self._fetch(connection, statement, arguments)
            except (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError):
                # Migrated by a newer program, or gone: the next attempt looks.
                self._schema_is_ready = False
                raise

    async def _fetch(self, connection: Any, statement: str, arguments: tuple[object, ...]) -> list[Any]:
        if self._prepared_statements:
            rows: list[Any] = await connection.fetch(statement, *arguments)
            return rows
        # A PgBouncer that knows no prepared statements may give each message of this statement to another server
        # connection, unless they are in one transaction.
        await connection.execute(f"BEGIN; SET LOCAL statement_timeout = {round(self._attempt_timeout_s * 1000)}")
        rows = await connection.fetch(statement, *arguments)
        await connection.execute("COMMIT")
        return rows

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        connection = self._take_idle() or await self._connect()
        try:
            yield connection
        except BaseException as error:
            if isinstance(error, _HARMLESS) and self._prepared_statements:
                self._idle.append(connection)
            else:
                self._drop(connection)
            raise
        else:
            self._idle.append(connection)

    def _take_idle(self) -> Any | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _connect(self) -> Any:
        return await asyncpg.connect(
            self._dsn, timeout=self._attempt_timeout_s, statement_cache_size=100 if self._prepared_statements else 0
        )

    def _drop(self, connection: Any) -> None:
        for dropped in (connection, *self._idle):
            dropped.terminate()
        self._idle.clear()

    async def _make_schema_ready(self, connection: Any) -> None:
        async with self._schema_lock:
            if not self._schema_is_ready:
                await make_schema_ready(connection, self._schema, may_create=not self._schema_was_ready)
                self._schema_is_ready = self._schema_was_ready = True


def _without_secrets(error: Exception) -> Exception | None:
    """Returns an error that may be shown as the cause: not one that may quote the DSN."""
    return None if isinstance(error, asyncpg.ClientConfigurationError | ValueError) else error
