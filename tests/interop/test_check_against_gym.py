"""The contract check against the released Gym's own control routes, on Gym's own ledger."""

import asyncio
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI
from nemo_gym.token_id_capture.control_routes import install_rollout_control_routes
from nemo_gym.token_id_capture.lineage import FileLineageStore
from peer_vectors import rollout_of, write_into_gyms
from rollout_control_check.checking import Report, check_server
from rollout_control_check.fuzzing import Fuzzing
from rollout_control_check.recorder import command_recorder
from rollout_control_check.requirements import Verdict
from served import TOKEN, serving

CASE = "mixed"

# What nemo-gym 0.7.0 does otherwise than the contract, and the status that shows it.
DEPARTURES = {
    "retire.offered": "404",
    "delete.offered": "404",
    "auth.not-ascii": "500",
    "auth.challenge": "401",
    "auth.before-path": "404",
    "auth.before-all-else": "405",
    # Its store makes a file's name of an id, and adds to it.
    "ids.valid": "500",
    "ids.too-long": "500",
    "ids.invalid-in-path": "500",
    "ids.dot-segments": "200",
    # Seen first where it lacks the optional listing.
    "errors.media-type": "404",
    "errors.members": "404",
    "errors.none-internal": "500",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    store = FileLineageStore(tmp_path_factory.mktemp("gym"))
    asyncio.run(write_into_gyms(store, CASE))
    app = FastAPI()
    install_rollout_control_routes(app, store, auth_token=TOKEN)
    with serving(app) as base_url:
        return check_server(base_url, TOKEN, recorded_id=rollout_of(CASE), fuzzing=Fuzzing(10))


def test_it_says_where_gym_departs_from_the_contract(report: Report) -> None:
    departures = {name: one.came[:3] for name, one in report.outcomes.items() if one.verdict is Verdict.BROKEN}
    assert departures == DEPARTURES


def test_it_ends_by_itself_and_says_what_it_could_not_check(report: Report) -> None:
    assert report.complete
    assert report.falls_short
    unchecked = {name: one.why for name, one in report.outcomes.items() if one.verdict is Verdict.NOT_CHECKED}
    assert unchecked["retire.gone"] == "needs retire.offered, which is broken"
    assert unchecked["delete.absent"] == "needs delete.offered, which is broken"
    assert "--record-command" in unchecked["manifest.records"]
    assert unchecked["manifests.offered"] == "an optional operation, which this server does not have"


def test_gyms_rows_are_those_of_the_contract(report: Report) -> None:
    holding = {name for name, one in report.outcomes.items() if one.verdict is Verdict.HOLDS}
    assert {
        "records.schema",
        "records.sums",
        "failures.schema",
        "manifest.not-empty",
        "success.exact-fields",
    } <= holding


def test_every_requirement_on_manifests_holds_where_rows_are_recorded(tmp_path: Path) -> None:
    app = FastAPI()
    install_rollout_control_routes(app, FileLineageStore(tmp_path), auth_token=TOKEN)
    record = command_recorder(f"{sys.executable} {Path(__file__).with_name('record_in_gym.py')} {tmp_path}")
    with serving(app) as base_url:
        report = check_server(base_url, TOKEN, recorder=record)
    verdicts = {
        name: one.verdict
        for name, one in report.outcomes.items()
        if name.startswith(("manifest.", "records.", "failures.", "success."))
    }
    # The record command of Gym 0.7.0 refuses a record with fields that its CallRecord does not have.
    assert verdicts.pop("records.further-fields") is Verdict.NOT_CHECKED
    assert set(verdicts.values()) == {Verdict.HOLDS}
