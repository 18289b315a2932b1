"""The requirements: every one has a check, every check has one, every sentence stands in the spec."""

import tomllib
from importlib.resources import files

import pytest
from rollout_control_check.checking import CHECKED_IDS
from rollout_control_check.examination import CHECKS, OBSERVERS
from rollout_control_check.fuzzing import KNOWN_CHECKS
from rollout_control_check.requirements import (
    A_BATCH_OPERATION,
    RECORDED_ID,
    RECORDER,
    SPEC,
    Requirement,
    requirements,
)
from rollout_control_spec import openapi_yaml


def test_every_requirement_has_a_check_and_every_check_a_requirement() -> None:
    assert set(requirements()) == CHECKED_IDS
    assert not set(CHECKS) & set(OBSERVERS)


@pytest.mark.parametrize("requirement", requirements().values(), ids=lambda requirement: requirement.id)
def test_the_sentence_stands_in_the_spec(requirement: Requirement) -> None:
    words = " ".join(openapi_yaml().decode().split())
    assert requirement.source != SPEC or " ".join(requirement.says.split()) in words


def test_needs_are_requirements() -> None:
    needed = {need for requirement in requirements().values() for need in requirement.needs}
    assert needed <= {*requirements(), A_BATCH_OPERATION, RECORDED_ID, RECORDER}


def test_every_check_of_the_fuzzing_that_is_in_use_is_known() -> None:
    config = tomllib.loads(files("rollout_control_check").joinpath("schemathesis.toml").read_text())
    enabled = {name for name, options in config["checks"].items() if options.get("enabled", True)}
    assert enabled == KNOWN_CHECKS
