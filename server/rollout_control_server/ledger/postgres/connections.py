"""Connections to one database, and attempts that are repeated until a deadline."""

import asyncio
import enum
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from rollout_control_server.backoff import pauses
from rollout_control_server.errors import LedgerRefusedError, LedgerUnavailableError
from rollout_control_server.ledger.postgres.faults import LockTimeoutError, ledger_error_of
from rollout_control_server.ledger.postgres.schema import make_schema_ready

MIN_CONNECTIONS: Final = 5
"""One for each use."""

ALLOWED_OPTIONS: Final = (
    f"A ledger URL takes schema=NAME, max_connections=N (at least {MIN_CONNECTIONS}), operation_timeout_s=SECONDS and "
    "prepared_statements=on or off, beside libpq's options and PostgreSQL's own settings"
)
"""What may stand in the query of a ledger's URL."""

_UNKNOWN_SETTING: Final = (
    asyncpg.CantChangeRuntimeParamError,
    asyncpg.InvalidParameterValueError,
    asyncpg.UndefinedObjectError,
)
"""What PostgreSQL says at the start of a session of options that neither we nor asyncpg know."""

_HARMLESS: Final = (asyncpg.LockNotAvailableError, asyncpg.TransactionRollbackError)
"""Errors after which a connection is as good as before, unless it is left in a transaction."""

_SCHEMA_IS_OTHER: Final = (
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedTableError,
)


class Use(enum.Enum):
    """What a connection is taken for. Each has connections of its own, so that none can starve another."""

    READ = enum.auto()
    WRITE = enum.auto()
    CONTENDED_WRITE = enum.auto()
    REMOVE = enum.auto()
    PURGE = enum.auto()


class Connections:
    """A pool for one event loop, whose connections are made when they are needed.

    A connection is kept only after an attempt that ended well, or with an error that says that it is well. There is no
    state in a session, so nothing is reset in between. asyncpg's own pool spends a round trip on that, and waits for a
    connection that is stalled.

    Attributes:
        last_fault: What the last attempt ended with; None when it ended well.
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
        self._calls: set[asyncio.Task[list[Any]]] = set()
        self.last_fault: str | None = None

    def share(self, use: Use) -> int:
        """Returns how many connections a use may have at a time."""
        return self._shares[use]

    async def call(
        self,
        use: Use,
        function: str,
        *arguments: object,
        deadline: float,
        supersedes: bool = False,
        wait_for_locks: bool = True,
    ) -> list[Any]:
        """Returns the rows of one of the schema's functions, which must be safe to repeat.

        After a fault it is repeated, on another connection, until the deadline: the outcome of an attempt whose
        connection died at its commit is unknown.

        Args:
            use: Which share of the connections it takes.
            function: Its name.
            arguments: Its parameters.
            supersedes: Whether it takes two more parameters before these: the attempt's id, and those of earlier ones.
            deadline: The event loop's time.
            wait_for_locks: Whether a lock that is not granted is a fault to be repeated.

        Raises:
            LedgerError: As `ledger_error_of` translates what happened.
        """
        placeholders = ", ".join(f"${number}" for number in range(1, len(arguments) + 1 + 2 * supersedes))
        statement = f'SELECT * FROM "{self._schema}".{function}({placeholders})'
        calling = self._call(use, statement, arguments, deadline, supersedes=supersedes, wait_for_locks=wait_for_locks)
        # A caller that is cancelled leaves it to end by itself: asyncpg would ask the server to cancel the statement,
        # by yet another connection.
        task = asyncio.get_running_loop().create_task(calling)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return await asyncio.shield(task)

    async def _call(
        self,
        use: Use,
        statement: str,
        arguments: tuple[object, ...],
        deadline: float,
        *,
        supersedes: bool,
        wait_for_locks: bool,
    ) -> list[Any]:
        loop = asyncio.get_running_loop()
        waits_s = pauses(0.02, 0.5)
        earlier: list[uuid.UUID] = []
        while True:
            attempt = uuid.uuid4()
            try:
                async with self._turn(use, deadline):
                    return await self._attempt(
                        statement, (attempt, earlier, *arguments) if supersedes else arguments, deadline
                    )
            except Exception as error:
                fault = ledger_error_of(error)
                if not isinstance(fault, LedgerUnavailableError):
                    raise fault from _without_secrets(error)
                # Not where an earlier attempt was lost: it is not superseded yet.
                if isinstance(fault, LockTimeoutError) and not wait_for_locks and not earlier:
                    raise fault from error
                wait_s = next(waits_s)
                if loop.time() + wait_s >= deadline:
                    raise LedgerUnavailableError(f"in time there was only this: {fault}") from error
                self.last_fault = str(fault)
            earlier.append(attempt)
            await asyncio.sleep(wait_s)

    async def aclose(self) -> None:
        """Waits for the calls that were begun, and closes all connections."""
        while self._calls:
            await asyncio.wait(self._calls)
        idle, self._idle = self._idle, []
        for connection in idle:
            try:
                await connection.close(timeout=1)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                connection.terminate()

    @asynccontextmanager
    async def _turn(self, use: Use, deadline: float) -> AsyncIterator[None]:
        async with asyncio.timeout_at(deadline):
            await self._turns[use].acquire()
        try:
            yield
        finally:
            self._turns[use].release()

    async def _attempt(self, statement: str, arguments: tuple[object, ...], deadline: float) -> list[Any]:
        loop = asyncio.get_running_loop()
        ends_at = min(deadline, loop.time() + self._attempt_timeout_s)
        connection = self._take_idle() or await self._connect(ends_at - loop.time())
        expiry = loop.call_at(ends_at, connection.terminate)
        try:
            if not self._schema_is_ready:
                await self._make_schema_ready(connection)
            rows = await self._fetch(connection, statement, arguments)
        except BaseException as error:
            if isinstance(error, _SCHEMA_IS_OTHER):
                # Migrated by a newer program, or gone: the next attempt looks.
                self._schema_is_ready = False
            if isinstance(error, _HARMLESS) and self._prepared_statements:
                self._idle.append(connection)
            else:
                self._drop(connection)
            if isinstance(error, Exception) and loop.time() >= ends_at:
                raise TimeoutError from error
            raise
        finally:
            expiry.cancel()
        self._idle.append(connection)
        self.last_fault = None
        return rows

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

    def _take_idle(self) -> Any | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _connect(self, timeout_s: float) -> Any:
        try:
            return await asyncpg.connect(
                self._dsn, timeout=timeout_s, statement_cache_size=100 if self._prepared_statements else 0
            )
        except _UNKNOWN_SETTING as error:
            raise LedgerRefusedError(f"PostgreSQL says {error}. {ALLOWED_OPTIONS}") from error

    def _drop(self, connection: Any) -> None:
        """Drops a connection that has failed, and the idle ones, which are likely to have the same fault."""
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
