"""The server's public API, as its users' type checkers see it; checked, never run."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import assert_type

import httpx
import uvicorn
from litestar import Litestar
from rollout_control_server import (
    CallRecord,
    CaptureCommit,
    CaptureLedger,
    LedgerConflictError,
    LedgerUnavailableError,
    MemoryLedger,
    ParentLookup,
    RolloutRemoval,
    create_app,
    install_rollout_control_routes,
    open_ledger,
)
from rollout_control_server.ledger import FenceCount, SqliteLedger
from rollout_control_server.ledger.base import ManifestsRead
from rollout_control_server.ledger.conformance import SharedLedgerConformance
from rollout_control_spec import openapi_yaml, unique_rollout_ids, validate_rollout_id
from starlette.routing import Mount


async def use_a_ledger(ledger: CaptureLedger, rollout_ids: Sequence[str]) -> None:
    record = CallRecord(
        model_call_id="call",
        parent_call_id=None,
        prev_len=0,
        delta_len=4,
        cum_len=4,
        weight_version=3,
        digest="0" * 64,
        extras_digest="0" * 64,
        staging_key="rollout/call",
        mode="text",
        chain_hash="0" * 64,
        cumulative_hash="0" * 64,
        response_id="response",
        admitted_at=None,
        output_fingerprint=None,
        continuation_fingerprint=None,
        fingerprint_version=0,
    )
    commit = CaptureCommit("rollout", record, ("rollout/call",), ParentLookup("f", 1, "d"))
    try:
        assert_type(await ledger.record(commit), bool)
    except LedgerConflictError as error:
        also_a_value_error: ValueError = error
        print(also_a_value_error)
    except LedgerUnavailableError as error:
        assert_type(error.retry_after_s, int)
    assert_type(await ledger.record_failure("rollout", "call", "reason"), bool)
    assert_type(await ledger.manifest("rollout"), bytes)
    assert_type(await ledger.manifests(rollout_ids, 2**20), ManifestsRead)
    assert_type(await ledger.has_rows("rollout"), bool)
    assert_type(await ledger.find_parent("rollout", "f", 2), CaptureCommit | None)
    assert_type(await ledger.retire(rollout_ids), RolloutRemoval)
    assert_type(await ledger.delete(rollout_ids), RolloutRemoval)
    assert_type(await ledger.forget_fences(timedelta(days=30)), FenceCount)


async def open_ledgers() -> None:
    assert_type(open_ledger("memory://"), CaptureLedger)
    async with MemoryLedger() as memory, SqliteLedger("ledger.sqlite", busy_timeout_s=1) as sqlite:
        assert_type(memory, MemoryLedger)
        assert_type(sqlite, SqliteLedger)


async def refuse_later() -> str | None:
    return None


def serve(ledger: CaptureLedger) -> None:
    app = create_app(ledger, "token", lambda: None, answer_limit=2**20)
    # Whatever serves, calls or mounts ASGI applications takes it.
    uvicorn.Config(app)
    httpx.ASGITransport(app)
    Mount("/models", app)
    install_rollout_control_routes(Litestar(), ledger, "token", refuse_later)


class TestMyLedger(SharedLedgerConformance):
    def open_ledger(self) -> AbstractAsyncContextManager[CaptureLedger]:
        return SqliteLedger("ledger.sqlite")


def agree() -> None:
    assert_type(openapi_yaml(), bytes)
    assert_type(validate_rollout_id("r"), str)
    assert_type(unique_rollout_ids(["r", "r"]), list[str])
