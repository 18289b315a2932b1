"""A capture ledger in PostgreSQL, for model servers on many hosts. The only package that imports asyncpg."""

try:
    import asyncpg as _asyncpg  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "PostgresLedger needs asyncpg: install rollout-control[postgres]", name="asyncpg"
    ) from error

from rollout_control_server.ledger.postgres.ledger import PostgresLedger

__all__ = ["PostgresLedger"]
