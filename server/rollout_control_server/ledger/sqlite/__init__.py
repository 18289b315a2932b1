"""The embedded default: one SQLite file, durable, shared by one machine's processes. docs/sqlite.md describes it."""

from rollout_control_server.ledger.sqlite.ledger import SqliteLedger

__all__ = ["SqliteLedger"]
