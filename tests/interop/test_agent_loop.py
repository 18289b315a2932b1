"""An agent's conversation through Gym's own model server on a ledger of ours, and what a trainer makes of it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from gym_model_server import TOKEN
from inference_worker import InferenceWorker
from nemo_gym.token_id_capture.staging.rebuild import LinearizedRow, verify_and_linearize
from nemo_gym.token_id_capture.staging.records import RolloutManifest, RolloutReceipt
from nemo_gym.token_id_capture.staging.terminal import select_terminal_call
from rollout_agent import Agent
from rollout_control_client import RolloutControlClient, RolloutRetiredError

TURNS = 20

StartGym = Callable[..., Awaitable[str]]
StartGymProcess = Callable[..., Awaitable[Any]]
MakeAgent = Callable[..., Agent]
Connect = Callable[[str], RolloutControlClient]


async def read_manifest(base_url: str, rollout_id: str) -> RolloutManifest:
    """Reads it over HTTP, and checks it as Gym does."""
    async with httpx.AsyncClient() as http:
        answer = await http.get(
            f"{base_url}/training-token-capture/control/rollouts/{rollout_id}/manifest",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
    assert answer.status_code == 200, answer.text
    return RolloutManifest.model_validate_json(answer.content)


def train_on(manifest: RolloutManifest, worker: InferenceWorker) -> LinearizedRow:
    """Does what a trainer does at the end: terminal, receipt, and Gym's verification of every staged token."""
    terminal = select_terminal_call(manifest.records)
    assert terminal.reason == "selected"
    receipt = RolloutReceipt(
        rollout_id=manifest.rollout_id,
        terminal_model_call_id=terminal.terminal_model_call_id,
        terminal_selection="heuristic",
        manifest=manifest.records,
    )
    return verify_and_linearize(receipt, worker.fetch([record.staging_key for record in manifest.records]))


async def converse(agent: Agent, worker: InferenceWorker) -> None:
    """Twenty turns. The seventh answer comes twice, and the agent keeps the second."""
    for turn in range(TURNS):
        if turn == 7:
            agent.messages.append({"role": "user", "content": f"question {turn}"})
            lost = await agent.send()
            assert lost.status_code == 200
            agent.hear((await agent.send()).json())
        else:
            await agent.turn(f"question {turn}")


async def check_rollouts(workers: list[str], worker: InferenceWorker, make_agent: MakeAgent, connect: Connect) -> None:
    agent = make_agent("train-0001", *workers)
    await converse(agent, worker)
    for base_url in workers:
        manifest = await read_manifest(base_url, "train-0001")
        assert manifest.failures == []
        assert len(manifest.records) == TURNS + 1
        row = train_on(manifest, worker)
        by_id = {record.model_call_id: record for record in manifest.records}
        assert [by_id[call].response_id for call in row.model_call_ids] == [answer["id"] for answer in agent.answers]

    poisoned = make_agent("train-0002", *workers)
    await poisoned.turn("question 0")
    worker.fails.append("capture")
    await poisoned.turn("question 1")
    # What followed the call that was not captured has no parent: it is served, and not captured.
    await poisoned.turn("question 2")
    manifest = await read_manifest(workers[0], "train-0002")
    assert [record.response_id for record in manifest.records] == [poisoned.answers[0]["id"]]
    assert [failure.reason for failure in manifest.failures] == [
        "worker_capture_failed",
        "request_finished_without_staged_coordinates",
        "unresolved_parent",
    ]

    trainer = connect(workers[0])
    removal = await trainer.retire(["train-0001", "train-0002", "never-heard-of"])
    assert (removal.removed, removal.absent) == (["train-0001", "train-0002"], ["never-heard-of"])
    staged = len(worker.staged)
    await agent.turn("are you still there?")
    assert len(worker.staged) == staged, "a call of a retired rollout was admitted"
    late_root = make_agent("never-heard-of", *workers)
    await late_root.turn("a late first call")
    for rollout_id in ("train-0001", "train-0002", "never-heard-of"):
        for base_url in workers:
            with pytest.raises(RolloutRetiredError):
                await connect(base_url).manifest(rollout_id)
    assert (await trainer.delete(["train-0001"])).absent == ["train-0001"]
    assert (await read_manifest(workers[-1], "train-0001")).records == []


async def test_twenty_turns_on_a_ledger_in_memory(
    worker: InferenceWorker, start_gym: StartGym, make_agent: MakeAgent, connect: Connect
) -> None:
    await check_rollouts([await start_gym("memory://")], worker, make_agent, connect)


async def test_twenty_turns_on_a_file_that_two_worker_processes_share(
    tmp_path: Path,
    worker: InferenceWorker,
    start_gym_process: StartGymProcess,
    make_agent: MakeAgent,
    connect: Connect,
) -> None:
    # The agent's turns alternate between the two: each call's parent was committed in the other process.
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    one, other = await start_gym_process(url), await start_gym_process(url)
    await check_rollouts([one.base_url, other.base_url], worker, make_agent, connect)
    assert (await one.stop(), await other.stop()) == (0, 0)


async def test_killing_a_worker_process_in_a_call_loses_nothing_that_an_agent_has(
    tmp_path: Path,
    worker: InferenceWorker,
    start_gym_process: StartGymProcess,
    make_agent: MakeAgent,
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    killed, left = await start_gym_process(url), await start_gym_process(url)
    agent = make_agent("train-0001", killed.base_url)
    await agent.turn("question 0")
    agent.messages.append({"role": "user", "content": "question 1"})
    worker.generating.clear()
    worker.proceed.clear()
    lost = asyncio.create_task(agent.send())
    await worker.generating.wait()
    await killed.kill()
    with pytest.raises(httpx.TransportError):
        await lost
    worker.proceed.set()

    agent.workers = [left.base_url]
    agent.hear((await agent.send()).json())
    await agent.turn("question 2")
    manifest = await read_manifest(left.base_url, "train-0001")
    assert manifest.failures == []
    assert [record.response_id for record in manifest.records] == [answer["id"] for answer in agent.answers]
    # The worker may have staged the tokens of the lost call; the manifest names none of them.
    assert len(train_on(manifest, worker).model_call_ids) == 3
