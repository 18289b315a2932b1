"""Which call a request continues: Gym's own store and a ledger of ours give the same answers."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from gym_commits import ROLLOUT, Item, gym_commit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nemo_gym.base_responses_api_model import ModelCallCaptureConfig, install_model_call_capture
from nemo_gym.token_id_capture import protocols
from nemo_gym.token_id_capture.config import token_id_capture_config
from nemo_gym.token_id_capture.lineage import FileLineageStore
from nemo_gym.token_id_capture.records import ParentResolutionStatus
from nemo_gym.token_id_capture.staging.records import CaptureLedgerCommit
from postgres_server import running_postgres
from rollout_control_server.gym import GymCaptureLedger

# Few words, so that siblings with the same answer are frequent.
WORDS = st.sampled_from(["yes", "no", "maybe", ""])
PROMPTS = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, WORDS),
    st.builds(lambda text: {"role": "tool", "tool_call_id": "t", "content": text}, WORDS),
    st.builds(lambda text: {"type": "function_call_output", "call_id": "f", "output": text}, WORDS),
    st.builds(lambda text: {"role": "user", "content": [{"type": "text", "text": text}]}, WORDS),
)
ANSWERS = st.one_of(
    st.builds(lambda text: {"role": "assistant", "content": text}, WORDS),
    st.builds(
        lambda text: {"type": "function_call", "call_id": text, "name": "f", "arguments": '{"b": 1, "a": 2}'}, WORDS
    ),
    st.builds(lambda text: {"type": "reasoning", "summary": [text]}, WORDS),
    st.builds(
        lambda text: {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": text, "name": "f", "input": {"x": text}}],
        },
        WORDS,
    ),
)
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            # Which conversation so far is taken up, as a branch, a retry or a continuation.
            "of": st.integers(0, 100),
            "change": st.sampled_from(
                ["continue", "continue", "continue", "retry", "rewrite", "cut", "echo differently"]
            ),
            "prompts": st.lists(PROMPTS, min_size=1, max_size=2),
            "answers": st.lists(ANSWERS, min_size=1, max_size=2),
            "becomes": st.sampled_from(
                ["record", "record", "record", "failure", "old fingerprint", "replay", "conflict"]
            ),
        }
    ),
    max_size=14,
)


def next_request(so_far: list[Item], step: dict[str, Any]) -> list[Item]:
    items = deepcopy(so_far)
    if step["change"] == "retry":
        return items
    if step["change"] == "rewrite" and items:
        items[len(items) // 2] = {"role": "user", "content": "a summary"}
    if step["change"] == "cut":
        items = items[len(items) // 2 :]
    if step["change"] == "echo differently":
        # Another serialisation of the same call, and without what a harness need not echo.
        items = [item for item in items if item.get("type") != "reasoning"]
        for item in items:
            if "arguments" in item:
                item["arguments"] = '{"a":2,"b":1}'
    return [*items, *step["prompts"]]


async def run_both(ours: GymCaptureLedger, gyms: FileLineageStore, steps: list[dict[str, Any]]) -> None:
    conversations: list[list[Item]] = [[]]
    commits: list[CaptureLedgerCommit] = []
    for number, step in enumerate(steps):
        request = next_request(conversations[step["of"] % len(conversations)], step)
        resolution = await gyms.resolve(ROLLOUT, request)
        assert await ours.resolve(ROLLOUT, request) == resolution
        conversations.append([*request, *step["answers"]])
        if step["becomes"] == "failure" or resolution.status == ParentResolutionStatus.UNRESOLVED:
            for ledger in (ours, gyms):
                await ledger.record_failure(ROLLOUT, f"call-{number}", "unresolved_parent")
            continue
        version = 1 if step["becomes"] == "old fingerprint" else 2
        commit = gym_commit(number, request, step["answers"], resolution.match, fingerprint_version=version)
        if step["becomes"] == "replay" and commits:
            commit = commits[step["of"] % len(commits)]
        if step["becomes"] == "conflict" and commits:
            commit = commits[step["of"] % len(commits)]
            commit = commit.model_copy(update={"record": commit.record.model_copy(update={"weight_version": 4})})
            for ledger in (ours, gyms):
                with pytest.raises(ValueError, match=r"conflict|holds another"):
                    await ledger.record(commit)
            continue
        for ledger in (ours, gyms):
            await ledger.record(commit)
        commits.append(commit)
    for conversation in conversations:
        for request in (conversation, [*conversation, {"role": "user", "content": "go on"}]):
            assert await ours.resolve(ROLLOUT, request) == await gyms.resolve(ROLLOUT, request)
    assert await ours.has_rows(ROLLOUT) == await gyms.has_rows(ROLLOUT)
    assert await ours.manifest(ROLLOUT) == await gyms.manifest(ROLLOUT)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/ledger.sqlite"])
@settings(deadline=None, max_examples=150, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_random_conversations_resolve_as_on_gyms_own_store(url: str, steps: list[dict[str, Any]]) -> None:
    async def on_both(folder: str) -> None:
        ours = GymCaptureLedger(url.format(folder))
        try:
            await run_both(ours, FileLineageStore(Path(folder) / "gym"), steps)
        finally:
            await ours.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(on_both(folder))


USER = {"role": "user", "content": "hello"}
ASSISTANT = {"role": "assistant", "content": "hi"}
UNREADABLE = {"role": "assistant", "content": 7}


@pytest.fixture
async def ledger() -> Any:
    ledger = GymCaptureLedger("memory://")
    yield ledger
    await ledger.close()


async def test_a_parent_is_never_guessed(ledger: GymCaptureLedger) -> None:
    await ledger.record(gym_commit(0, [USER], [ASSISTANT]))
    found = await ledger.resolve(ROLLOUT, [USER, ASSISTANT, USER])
    assert found.match is not None
    assert (found.match.model_call_id, found.match.staging_chain) == ("call-0", (f"{ROLLOUT}/call-0",))
    # The same answer in another context: two calls have the fingerprint, so neither is compared with the request.
    await ledger.record(gym_commit(1, [USER, USER], [ASSISTANT]))
    ambiguous = await ledger.resolve(ROLLOUT, [USER, ASSISTANT, USER])
    assert ambiguous.status == ParentResolutionStatus.UNRESOLVED


async def test_items_that_gym_cannot_fingerprint_raise_and_record_nothing(
    ledger: GymCaptureLedger, tmp_path: Path
) -> None:
    for each in (ledger, FileLineageStore(tmp_path)):
        with pytest.raises(ValueError, match="unsupported message content"):
            await each.resolve(ROLLOUT, [USER, UNREADABLE])
        with pytest.raises(ValueError, match="unsupported message content"):
            await each.record(gym_commit(0, [USER], [UNREADABLE]))
        assert not await each.has_rows(ROLLOUT)


async def test_a_failure_row_refuses_the_record_that_comes_after_it(ledger: GymCaptureLedger) -> None:
    await ledger.record_failure(ROLLOUT, "call-0", "worker_capture_failed")
    with pytest.raises(ValueError, match="failure row"):
        await ledger.record(gym_commit(0, [USER], [ASSISTANT]))
    assert (await ledger.resolve(ROLLOUT, [USER, ASSISTANT])).status == ParentResolutionStatus.UNRESOLVED


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.sqlite"
    else:
        with running_postgres() as server:
            yield server.url


async def test_a_call_of_one_handle_is_at_once_a_parent_in_another(shared_url: str) -> None:
    one, other = GymCaptureLedger(shared_url), GymCaptureLedger(shared_url)
    conversation = [USER]
    for number in range(20):
        resolution = await other.resolve(ROLLOUT, conversation)
        assert (resolution.match is None) == (number == 0)
        answer = {"role": "assistant", "content": f"answer {number}"}
        await one.record(gym_commit(number, conversation, [answer], resolution.match))
        conversation = [*conversation, answer, USER]
        one, other = other, one
    assert len((await one.manifest(ROLLOUT))["records"]) == 20
    for ledger in (one, other):
        await ledger.close()


async def test_a_retired_rollout_has_no_parents_and_does_not_begin_again(ledger: GymCaptureLedger) -> None:
    await ledger.record(gym_commit(0, [USER], [ASSISTANT]))
    assert await ledger.retire([ROLLOUT]) == {"removed": [ROLLOUT], "absent": []}
    assert (await ledger.resolve(ROLLOUT, [USER, ASSISTANT])).status == ParentResolutionStatus.UNRESOLVED
    assert await ledger.has_rows(ROLLOUT), "Gym 0.7.0 would admit the call as a new root"
    await ledger.record(gym_commit(1, [USER], [ASSISTANT]))
    await ledger.record_failure(ROLLOUT, "call-2", "unresolved_parent")
    assert await ledger.delete([ROLLOUT]) == {"removed": [], "absent": [ROLLOUT]}
    assert not await ledger.has_rows(ROLLOUT)


async def test_where_gym_has_an_error_for_retired_rollouts_it_is_raised(
    ledger: GymCaptureLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class RolloutRetiredError(LookupError):
        """As releases after 0.7.0 have it."""

    monkeypatch.setattr(protocols, "RolloutRetiredError", RolloutRetiredError, raising=False)
    await ledger.retire([ROLLOUT])
    for asked in (ledger.has_rows, ledger.manifest):
        with pytest.raises(RolloutRetiredError, match=ROLLOUT):
            await asked(ROLLOUT)
    assert (await ledger.resolve(ROLLOUT, [USER, ASSISTANT])).status == ParentResolutionStatus.UNRESOLVED


def configured(**kwargs: Any) -> dict[str, Any]:
    return {
        "token_id_capture": {
            "enabled": True,
            "external_staging": True,
            "rebuild_response": False,
            "lineage_store": "rollout_control_server.gym:GymCaptureLedger",
            "lineage_store_kwargs": kwargs,
        }
    }


def test_gym_builds_it_from_its_configuration_before_any_event_loop_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    ledger = token_id_capture_config(configured(url=url)).build_lineage_store()
    assert isinstance(ledger, protocols.CaptureLedger)
    assert ledger.is_process_shared()
    # The loop that closes it need not be the one that used it.
    assert asyncio.run(ledger.has_rows(ROLLOUT)) is False
    asyncio.run(ledger.close())


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"url": "memory:/"}, "memory://"),
        ({"url": "memory://", "outage_wait_s": 0}, "outage_wait_s must be positive"),
        ({"uri": "memory://"}, "lineage_store_kwargs"),
    ],
)
def test_a_configuration_that_cannot_work_stops_gym_when_it_starts(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        token_id_capture_config(configured(**kwargs)).build_lineage_store()


@pytest.fixture
def install() -> Callable[[dict[str, Any], int], None]:
    def install(config: dict[str, Any], num_workers: int) -> None:
        from fastapi import FastAPI

        install_model_call_capture(
            FastAPI(), ModelCallCaptureConfig(), global_config_dict=config, num_workers=num_workers
        )

    return install


def test_several_workers_need_a_ledger_that_processes_share(
    install: Callable[[dict[str, Any], int], None], tmp_path: Path
) -> None:
    install(configured(url="memory://"), 1)
    with pytest.raises(ValueError, match="process-shared"):
        install(configured(url="memory://"), 2)
    install(configured(url=f"sqlite:///{tmp_path}/ledger.sqlite"), 2)


async def test_it_can_be_installed_by_gyms_own_function(
    install: Callable[[dict[str, Any], int], None], ledger: GymCaptureLedger
) -> None:
    protocols.install_lineage_store(ledger)
    try:
        settings = configured()["token_id_capture"] | {"lineage_store": None}
        install({"token_id_capture": settings}, 1)
    finally:
        protocols.install_lineage_store(None)
