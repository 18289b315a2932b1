"""Connections to one database, and attempts that are repeated until a deadline."""

import asyncio
import enum
import logging
import uuid
from typing import Any, Final

import asyncpg

from rollout_control_server.backoff import pauses
from rollout_control_server.errors import LedgerError, LedgerUnavailableError
from rollout_control_server.ledger.postgres.faults import LockTimeoutError, ledger_error_of
from rollout_control_server.ledger.postgres.hosts import (
    Hosts,
    Server,
    Session,
    StaleServerError,
    open_session,
    without_secrets,
)
from rollout_control_server.ledger.postgres.schema import make_schema_ready

logger = logging.getLogger("rollout_control_server.ledger")

MIN_CONNECTIONS: Final = 6
"""One for each use, and one to look for the primary."""

_LOOK_EVERY_S: Final = 1.0
"""How often a server that is slow makes a handle look for another one."""

_LOOK_AT_OTHERS_EVERY_S: Final = 30.0
"""How often a handle in use looks at all hosts: a former primary that has come back is then told that it is one."""

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


class _Pool:
    """The connections to one server, from its start to its end.

    Attributes:
        server: The server.
        dsn: The DSN of its host alone.
        turns: For each use a semaphore; whoever holds it has a connection or makes one.
        idle: Sessions that nobody has.
        opened: How many connections there are or may be: an attempt that nobody waits for any more keeps its own.
        admitted: Whether the database knows of no higher timeline.
    """

    def __init__(self, server: Server, dsn: str, shares: dict[Use, int]) -> None:
        self.server = server
        self.dsn = dsn
        self.turns = {use: asyncio.Semaphore(share) for use, share in shares.items()}
        self.idle: list[Session] = []
        self.opened = 0
        self.admitted = False


class Connections:
    """The connections of one handle, in one event loop, made when they are needed.

    `max_connections` bounds the connections that a server may still have from this handle, whatever became of them. An
    attempt that takes too long is left alone, and keeps its connection and its share until the server answers, since
    closing the socket would end neither a commit that waits for a standby nor its locks. The shares of reads and writes
    are apart, so reads go on while writes wait. A server that was started anew, or another one, begins with none.

    When the server fails or is slow, all hosts of the DSN are asked side by side (`Hosts.find`).

    This is not asyncpg's pool, which has no shares for uses; closes a connection whose statement has timed out, and
    opens another while the server may still have the first; has one address at a time, which is asked until its time is
    over; and knows nothing of timelines. That its `reset` can be replaced since asyncpg 0.30 would save a round trip.

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
        self._schema = schema
        self._attempt_timeout_s = operation_timeout_s / 2
        self._prepared_statements = prepared_statements
        # One is for `Hosts`, which looks for the primary.
        self._max_opened = max_connections - 1
        shares = dict.fromkeys(Use, 1) | {Use.WRITE: max(1, max_connections // 4)}
        shares[Use.READ] += self._max_opened - sum(shares.values())
        self._shares = shares
        self._hosts = Hosts(dsn, schema, prepared_statements=prepared_statements)
        self._pool: _Pool | None = None
        # Of servers that this handle has used and may still have connections to.
        self._pools: dict[Server, _Pool] = {}
        self._search: asyncio.Task[None] | None = None
        self._searched_at = float("-inf")
        self._schema_lock = asyncio.Lock()
        self._schema_is_ready = False
        self._schema_was_ready = False
        self._calls: set[asyncio.Task[list[Any]]] = set()
        self._attempts: set[asyncio.Task[Any]] = set()
        self._sessions: set[Session] = set()
        self._known_servers: set[Server] = set()
        self._closed = False
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
        task.add_done_callback(self._call_ended)
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
        reason: LedgerError | None = None
        while True:
            attempt = uuid.uuid4()
            try:
                return await self._attempt(
                    use, statement, (attempt, earlier, *arguments) if supersedes else arguments, deadline
                )
            except Exception as error:
                fault = ledger_error_of(error)
                if not isinstance(fault, LedgerUnavailableError):
                    raise fault from without_secrets(error)
                # Not where an earlier attempt was lost: it is not superseded yet.
                if isinstance(fault, LockTimeoutError) and not wait_for_locks and not earlier:
                    raise fault from error
                # An attempt that the deadline has cut short says less than one before it.
                if reason is None or not isinstance(error, TimeoutError):
                    reason = fault
                wait_s = next(waits_s)
                if loop.time() + wait_s >= deadline:
                    raise LedgerUnavailableError(f"no attempt succeeded in time; the last fault: {reason}") from error
                self.last_fault = str(reason)
            earlier.append(attempt)
            await asyncio.sleep(wait_s)

    async def aclose(self) -> None:
        """Waits for the calls that were begun, ends what nobody waits for, and closes all connections."""
        while self._calls:
            await asyncio.wait(self._calls)
        self._closed = True
        if self._search is not None:
            self._search.cancel()
            await asyncio.wait([self._search])
        await self._hosts.aclose()
        idle = [session for pool in self._pools.values() for session in pool.idle]
        for session in self._sessions.difference(idle):
            session.connection.terminate()
        for attempt in self._attempts:
            attempt.cancel()
        closing = [asyncio.ensure_future(session.close()) for session in idle]
        if closing:
            await asyncio.wait(closing, timeout=1)
        for session in idle:
            session.connection.terminate()
        if ending := [*closing, *self._attempts]:
            await asyncio.wait(ending)

    async def _attempt(self, use: Use, statement: str, arguments: tuple[object, ...], deadline: float) -> list[Any]:
        loop = asyncio.get_running_loop()
        ends_at = min(deadline, loop.time() + self._attempt_timeout_s)
        if self._hosts.several and loop.time() - self._searched_at > _LOOK_AT_OTHERS_EVERY_S:
            self._look_for_another()
        try:
            async with asyncio.timeout_at(ends_at):
                pool = await self._pool_in_use()
                await pool.turns[use].acquire()
        except TimeoutError:
            self._look_for_another()
            raise
        running = loop.create_task(self._run(pool, use, statement, arguments))
        self._attempts.add(running)
        running.add_done_callback(self._attempt_ended)
        await asyncio.wait([running], timeout=ends_at - loop.time())
        if not running.done():
            self._look_for_another()
            raise TimeoutError
        rows = running.result()
        # While it ran, another server may have been promoted, which lacks what it has done and found.
        self._hosts.check_timeline(pool.server)
        self.last_fault = None
        return rows

    def _call_ended(self, call: asyncio.Task[list[Any]]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            # Taken, so that asyncio doesn't log it where the caller was cancelled.
            call.exception()

    def _attempt_ended(self, attempt: asyncio.Task[Any]) -> None:
        self._attempts.discard(attempt)
        if not attempt.cancelled():
            # Taken, so that asyncio doesn't log it where nobody waits any more.
            attempt.exception()

    async def _run(self, pool: _Pool, use: Use, statement: str, arguments: tuple[object, ...]) -> list[Any]:
        """Runs a statement on a connection of the pool, however long it takes, and gives back the turn of its use."""
        session: Session | None = None
        reusable = False
        try:
            session = self._take_idle(pool) or await self._open(pool)
            await self._admit(pool, session)
            rows = await self._fetch(session, statement, arguments)
            reusable = True
        except _HARMLESS:
            reusable = self._prepared_statements
            raise
        except _SCHEMA_IS_OTHER:
            # Migrated by a newer program, or gone: the next attempt looks.
            self._schema_is_ready = False
            raise
        except Exception as error:
            if _tells_of_its_server(error):
                self._leave(pool)
            raise
        finally:
            try:
                if session is not None:
                    await self._give_back(pool, session, reusable=reusable)
            finally:
                pool.turns[use].release()
        return rows

    def _take_idle(self, pool: _Pool) -> Session | None:
        while pool.idle:
            session = pool.idle.pop()
            if not session.connection.is_closed():
                return session
            self._sessions.discard(session)
            pool.opened -= 1
        return None

    async def _give_back(self, pool: _Pool, session: Session, *, reusable: bool) -> None:
        if reusable and pool is self._pool and not self._closed and not session.connection.is_closed():
            pool.idle.append(session)
            return
        await session.close()
        self._sessions.discard(session)
        pool.opened -= 1
        if pool is not self._pool and not pool.opened:
            self._pools.pop(pool.server, None)

    async def _open(self, pool: _Pool) -> Session:
        pool.opened += 1
        try:
            session = await open_session(pool.dsn, prepared_statements=self._prepared_statements)
        except BaseException:
            pool.opened -= 1
            raise
        self._sessions.add(session)
        if session.server != pool.server:
            await self._give_back(pool, session, reusable=False)
            raise ConnectionResetError("another server answers in the place of the one that did")
        return session

    async def _admit(self, pool: _Pool, session: Session) -> None:
        """Returns when the server has the schema, and knows of no higher timeline than its own."""
        if not self._schema_is_ready:
            async with self._schema_lock:
                if not self._schema_is_ready:
                    await make_schema_ready(session.connection, self._schema, may_create=not self._schema_was_ready)
                    self._schema_is_ready = self._schema_was_ready = True
        if not pool.admitted:
            cluster, timeline = pool.server.cluster, pool.server.timeline
            statement = f'SELECT * FROM "{self._schema}".note_timeline($1, $2)'
            rows = await self._fetch(
                session, statement, (cluster, max(timeline, self._hosts.highest_timeline(cluster)))
            )
            self._hosts.see(cluster, rows[0][0])
            self._hosts.check_timeline(pool.server)
            pool.admitted = True

    async def _fetch(self, session: Session, statement: str, arguments: tuple[object, ...]) -> list[Any]:
        session.replicated = True
        connection = session.connection
        rows: list[Any]
        if self._prepared_statements:
            rows = await connection.fetch(statement, *arguments)
        else:
            # A PgBouncer that knows no prepared statements may give each message of this statement to another server
            # connection, unless they are in one transaction.
            await connection.execute(f"BEGIN; SET LOCAL statement_timeout = {round(self._attempt_timeout_s * 1000)}")
            rows = await connection.fetch(statement, *arguments)
            await connection.execute("COMMIT")
        if not session.replicated:
            raise LedgerUnavailableError(
                "the commit is on the primary only: somebody has cancelled its wait for the synchronous standby"
            )
        return rows

    async def _pool_in_use(self) -> _Pool:
        while self._pool is None:
            search = self._search or self._start_search()
            try:
                await asyncio.shield(search)
            except LedgerError as fault:
                # Several may wait for it, and an exception cannot be raised in several tasks.
                raise type(fault)(*fault.args) from fault
        return self._pool

    def _look_for_another(self) -> None:
        """Looks for a better server; the one in use stays in use unless another is found."""
        if self._search is None and asyncio.get_running_loop().time() - self._searched_at > _LOOK_EVERY_S:
            self._start_search()

    def _start_search(self) -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        self._searched_at = loop.time()
        self._search = search = loop.create_task(self._find_server())
        search.add_done_callback(self._search_ended)
        return search

    def _search_ended(self, search: asyncio.Task[None]) -> None:
        self._search = None
        self._attempt_ended(search)

    async def _find_server(self) -> None:
        # Some of an attempt's time is left for its statement, or for saying what each host answered.
        session = await self._hosts.find(self._attempt_timeout_s * 0.8)
        server = session.server
        if server not in self._pools:
            self._note_server(server)
            self._pools[server] = _Pool(server, session.dsn, self._shares)
        pool = self._pools[server]
        if self._pool is not pool:
            if self._pool is not None:
                self._leave(self._pool)
            self._pool = pool
        pool.opened += 1
        self._sessions.add(session)
        await self._give_back(pool, session, reusable=pool.opened <= self._max_opened)

    def _note_server(self, server: Server) -> None:
        """Logs what an operator should know of a server that this handle has not used yet."""
        clusters = {known.cluster for known in self._known_servers}
        if clusters and server.cluster not in clusters:
            logger.warning(
                "this database cluster has system identifier %s, and the one before had another: a new history, whose "
                "ledgers may differ from those that this handle has served",
                server.cluster,
            )
        if not server.checksums and server.cluster not in clusters:
            logger.warning(
                "the database cluster has no data checksums: PostgreSQL hands out damaged pages as if they were whole. "
                "Turn them on with pg_checksums, while the server is stopped"
            )
        self._known_servers.add(server)

    def _leave(self, pool: _Pool) -> None:
        """Uses a server no more until a search has found it again."""
        if self._pool is pool:
            self._pool = None
        idle, pool.idle = pool.idle, []
        for session in idle:
            closing = asyncio.get_running_loop().create_task(self._give_back(pool, session, reusable=False))
            self._attempts.add(closing)
            closing.add_done_callback(self._attempt_ended)


def _tells_of_its_server(error: Exception) -> bool:
    """Tells whether an error is one of the server or the way to it, rather than of one statement."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(("08", "57P", "25006"))
    return not isinstance(error, LedgerError) or isinstance(error, StaleServerError)
