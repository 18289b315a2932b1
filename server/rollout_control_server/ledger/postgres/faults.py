"""What asyncpg and PostgreSQL raise, as errors of our tree: the one seam.

Codes are those of PostgreSQL's appendix "Error Codes". Messages name no part of the DSN.
"""

from typing import Final

import asyncpg

from rollout_control_server.errors import (
    LedgerCorruptError,
    LedgerError,
    LedgerRefusedError,
    LedgerUnavailableError,
)


class LockTimeoutError(LedgerUnavailableError):
    """A lock was not granted within the lock_timeout of the schema's functions. Nothing was changed."""


_MEANINGS: Final[tuple[tuple[tuple[str, ...], type[LedgerError], str], ...]] = (
    (("55P03",), LockTimeoutError, "another transaction holds a lock that this one needs"),
    (("25006",), LedgerUnavailableError, "the server is read-only, a standby or on its way to be one"),
    (("3F000", "42P01", "42883"), LedgerUnavailableError, "the ledger's schema is not there, or not whole"),
    (("0A",), LedgerUnavailableError, "the schema was changed, and a prepared statement is out of date"),
    (("08",), LedgerUnavailableError, "the connection was lost"),
    (("40",), LedgerUnavailableError, "the transaction was rolled back in favour of another"),
    (("53",), LedgerUnavailableError, "the server is out of disk, memory or connections"),
    (("57",), LedgerUnavailableError, "the server is starting, stopping, or has cancelled the statement"),
    (("58",), LedgerUnavailableError, "the server's file system failed"),
    (("28",), LedgerRefusedError, "the server does not let this role in: check the user and password of the DSN"),
    (("3D",), LedgerRefusedError, "there is no such database: create it, or name another in the DSN"),
    (("42501",), LedgerRefusedError, "the role lacks a privilege: docs/postgres.md has the GRANTs"),
    (("25000",), LedgerRefusedError, "it would not run in READ COMMITTED: change default_transaction_isolation"),
    (("XX001", "XX002"), LedgerCorruptError, "the database is damaged"),
    (("23505",), LedgerCorruptError, "the rows of a rollout do not fit their counts"),
)
"""What codes, or the beginnings of codes, mean. What is unavailable may be mended when it is tried again."""


def ledger_error_of(error: Exception) -> LedgerError:
    """Returns an error of asyncpg, of the operating system or of time as one of our tree."""
    if isinstance(error, LedgerError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        return _of_postgres(error, error.sqlstate or "")
    if isinstance(error, OSError):  # TimeoutError is one.
        return LedgerUnavailableError(f"PostgreSQL cannot be reached, or does not answer: {type(error).__name__}")
    if isinstance(error, asyncpg.ClientConfigurationError | ValueError):
        # Its message may quote the DSN, and so the password.
        return LedgerRefusedError("asyncpg cannot read the DSN: see docs/postgres.md for its form")
    if isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError):
        return LedgerUnavailableError(f"the connection to PostgreSQL was lost: {type(error).__name__}")
    return LedgerError(f"asyncpg failed: {type(error).__name__}")


def _of_postgres(error: asyncpg.PostgresError, code: str) -> LedgerError:
    for codes, kind, meaning in _MEANINGS:
        if code.startswith(codes):
            return kind(f"{meaning}: PostgreSQL says {error} ({code})")
    return LedgerError(f"PostgreSQL says {error} ({code})")
