"""A capture ledger in PostgreSQL, for model servers on many hosts. The only package that imports asyncpg."""

from importlib.util import find_spec

if find_spec("asyncpg") is None:
    raise ModuleNotFoundError("PostgresLedger needs asyncpg: pip install 'rollout-control[postgres]'", name="asyncpg")

from rollout_control_server.ledger.postgres.ledger import PostgresLedger

__all__ = ["PostgresLedger"]
