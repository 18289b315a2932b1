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


class SchemaMissingError(LedgerUnavailableError):
    """The schema, or something in it, does not exist."""


_UNAVAILABLE: Final = {
    "08": "the connection was lost",
    "40": "the transaction was rolled back in favour of another",
    "53": "the server is out of disk, memory or connections",
    "57": "the server is starting, stopping, or has cancelled the statement",
    "58": "the server's file system failed",
}
"""By class of code: what an attempt made later may find mended."""

_REFUSED: Final = {
    "28": "it does not let this role in: check the user and password of the DSN",
    "3D": "it has no such database: create it, or name another in the DSN",
    "42501": "the role lacks a privilege: docs/postgres.md has the GRANTs",
    "25000": "it would not run in READ COMMITTED: remove default_transaction_isolation from the role and the database",
    "0A": "it lacks a feature: PostgreSQL 13 or newer is needed",
}


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
    told = f"PostgreSQL: {error} ({code})"
    if code == "55P03":
        return LockTimeoutError(f"another transaction holds a lock that this one needs: {told}")
    if code == "25006":
        return LedgerUnavailableError(f"the server is read-only, a standby or on its way to be one: {told}")
    if code in {"3F000", "42P01", "42883"}:
        return SchemaMissingError(f"the ledger's schema is not there, or not whole: {told}")
    if code in {"XX001", "XX002"}:
        return LedgerCorruptError(f"the database is damaged: {told}")
    for table, kind in ((_UNAVAILABLE, LedgerUnavailableError), (_REFUSED, LedgerRefusedError)):
        reason = table.get(code) or table.get(code[:2])
        if reason is not None:
            return kind(f"{reason}: {told}")
    return LedgerError(told)
