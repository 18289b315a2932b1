"""What README.md and docs/gym.md say about Gym is run as it stands there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo_gym.base_responses_api_model as gym_base
import pytest
import rollout_control_client
from gym_model_server import TOKEN, build_app, serving
from inference_worker import InferenceWorker
from nemo_gym.token_id_capture import control_routes as gym_routes
from omegaconf import OmegaConf
from rollout_agent import Agent
from rollout_control_client import RolloutControlClient, RolloutRetiredError
from rollout_control_server.gym import GymCaptureLedger

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "gym.md").read_text()


def block(language: str, holding: str, text: str = README) -> str:
    """The one block of code that holds these words, which has ten lines or fewer."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    (found,) = (each for each in blocks if holding in each)
    assert len(found.splitlines()) <= 10
    return str(found)


SERVING = block("python", "gym.install_rollout_control_routes = ")
CONFIGURATION = block("yaml", "lineage_store")
TRAINING = block("python", "def read_and_retire")


def test_the_guide_says_the_same() -> None:
    assert block("python", "gym.install_rollout_control_routes = ", GUIDE) == SERVING
    assert block("yaml", "lineage_store", GUIDE) == CONFIGURATION


@pytest.mark.parametrize("on_ours", [False, True])
async def test_gym_serves_and_a_trainer_reads(
    on_ours: bool,
    tmp_path: Path,
    worker: InferenceWorker,
    make_agent: Callable[..., Agent],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gym_base, "install_rollout_control_routes", gym_routes.install_rollout_control_routes)
    exec(SERVING, {})
    configuration = CONFIGURATION.replace("/var/lib/gym", str(tmp_path))
    settings: dict[str, Any] = OmegaConf.to_container(OmegaConf.create(configuration))["token_id_capture"]
    if not on_ours:
        del settings["lineage_store"], settings["lineage_store_kwargs"]
        settings["dir"] = str(tmp_path / "gym")
    trainer = {name: getattr(rollout_control_client, name) for name in rollout_control_client.__all__}
    exec(TRAINING, trainer)

    async with (
        serving(build_app(worker.url, settings)) as base_url,
        RolloutControlClient(base_url, TOKEN, 20) as control,
    ):
        agent = make_agent("train-0001", base_url)
        for question in ("one", "two", "three"):
            await agent.turn(question)
        manifest = await trainer["read_and_retire"](control, "train-0001")
        assert [record.response_id for record in manifest.records] == [answer["id"] for answer in agent.answers]
        if on_ours:
            with pytest.raises(RolloutRetiredError):
                await control.manifest("train-0001")
        else:
            assert await control.manifest("train-0001") == manifest
    assert (tmp_path / "rollouts.sqlite").exists() == on_ours


async def test_a_ledger_of_ours_works_through_gyms_own_routes(
    worker: InferenceWorker, make_agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym_base, "install_rollout_control_routes", gym_routes.install_rollout_control_routes)
    settings = OmegaConf.to_container(OmegaConf.create(CONFIGURATION))["token_id_capture"]
    settings["lineage_store_kwargs"] = {"url": "memory://"}
    async with (
        serving(build_app(worker.url, settings)) as base_url,
        RolloutControlClient(base_url, TOKEN, 20) as control,
    ):
        await make_agent("train-0001", base_url).turn("a question")
        assert len((await control.manifest("train-0001")).records) == 1


def test_the_guides_arguments_are_those_that_there_are() -> None:
    import inspect

    arguments = re.findall(r"^\| `(\w+)` \| .*$", GUIDE.partition("| argument |")[2].partition("\n\n")[0], re.MULTILINE)
    parameters = inspect.signature(GymCaptureLedger).parameters
    assert arguments == list(parameters)
    assert f"{parameters['outage_wait_s'].default:g} unless given" in GUIDE
