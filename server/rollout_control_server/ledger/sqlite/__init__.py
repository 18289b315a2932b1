"""The embedded default: one SQLite file, durable, shared by one machine's processes. docs/sqlite.md describes it."""

from importlib.util import find_spec

if find_spec("apsw") is None:
    raise ModuleNotFoundError("SqliteLedger needs apsw: pip install 'rollout-control[server]'", name="apsw")

from rollout_control_server.ledger.sqlite.ledger import SqliteLedger

__all__ = ["SqliteLedger"]
