"""The servers that a DSN names: asking all of them at once, and choosing the primary of the newest timeline."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from rollout_control_server.errors import LedgerError, LedgerRefusedError, LedgerUnavailableError
from rollout_control_server.ledger.postgres.faults import ledger_error_of

logger = logging.getLogger("rollout_control_server.ledger")

GRACE_S: Final = 0.5
"""How long the other hosts may still answer after the first primary has. A hanging host costs each search this."""

ALLOWED_OPTIONS: Final = (
    "A ledger URL takes schema=NAME, max_connections=N (at least 6), operation_timeout_s=SECONDS and "
    "prepared_statements=on or off, beside libpq's options and PostgreSQL's own settings"
)
"""What may stand in the query of a ledger's URL."""

_UNKNOWN_SETTING: Final = (
    asyncpg.CantChangeRuntimeParamError,
    asyncpg.InvalidParameterValueError,
    asyncpg.UndefinedObjectError,
)
"""What PostgreSQL says at the start of a session of options that neither we nor asyncpg know."""

# The first eight digits of a WAL file's name are the timeline that is being written.
_DESCRIBE: Final = """
    SELECT
      pg_is_in_recovery(),
      (SELECT system_identifier FROM pg_control_system()),
      CASE WHEN pg_is_in_recovery() THEN 0
        ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint END,
      extract(epoch FROM pg_postmaster_start_time())::double precision,
      current_setting('data_checksums') <> 'off'
"""


class Server(NamedTuple):
    """A running server, as it describes itself.

    Attributes:
        standby: Whether it follows another server.
        cluster: The system identifier of its database cluster, which its standbys share.
        timeline: The timeline that it writes; 0 for a standby. Each promotion begins a higher one.
        started_at: When it was started. A server that was started later has none of the former one's connections.
        checksums: Whether its data pages have checksums.
    """

    standby: bool
    cluster: int
    timeline: int
    started_at: float
    checksums: bool


@dataclass(eq=False)
class Session:
    """A connection to a server.

    Attributes:
        connection: asyncpg's.
        server: The server at the other end, as it was when the connection was made.
        dsn: The DSN of that host alone.
        replicated: Whether no commit since this was last set has failed to wait for its synchronous standby.
    """

    connection: Any
    server: Server
    dsn: str
    replicated: bool = True

    def hear(self, _: Any, message: Any) -> None:
        """Notes a warning that a commit is on this server only: the wait for its standby was cancelled."""
        # The message's text is in the server's language, and its code is that of any warning.
        if message.server_source_function == "SyncRepWaitForLSN":
            self.replicated = False

    async def close(self) -> None:
        """Returns when the server has closed the connection, or the connection was lost."""
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await self.connection.close()
        self.connection.terminate()


class StaleServerError(LedgerUnavailableError):
    """A server is on a lower timeline than one that was seen: it lacks what was acknowledged since the promotion."""


async def open_session(dsn: str, *, prepared_statements: bool) -> Session:
    """Connects to the one host of a DSN, however long that takes, and asks the server what it is.

    Raises:
        LedgerRefusedError: PostgreSQL knows an option of the DSN not.
        Exception: What asyncpg, PostgreSQL or the operating system raise.
    """
    # No time limit: whoever gave up would not know whether the server has made the connection. The system's is minutes.
    try:
        connection = await asyncpg.connect(dsn, timeout=3600, statement_cache_size=100 if prepared_statements else 0)
    except _UNKNOWN_SETTING as error:
        raise LedgerRefusedError(f"PostgreSQL says {error}. {ALLOWED_OPTIONS}") from error
    try:
        # In a transaction, so that a PgBouncer without prepared statements sends all of it to one server connection.
        async with connection.transaction():
            described = await connection.fetchrow(_DESCRIBE)
        session = Session(connection, Server(*described), dsn)
        connection.add_log_listener(session.hear)
    except BaseException:
        connection.terminate()
        raise
    return session


class Hosts:
    """The hosts of one DSN, and the highest timeline that was seen of each database cluster.

    A host that does not answer has one connection being made, whatever the number of searches.

    Attributes:
        several: Whether the DSN names more than one.
    """

    def __init__(self, dsn: str, schema: str, *, prepared_statements: bool) -> None:
        self._dsns = dsns_of(dsn)
        self.several = len(self._dsns) > 1
        self._schema = schema
        self._prepared_statements = prepared_statements
        self._asked: dict[str, asyncio.Task[Session | Exception]] = {}
        self._searching = False
        self._timelines: dict[int, int] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def highest_timeline(self, cluster: int) -> int:
        """Returns the highest timeline that was seen of a cluster, 0 when none was."""
        return self._timelines.get(cluster, 0)

    def see(self, cluster: int, timeline: int) -> None:
        """Notes that a cluster has this timeline."""
        self._timelines[cluster] = max(timeline, self.highest_timeline(cluster))

    def check_timeline(self, server: Server) -> None:
        """Returns if no higher timeline of the server's cluster was seen.

        Raises:
            StaleServerError: One was.
        """
        highest = self.highest_timeline(server.cluster)
        if server.timeline < highest:
            raise StaleServerError(
                f"the server is a former primary: it is on timeline {server.timeline}, and another server of the same "
                f"database cluster (system identifier {server.cluster}) was promoted to timeline {highest}. Stop it, "
                "and make it a standby of that one"
            )

    async def find(self, timeout_s: float) -> Session:
        """Asks all hosts side by side, and returns a session with the primary of the highest timeline.

        It waits for every host, but no longer than `timeout_s`, and than `GRACE_S` after the first primary's answer.

        Raises:
            LedgerRefusedError: No host can be used, and each refused for a reason that has to be mended first.
            LedgerUnavailableError: No host can be used now.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        self._searching = True
        try:
            for dsn in self._dsns:
                if dsn not in self._asked:
                    self._asked[dsn] = loop.create_task(self._ask(dsn))
            pending = set(self._asked.values())
            while pending and loop.time() < ends_at:
                done, pending = await asyncio.wait(
                    pending, timeout=ends_at - loop.time(), return_when=asyncio.FIRST_COMPLETED
                )
                answers = [task.result() for task in done]
                if any(isinstance(answer, Session) and not answer.server.standby for answer in answers):
                    ends_at = min(ends_at, loop.time() + GRACE_S)
        finally:
            self._searching = False
            answered = {dsn: self._asked.pop(dsn).result() for dsn in self._dsns if self._asked[dsn].done()}
        return self._choose(answered)

    async def aclose(self) -> None:
        """Ends what is under way with hosts that have not answered."""
        for task in (*self._asked.values(), *self._closing):
            task.cancel()
            await asyncio.wait([task])

    async def _ask(self, dsn: str) -> Session | Exception:
        try:
            session = await open_session(dsn, prepared_statements=self._prepared_statements)
        except Exception as error:  # whoever has asked translates it
            answer: Session | Exception = error
        else:
            answer = session
        if not self._searching:
            # Nobody waits for it any more, and what it says will have changed when somebody does.
            del self._asked[dsn]
            if isinstance(answer, Session):
                await answer.close()
        return answer

    def _choose(self, answered: dict[str, Session | Exception]) -> Session:
        sessions = [answer for answer in answered.values() if isinstance(answer, Session)]
        for session in sessions:
            if not session.server.standby:
                self.see(session.server.cluster, session.server.timeline)
        faults: list[LedgerError] = []
        chosen: Session | None = None
        for dsn in self._dsns:
            answer = answered.get(dsn, TimeoutError())
            try:
                if isinstance(answer, Exception):
                    raise ledger_error_of(answer) from without_secrets(answer)
                if answer.server.standby:
                    raise LedgerUnavailableError("the server is a standby")
                self.check_timeline(answer.server)
            except LedgerError as fault:
                faults.append(fault)
                continue
            chosen = chosen or answer
        self._close(session for session in sessions if session is not chosen)
        if chosen is None:
            raise _fault_of_all(faults)
        return chosen

    def _close(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            task = asyncio.get_running_loop().create_task(self._close_one(session))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close_one(self, session: Session) -> None:
        highest = self.highest_timeline(session.server.cluster)
        if not session.server.standby and session.server.timeline < highest:
            # So that handles that have never seen the other server refuse this one as well.
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                statement = f'SELECT "{self._schema}".note_timeline($1, $2)'
                async with session.connection.transaction():
                    await session.connection.fetch(statement, session.server.cluster, highest)
        await session.close()


def dsns_of(dsn: str) -> list[str]:
    """Returns a DSN for each host that this one names, in their order; this one itself where it names no more than one.

    Hosts that only PGHOST or a service file names stay together: asyncpg asks them one after the other.
    """
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return [dsn]
    auth, at, addresses = parts.netloc.rpartition("@")
    if "," in addresses:
        return [urlunsplit(parts._replace(netloc=f"{auth}{at}{address}")) for address in addresses.split(",")]
    options = parse_qsl(parts.query, keep_blank_values=True)
    named = dict(options)
    hosts = named.get("host", "").split(",")
    if addresses or len(hosts) < 2:
        return [dsn]
    ports = named.get("port", "").split(",")
    others = [(name, value) for name, value in options if name not in ("host", "port")]
    return [
        urlunsplit(
            parts._replace(
                query=urlencode(
                    [*others, ("host", host), ("port", ports[place] if len(ports) == len(hosts) else ports[0])]
                )
            )
        )
        for place, host in enumerate(hosts)
    ]


def without_secrets(error: Exception) -> Exception | None:
    """Returns an error that may be shown as the cause: not one that may quote the DSN."""
    return None if isinstance(error, asyncpg.ClientConfigurationError | ValueError) else error


def _fault_of_all(faults: list[LedgerError]) -> LedgerError:
    """Returns one error for all hosts: a lasting one only if each host's is. Hosts have numbers, to name no address."""
    if len(faults) == 1:
        return faults[0]
    refused = all(not isinstance(fault, LedgerUnavailableError) for fault in faults)
    told = "; ".join(f"host {number} of {len(faults)}: {fault}" for number, fault in enumerate(faults, 1))
    fault = (type(faults[0]) if refused else LedgerUnavailableError)(f"no host of the DSN can be used: {told}")
    fault.__cause__ = faults[0]
    return fault
