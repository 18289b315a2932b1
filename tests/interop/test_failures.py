"""What happens to a rollout when its ledger's storage fails, or its agent hangs up, through Gym's real middleware.

The rule that all of these keep: no rollout ends with a manifest that looks complete and isn't. A call that the agent
has an answer to is a record, or the manifest has a failure row, or there is no manifest.
"""

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from gym_model_server import TOKEN
from inference_worker import InferenceWorker
from nemo_gym.token_id_capture.records import UNCOMMITTED_CALL_REASON
from rollout_agent import Agent
from rollout_control_client import RolloutControlClient
from rollout_control_server import LedgerUnavailableError, MemoryLedger, RolloutRemoval
from rollout_control_server.gym import LEDGER_UNAVAILABLE_REASON, GymCaptureLedger
from rollout_control_server.ledger.base import CheckedCommit, CheckedFailure
from rollout_control_server.ledger.sqlite.connections import connect as connect_to_file

StartGym = Callable[..., Awaitable[str]]
MakeAgent = Callable[..., Agent]
Connect = Callable[[str], RolloutControlClient]

ROLLOUT = "train-0001"


class ThreadEvent(threading.Event):
    """An event that a coroutine can wait for; the adapter uses its ledger in another thread than the test's."""

    async def happens(self) -> None:
        await asyncio.to_thread(self.wait)


class FailingLedger(MemoryLedger):
    """A ledger whose storage can go down, and can be slow to take a record."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.failures: list[CheckedFailure] = []
        self.refused = ThreadEvent()
        self.take_records = ThreadEvent()
        self.take_records.set()
        self.asked_to_record = ThreadEvent()

    def _check_up(self) -> None:
        if self.down:
            self.refused.set()
            raise LedgerUnavailableError("the storage is down")

    async def _record(self, commit: CheckedCommit) -> bool:
        self.asked_to_record.set()
        await self.take_records.happens()
        self._check_up()
        return await super()._record(commit)

    async def _record_failure(self, failure: CheckedFailure) -> bool:
        self._check_up()
        self.failures.append(failure)
        return await super()._record_failure(failure)

    async def _manifest(self, rollout_id: str) -> bytes:
        self._check_up()
        return await super()._manifest(rollout_id)

    async def _has_rows(self, rollout_id: str) -> bool:
        self._check_up()
        return await super()._has_rows(rollout_id)

    async def _find_parent(self, rollout_id: str, fingerprint: str, fingerprint_version: int) -> CheckedCommit | None:
        self._check_up()
        return await super()._find_parent(rollout_id, fingerprint, fingerprint_version)

    async def _retire(self, rollout_ids: list[str]) -> RolloutRemoval:
        self._check_up()
        return await super()._retire(rollout_ids)

    async def is_asked_again(self) -> None:
        """Waits until the storage, which is down, has refused something more."""
        self.refused.clear()
        await self.refused.happens()


@pytest.fixture
async def ledger(monkeypatch: pytest.MonkeyPatch) -> FailingLedger:
    ledger = FailingLedger()
    monkeypatch.setattr("rollout_control_server.gym.capture_ledger.open_ledger", lambda url: ledger)
    return ledger


@pytest.fixture
async def base_url(ledger: FailingLedger, start_gym: StartGym) -> str:
    return await start_gym("memory://")


@pytest.fixture
def agent(base_url: str, make_agent: MakeAgent) -> Agent:
    return make_agent(ROLLOUT, base_url)


@pytest.fixture
def trainer(base_url: str, connect: Connect) -> RolloutControlClient:
    return connect(base_url)


async def generated_but_not_recorded(agent: Agent, worker: InferenceWorker, ledger: FailingLedger) -> None:
    """Makes a turn, in the middle of which the storage goes down; it stays down."""
    worker.generating.clear()
    worker.proceed.clear()
    turn = asyncio.create_task(agent.turn("a question"))
    await worker.generating.wait()
    ledger.down = True
    worker.proceed.set()
    await turn


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(3000):
        if await holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("this never became true")


async def has_failure(ledger: FailingLedger) -> bool:
    """Asks the ledger itself, as another worker process would."""
    return b'"failures":[]' not in await ledger.manifest(ROLLOUT)


async def reasons_in(trainer: RolloutControlClient) -> list[str]:
    return [failure.reason for failure in (await trainer.manifest(ROLLOUT)).failures]


async def test_an_outage_shorter_than_the_bound_costs_a_wait(
    agent: Agent, trainer: RolloutControlClient, ledger: FailingLedger, start_gym: StartGym
) -> None:
    agent.workers = [await start_gym("memory://", outage_wait_s=60)]
    await agent.turn("question 0")
    ledger.down = True
    turn = asyncio.create_task(agent.turn("question 1"))
    await ledger.is_asked_again()
    ledger.down = False
    await turn
    manifest = await trainer.manifest(ROLLOUT)
    assert (len(manifest.records), manifest.failures) == (2, [])


async def test_storage_down_before_generation_fails_the_call_before_it_costs_anything(
    agent: Agent, worker: InferenceWorker, trainer: RolloutControlClient, ledger: FailingLedger
) -> None:
    await agent.turn("question 0")
    agent.messages.append({"role": "user", "content": "question 1"})
    ledger.down = True
    answer = await agent.send()
    assert answer.status_code == 500
    assert worker.completions == 1
    ledger.down = False
    # There is no row of the refused call, and no answer to it: the agent's retry makes the rollout whole.
    agent.hear((await agent.send()).json())
    manifest = await trainer.manifest(ROLLOUT)
    assert [record.response_id for record in manifest.records] == [answer["id"] for answer in agent.answers]
    assert manifest.failures == []


async def test_storage_down_while_an_unresolved_request_is_noted_fails_that_call_too(
    agent: Agent, worker: InferenceWorker, trainer: RolloutControlClient, ledger: FailingLedger
) -> None:
    await agent.turn("question 0")
    agent.messages[0]["content"] = "a rewritten question"
    agent.messages.append({"role": "user", "content": "question 1"})
    ledger.down = True
    assert (await agent.send()).status_code == 500
    ledger.down = False
    assert (await agent.send()).status_code == 200
    assert worker.completions == 2
    assert await reasons_in(trainer) == ["unresolved_parent"]


async def test_storage_down_after_generation_owes_a_failure_row(
    agent: Agent, worker: InferenceWorker, trainer: RolloutControlClient, ledger: FailingLedger
) -> None:
    await agent.turn("question 0")
    await generated_but_not_recorded(agent, worker, ledger)
    assert len(agent.answers) == 2, "the agent has its completion"

    agent.messages.append({"role": "user", "content": "question 2"})
    assert (await agent.send()).status_code == 500, "a further call is refused"
    assert worker.completions == 2
    manifest_url = f"{agent.workers[0]}/training-token-capture/control/rollouts/{ROLLOUT}/manifest"
    answer = await agent.http.get(manifest_url, headers={"Authorization": f"Bearer {TOKEN}"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")

    ledger.down = False
    manifest = await trainer.manifest(ROLLOUT)
    assert len(manifest.records) == 1
    assert [failure.reason for failure in manifest.failures] == [LEDGER_UNAVAILABLE_REASON]
    agent.hear((await agent.send()).json())
    assert await reasons_in(trainer) == [LEDGER_UNAVAILABLE_REASON, "unresolved_parent"]


async def test_what_is_owed_is_written_without_anybody_asking(
    agent: Agent, worker: InferenceWorker, ledger: FailingLedger
) -> None:
    await generated_but_not_recorded(agent, worker, ledger)
    ledger.down = False
    await eventually(lambda: has_failure(ledger))


async def test_a_first_call_cannot_be_refused_and_owes_a_row_as_well(
    agent: Agent, worker: InferenceWorker, trainer: RolloutControlClient, ledger: FailingLedger
) -> None:
    await generated_but_not_recorded(agent, worker, ledger)
    agent.messages = [{"role": "user", "content": "another beginning"}]
    # Gym asks no ledger about a request without history, so this one is generated.
    assert (await agent.send()).status_code == 200
    ledger.down = False
    assert await reasons_in(trainer) == [LEDGER_UNAVAILABLE_REASON] * 2
    assert (await trainer.manifest(ROLLOUT)).records == []


async def test_a_worker_that_captured_nothing_is_told_of_after_an_outage(
    agent: Agent, worker: InferenceWorker, trainer: RolloutControlClient, ledger: FailingLedger
) -> None:
    worker.fails.append("capture")
    await generated_but_not_recorded(agent, worker, ledger)
    ledger.down = False
    assert await reasons_in(trainer) == ["worker_capture_failed"]


async def test_a_ledger_file_that_another_process_locks(
    tmp_path: Path, worker: InferenceWorker, start_gym: StartGym, make_agent: MakeAgent, connect: Connect
) -> None:
    """Storage that really cannot be written: the rule holds, whatever became of the record that was given up."""
    file = tmp_path / "ledger.sqlite"
    base_url = await start_gym(f"sqlite:///{file}")
    agent, trainer = make_agent(ROLLOUT, base_url), connect(base_url)
    await agent.turn("question 0")
    worker.generating.clear()
    worker.proceed.clear()
    turn = asyncio.create_task(agent.turn("question 1"))
    await worker.generating.wait()
    with contextlib.closing(connect_to_file(file)) as other:
        other.execute("BEGIN IMMEDIATE")
        worker.proceed.set()
        await turn
        agent.messages.append({"role": "user", "content": "question 2"})
        assert (await agent.send()).status_code == 500
        other.execute("ROLLBACK")
    manifest = await trainer.manifest(ROLLOUT)
    assert [failure.reason for failure in manifest.failures] == [LEDGER_UNAVAILABLE_REASON]
    assert manifest.records[0].response_id == agent.answers[0]["id"]


@pytest.mark.parametrize("fails", ["coordinates", "overflow"])
async def test_a_call_without_coordinates_is_a_failure(
    agent: Agent, worker: InferenceWorker, trainer: RolloutControlClient, fails: str
) -> None:
    worker.fails.append(fails)
    await agent.turn("question 0")
    manifest = await trainer.manifest(ROLLOUT)
    assert manifest.records == []
    assert manifest.failures[-1].reason == UNCOMMITTED_CALL_REASON


async def test_an_agent_that_hangs_up_while_its_answer_is_generated_leaves_a_failure(
    agent: Agent, worker: InferenceWorker, trainer: RolloutControlClient, ledger: FailingLedger
) -> None:
    await agent.turn("question 0")
    agent.messages.append({"role": "user", "content": "question 1"})
    worker.generating.clear()
    worker.proceed.clear()
    await hang_up_when(agent, worker.generating.wait)
    await eventually(lambda: has_failure(ledger))
    assert await reasons_in(trainer) == [UNCOMMITTED_CALL_REASON]


async def test_an_agent_that_hangs_up_while_its_call_is_recorded_leaves_a_failure_beside_the_record(
    agent: Agent, trainer: RolloutControlClient, ledger: FailingLedger
) -> None:
    agent.messages.append({"role": "user", "content": "question 0"})
    ledger.take_records.clear()
    await hang_up_when(agent, ledger.asked_to_record.happens)
    await eventually(lambda: has_failure(ledger))
    ledger.take_records.set()
    # The failure came first, so the record is a conflict; either way a failure is there to be seen.
    assert await reasons_in(trainer) == [UNCOMMITTED_CALL_REASON]
    gc.collect()  # asyncio tells then of an error that nobody has asked for, which fails the test


async def test_an_agent_that_hangs_up_during_an_outage_leaves_a_failure(
    agent: Agent, worker: InferenceWorker, trainer: RolloutControlClient, ledger: FailingLedger, start_gym: StartGym
) -> None:
    agent.workers = [await start_gym("memory://", outage_wait_s=60)]
    agent.messages.append({"role": "user", "content": "question 0"})
    worker.generating.clear()
    worker.proceed.clear()
    call = asyncio.create_task(agent.send())
    await worker.generating.wait()
    ledger.down = True
    worker.proceed.set()
    await ledger.is_asked_again()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await ledger.is_asked_again()
    ledger.down = False
    await eventually(lambda: has_failure(ledger))


async def test_late_calls_of_a_retired_rollout_are_answered_and_discarded(
    agent: Agent,
    worker: InferenceWorker,
    trainer: RolloutControlClient,
    make_agent: MakeAgent,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await agent.turn("question 0")
    await trainer.retire([ROLLOUT])
    staged = set(worker.staged)
    await agent.turn("question 1")
    assert set(worker.staged) == staged, "a continuation of a retired rollout is not admitted"
    first_call = make_agent(ROLLOUT, *agent.workers)
    with caplog.at_level(logging.WARNING):
        await first_call.turn("another beginning")
    (late,) = set(worker.staged) - staged
    # The warning is the only pointer that is left to the tokens.
    assert any(late in message for message in caplog.messages)
    assert (await trainer.delete([ROLLOUT])).absent == [ROLLOUT]
    assert (await trainer.manifest(ROLLOUT)).records == []


async def test_retiring_a_rollout_settles_what_it_owes(
    agent: Agent, worker: InferenceWorker, trainer: RolloutControlClient, ledger: FailingLedger
) -> None:
    await generated_but_not_recorded(agent, worker, ledger)
    ledger.down = False
    await trainer.retire([ROLLOUT])
    await trainer.delete([ROLLOUT])
    agent.messages.clear()
    await agent.turn("a new beginning")
    manifest = await trainer.manifest(ROLLOUT)
    assert (len(manifest.records), manifest.failures) == (1, [])


async def test_closing_during_an_outage_says_what_is_lost(
    ledger: FailingLedger, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = GymCaptureLedger("memory://", outage_wait_s=0.05)
    ledger.down = True
    with pytest.raises(LedgerUnavailableError):
        await adapter.record_failure(ROLLOUT, "call-7", "worker_capture_failed")
    with pytest.raises(LedgerUnavailableError):
        await adapter.record_failure(ROLLOUT, "call-7", "request_finished_without_staged_coordinates")
    caplog.clear()
    await adapter.close()
    assert any(ROLLOUT in message and "call-7" in message for message in caplog.messages)
    await adapter.close()


async def test_closing_writes_what_is_owed_and_can_be_written(ledger: FailingLedger) -> None:
    adapter = GymCaptureLedger("memory://", outage_wait_s=0.05)
    ledger.down = True
    with pytest.raises(LedgerUnavailableError):
        await adapter.record_failure(ROLLOUT, "call-7", "worker_capture_failed")
    ledger.down = False
    await adapter.close()
    assert [(failure.model_call_id, failure.reason) for failure in ledger.failures] == [
        ("call-7", "worker_capture_failed")
    ]


async def hang_up_when(agent: Agent, event_happens: Callable[[], Awaitable[object]]) -> None:
    """Sends the agent's request, and closes its connection when the event happens."""
    async with httpx.AsyncClient(timeout=60) as http:
        call = asyncio.create_task(Agent(agent.workers, agent.rollout_id, http, agent.messages).send())
        await event_happens()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
