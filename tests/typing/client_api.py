"""How a trainer uses the client, for the type checkers: `mypy --strict` and pyright read this file, nobody runs it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Literal, assert_type

import httpx
from rollout_control_client import (
    CONTROL_ROUTE_PREFIX,
    MAX_LEDGER_BATCH,
    CallFailure,
    CallRecord,
    ContractBrokenError,
    IdleRemoval,
    ListedRollout,
    OperationNotOfferedError,
    PartialRemoval,
    RemovalRefusedError,
    RequestFailedError,
    RequestTimedOutError,
    RolloutControlClient,
    RolloutControlError,
    RolloutManifest,
    RolloutRemoval,
    RolloutRetiredError,
    RolloutSummary,
    RolloutTree,
    ServerUnreachableError,
    ServiceUnavailableError,
    SyncIterator,
    SyncManifestIterator,
    SyncRolloutControlClient,
    __version__,
    to_rows,
)

prefix: str = CONTROL_ROUTE_PREFIX
limit: int = MAX_LEDGER_BATCH


def train_without_asyncio(rollout_ids: Sequence[str]) -> None:
    assert_type(__version__, str)
    with SyncRolloutControlClient.from_environment(request_timeout_s=30) as client:
        assert_type(client, SyncRolloutControlClient)
        assert_type(client.manifest("r", request_timeout_s=5), RolloutManifest)
        outcomes = client.manifests(rollout_ids)
        assert_type(outcomes, SyncManifestIterator)
        assert_type(outcomes.total, int)
        for rollout_id, outcome in outcomes:
            assert_type(rollout_id, str)
            assert_type(outcome, RolloutManifest | RolloutRetiredError)
        assert_type(client.rollouts(state="live"), SyncIterator[ListedRollout])
        assert_type(client.retire(rollout_ids, wait_s=60), RolloutRemoval)
        assert_type(client.retire_idle(rollout_ids, 3600), IdleRemoval)
        assert_type(client.summary(), RolloutSummary)


def understand(manifest: RolloutManifest) -> None:
    tree = RolloutTree(manifest)
    assert_type(tree.roots, tuple[CallRecord, ...])
    assert_type(tree.leaves, tuple[CallRecord, ...])
    assert_type(tree.chain_to(tree.leaves[0]), tuple[CallRecord, ...])
    assert_type(tree.is_complete, bool)
    assert_type(tree.problems, tuple[str, ...])
    assert_type(tree.weight_versions, tuple[int, ...])
    assert_type(to_rows([manifest])[0]["rollout_id"], Any)


async def train(rollout_ids: Sequence[str]) -> None:
    async with RolloutControlClient("http://model-server:8000", "token", 30) as client:
        assert_type(client, RolloutControlClient)
        manifest = await client.manifest(rollout_ids[0])
        assert_type(manifest, RolloutManifest)
        assert_type(manifest.schema_version, Literal[2])
        assert_type(manifest.records, list[CallRecord])
        assert_type(manifest.failures, list[CallFailure])
        assert_type(manifest.records[0].cum_len, int)
        assert_type(manifest.records[0].parent_call_id, str | None)
        assert_type(manifest.records[0].admitted_at, float | None)
        assert_type(manifest.records[0].mode, Literal["text", "token_in"])

        removal = await client.retire(rollout_ids)
        assert_type(removal, RolloutRemoval)
        assert_type((await client.delete(tuple(rollout_ids))).absent, list[str])


async def read_many(client: RolloutControlClient, rollout_ids: list[str]) -> None:
    outcomes: AsyncIterator[tuple[str, RolloutManifest | RolloutRetiredError]] = client.manifests(rollout_ids)
    async for rollout_id, outcome in outcomes:
        assert_type(rollout_id, str)
        if isinstance(outcome, RolloutRetiredError):
            assert_type(outcome.rollout_id, str)
        else:
            assert_type(outcome, RolloutManifest)

    async with aclosing(client.manifests(rollout_ids, max_concurrency=8)) as closing:
        async for pair in closing:
            assert_type(pair, tuple[str, RolloutManifest | RolloutRetiredError])


async def retire_leaks(client: RolloutControlClient) -> None:
    leaks: list[str] = []
    async with aclosing(client.rollouts(state="live", prefix="run-7.", idle_for_s=21600)) as idle:
        async for rollout in idle:
            assert_type(rollout, ListedRollout)
            assert_type(rollout.state, Literal["live", "retired"])
            assert_type((rollout.calls, rollout.last_recorded_at), tuple[int | None, float | None])
            leaks.append(rollout.rollout_id)
    removal = await client.retire_idle(leaks, idle_for_s=21600)
    assert_type(removal, IdleRemoval)
    assert_type(removal.active, list[str])
    summary = await client.summary()
    assert_type(summary, RolloutSummary)
    assert_type((summary.live, summary.oldest_recorded_at), tuple[int, float | None])


async def handle_errors(client: RolloutControlClient) -> None:
    try:
        await client.retire(["r1"])
    except (RemovalRefusedError, RequestTimedOutError, ServerUnreachableError) as error:
        assert_type(error.partial_removal, PartialRemoval | None)
        if error.partial_removal is not None:
            assert_type(error.partial_removal.finished, RolloutRemoval | IdleRemoval)
            assert_type(error.partial_removal.unconfirmed, list[str])
            assert_type(error.partial_removal.unsent, list[str])
    except ServiceUnavailableError as error:
        assert_type(error.retry_after_s, float | None)
    except OperationNotOfferedError as error:
        assert_type(error.detail, str)
    except RequestFailedError as error:
        assert_type(error.status, int | None)
        assert_type((error.method, error.path, error.detail), tuple[str, str, str])


root: type[RuntimeError] = RolloutControlError
lookup: type[LookupError] = RolloutRetiredError
value: type[ValueError] = ContractBrokenError


def in_process(transport: httpx.ASGITransport) -> RolloutControlClient:
    return RolloutControlClient(
        base_url="http://in-process", auth_token="token", request_timeout_s=0.5, transport=transport
    )
