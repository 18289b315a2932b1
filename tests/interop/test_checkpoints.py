"""What Gym's checkpoints ask of a ledger, on each ledger of ours."""

import asyncio
import json
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import newer_gym
import pytest
from gym_commits import USER, converse, gym_commit
from nemo_gym.token_id_capture.records import ParentResolutionStatus
from nemo_gym.token_id_capture.staging.records import RolloutManifest
from postgres_server import running_postgres
from rollout_control_server import LedgerUnavailableError, MemoryLedger
from rollout_control_server.gym import GymCaptureLedger
from rollout_control_server.ledger.base import CheckedFailure

Rows = list[dict[str, Any]]

FAILURE = {"model_call_id": "call-f", "failure_reason": "unresolved_parent"}


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        yield "memory://"
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.sqlite"
    else:
        with running_postgres() as server:
            yield server.url


@pytest.fixture
async def ledger(url: str) -> AsyncGenerator[GymCaptureLedger, None]:
    ledger = GymCaptureLedger(url)
    yield ledger
    await ledger.close()


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    newer_gym.install(monkeypatch)


async def some_rows(tmp_path: Path, rollout_id: str = "r", calls: int = 5) -> Rows:
    """Returns rows as Gym's own store writes them, a failure row among them."""
    store = newer_gym.CheckpointedStore(tmp_path / "gym")
    await converse(store, rollout_id, calls)
    await store.record_failure(rollout_id, "call-f", "unresolved_parent")
    return store.export_rows(rollout_id)


async def call_ids(ledger: GymCaptureLedger, rollout_id: str) -> list[str]:
    return [record["model_call_id"] for record in (await ledger.manifest(rollout_id))["records"]]


async def test_exported_rows_are_those_of_gyms_own_store(ledger: GymCaptureLedger, tmp_path: Path) -> None:
    store = newer_gym.CheckpointedStore(tmp_path / "gym")
    for each in (ledger, store):
        items = await converse(each, "r", 4)
        await each.record_failure("r", "call-f", "unresolved_parent")
        # The same request again, and a request and response without anything that the model wrote.
        await each.record(gym_commit(8, items, [{"role": "assistant", "content": "yes"}], rollout_id="r"))
        await each.record(gym_commit(9, [USER], [], rollout_id="r"))
    assert ledger.export_rows("r") == store.export_rows("r")


async def test_a_checkpoint_of_either_ledger_restores_on_the_other(
    ledger: GymCaptureLedger, tmp_path: Path, newer: None
) -> None:
    store = newer_gym.CheckpointedStore(tmp_path / "gym")
    items = await converse(ledger, "ours", 4, newer_gym.CallRecord)
    await converse(store, "gyms", 4)
    for one, other, rollout_id in ((ledger, store, "ours"), (store, ledger, "gyms")):
        await one.record_failure(rollout_id, "call-f", "unresolved_parent")
        rows = json.loads(json.dumps(one.export_rows(rollout_id)))
        other.import_rows(f"{rollout_id}-a1", deepcopy(rows))
        assert other.export_rows(f"{rollout_id}-a1") == rows
        before, after = await one.resolve(rollout_id, items), await other.resolve(f"{rollout_id}-a1", items)
        assert after == before
        assert after.status == ParentResolutionStatus.RESOLVED
        assert await call_ids(ledger, f"{rollout_id}-a1" if other is ledger else rollout_id) == [
            f"call-{number}" for number in range(4)
        ]


async def test_restored_calls_are_parents_and_name_the_attempt_that_staged_them(
    ledger: GymCaptureLedger, newer: None
) -> None:
    items = await converse(ledger, "r", 3, newer_gym.CallRecord)
    other = await converse(ledger, "q-a4", 2, newer_gym.CallRecord)
    before = await ledger.resolve("r", items)
    ids = newer_gym.restore(ledger, {one: ledger.export_rows(one) for one in ("r", "q-a4")})
    assert ids == {"r": "r-a1", "q-a4": "q-a5"}
    for rollout_id, request in (("r", items), ("q-a4", other)):
        found = await ledger.resolve(ids[rollout_id], request)
        assert found == await ledger.resolve(rollout_id, request)
        assert found.match is not None
        assert found.match.staging_chain[0] == f"{rollout_id}/call-0"
    assert await ledger.resolve("r-a1", items) == before
    # The next call continues the chain, and has been staged under its own attempt.
    answer = {"role": "assistant", "content": "yes"}
    await ledger.record(
        gym_commit(7, items, [answer], before.match, rollout_id="r-a1", record_type=newer_gym.CallRecord)
    )
    manifest = newer_gym.RolloutManifest.model_validate(await ledger.manifest("r-a1"))
    assert [record.capture_key for record in manifest.records] == ["r", "r", "r", None]
    assert await ledger.retire(["r", "q-a4"]) == {"removed": ["r", "q-a4"], "absent": []}
    # A second restore keeps the key of the attempt that staged the tokens.
    newer_gym.restore(ledger, {"r-a1": ledger.export_rows("r-a1")})
    manifest = newer_gym.RolloutManifest.model_validate(await ledger.manifest("r-a2"))
    assert [record.capture_key for record in manifest.records] == ["r", "r", "r", "r-a1"]
    # What no attempt starts is deleted.
    assert await ledger.delete(["r-a2"]) == {"removed": ["r-a2"], "absent": []}


async def test_rows_come_back_as_they_were_imported(ledger: GymCaptureLedger, tmp_path: Path) -> None:
    rows = await some_rows(tmp_path)
    rows[0] |= {"capture_key": None, "x": None, "y": {"z": [1, None, "\x00"]}}
    rows[1] |= {"schema_version": 2, "digest": "f" * 64, "failure_reason": None, "output_fingerprint": ""}
    for name in ("admitted_at", "output_fingerprint", "staging_chain", "fingerprint_version", "parent_call_id"):
        del rows[0][name]
    rows[2] |= {"admitted_at": 1764450000, "capture_key": "q"}
    del rows[3]["context_digest"]
    rows.insert(1, FAILURE | {"model_call_id": "call-g", "note": None, "more": 7})
    ledger.import_rows("r", deepcopy(rows))
    assert ledger.export_rows("r") == rows
    manifest = await ledger.manifest("r")
    assert len(manifest["records"]) == 5, "a manifest leaves out no row"
    assert [failure["model_call_id"] for failure in manifest["failures"]] == ["call-g", "call-f"]
    # The released Gym's client refuses every field that it does not know.
    RolloutManifest.model_validate(manifest)


async def test_of_unknown_keys_a_manifest_serves_what_gyms_record_declares(
    ledger: GymCaptureLedger, tmp_path: Path, newer: None
) -> None:
    rows = await some_rows(tmp_path)
    rows[0] |= {"capture_key": None, "x": 1}
    rows[1] |= {"capture_key": "r", "x": None}
    ledger.import_rows("r-a1", deepcopy(rows))
    records = (await ledger.manifest("r-a1"))["records"]
    assert [record.get("capture_key", "absent") for record in records] == ["absent", "r"] + ["absent"] * 3
    assert not any("x" in record for record in records)
    assert ledger.export_rows("r-a1") == rows


async def test_an_import_clears_later_attempts_and_no_look_alikes(ledger: GymCaptureLedger, tmp_path: Path) -> None:
    rows = await some_rows(tmp_path, calls=2)
    kept = ["r", "r1-a2", "r-a1x-a3", "r-a1-a2", "r-a", "r-a02", "xr-a2", "r-b2"]
    cleared = ["r-a2", "r-a10", "r-a11"]
    ledger.import_rows_many(dict.fromkeys([*kept, "r-a1", *cleared[:2]], rows))
    await ledger.retire(["r-a1", "r-a11", "r-a3"])
    ledger.import_rows("r-a1", rows[:1])
    assert await call_ids(ledger, "r-a1") == ["call-0"]
    for rollout_id in (*cleared, "r-a3"):
        assert ledger.export_rows(rollout_id) == []
        assert await ledger.has_rows(rollout_id) is False
    for rollout_id in kept:
        assert ledger.export_rows(rollout_id) == rows
    # No rows clear the target and what follows; those that the batch names itself are not cleared.
    ledger.import_rows_many({"r": [], "r-a5": rows})
    assert [ledger.export_rows(one) for one in ("r", "r-a1", "r-a5")] == [[], [], rows]


def damages(rows: Rows) -> dict[str, Any]:
    """Returns rows that cannot be restored, by what is wrong with them."""
    record, failure = rows[1], rows[-1]
    return {
        "no list": {"rows": rows},
        "no object": [record, "text"],
        "no staging key": [{name: value for name, value in record.items() if name != "staging_key"}],
        "no response id": [{name: value for name, value in record.items() if name != "response_id"}],
        "another schema": [record | {"schema_version": 3}],
        "a wrong sum": [record | {"cum_len": 1}],
        "a number as text": [record | {"weight_version": "3"}],
        "no digest": [record | {"staging_digest": "f"}],
        "a chain of numbers": [record | {"staging_chain": [1]}],
        "a chain that is text": [record | {"staging_chain": "r/call-0"}],
        "a call twice": [record, record],
        "a record after its failure": [failure | {"model_call_id": record["model_call_id"]}, record],
        "a reason that is no text": [failure | {"failure_reason": 3}],
        "an empty call id": [failure | {"model_call_id": ""}],
        "no JSON": [record | {"x": float("nan")}],
        "a number beyond all": [record | {"x": 2**64}],
    }


async def test_a_batch_is_checked_whole_before_anything_is_written(ledger: GymCaptureLedger, tmp_path: Path) -> None:
    rows = await some_rows(tmp_path, calls=2)
    ledger.import_rows_many({"r": rows, "r-a1": rows})
    for damage, bad in damages(rows).items():
        with pytest.raises(ValueError, match=r".+"):
            ledger.import_rows_many({"r": rows[:1], "s": bad})
        with pytest.raises(ValueError, match=r".+"):
            ledger.import_rows("s", bad)
        assert [ledger.export_rows(one) for one in ("r", "r-a1", "s")] == [rows, rows, []], damage
    with pytest.raises(ValueError, match="invalid rollout id"):
        ledger.import_rows_many({"r": [], "a/b": rows})
    assert ledger.export_rows("r") == rows


async def test_importing_again_leaves_the_imported_rows_alone(
    ledger: GymCaptureLedger, url: str, tmp_path: Path
) -> None:
    rows = await some_rows(tmp_path)
    items = await converse(ledger, "s", 5)
    for lifted in (False, True):
        if lifted:
            await ledger.retire(["r-a1"])
        ledger.import_rows("r-a1", rows)
        found = await ledger.resolve("r-a1", items)
        answer = {"role": "assistant", "content": "yes"}
        await ledger.record(gym_commit(7, items, [answer], found.match, rollout_id="r-a1"))
        assert len(await call_ids(ledger, "r-a1")) == 6
        ledger.import_rows("r-a1", rows)
        assert ledger.export_rows("r-a1") == rows
    if url != "memory://":
        other = GymCaptureLedger(url)
        other.import_rows("r-a1", rows[:2])
        assert await call_ids(ledger, "r-a1") == ["call-0", "call-1"]
        assert (await ledger.resolve("r-a1", items)).match is None
        ledger.import_rows("r-a1", rows)
        assert other.export_rows("r-a1") == rows
        await other.close()


async def test_without_rows_an_export_is_empty(ledger: GymCaptureLedger, caplog: pytest.LogCaptureFixture) -> None:
    await converse(ledger, "deleted", 2)
    await converse(ledger, "retired", 2)
    await ledger.delete(["deleted"])
    await ledger.retire(["retired"])
    assert [ledger.export_rows(one) for one in ("unknown", "deleted", "retired")] == [[], [], []]
    assert ["retired" in line for line in caplog.messages] == [True]


async def test_rows_move_in_any_thread_while_calls_go_on(ledger: GymCaptureLedger, tmp_path: Path) -> None:
    """On the thread of the running loop too: nothing that they wait for needs that loop."""
    rows = await some_rows(tmp_path)
    calls = [asyncio.create_task(converse(ledger, f"live-{number}", 5)) for number in range(4)]
    for number in range(6):
        await asyncio.sleep(0)
        ledger.import_rows(f"here-{number}", rows)
        await asyncio.to_thread(ledger.import_rows, f"there-{number}", rows)
        assert await asyncio.to_thread(ledger.export_rows, f"here-{number}") == rows
        assert ledger.export_rows(f"there-{number}") == rows
    await asyncio.gather(*calls)
    for number in range(4):
        assert len(ledger.export_rows(f"live-{number}")) == 5


def test_it_serves_several_event_loops(url: str) -> None:
    """One after the other, and at the same time."""
    ledger = GymCaptureLedger(url)
    asyncio.run(converse(ledger, "first", 3))
    asyncio.run(converse(ledger, "second", 3))
    both = threading.Barrier(2)

    def run(rollout_id: str) -> None:
        both.wait()
        asyncio.run(converse(ledger, rollout_id, 10))

    threads = [threading.Thread(target=run, args=(rollout_id,)) for rollout_id in ("third", "fourth")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(ledger.export_rows(one)) for one in ("first", "second", "third", "fourth")] == [3, 3, 10, 10]
    asyncio.run(ledger.close())
    asyncio.run(ledger.close())
    with pytest.raises(LedgerUnavailableError, match="closed"):
        ledger.export_rows("first")


class LedgerThatRefusesFailures(MemoryLedger):
    """A ledger whose storage takes no failure row for now."""

    down = True

    async def _record_failure(self, failure: CheckedFailure) -> bool:
        if self.down:
            raise LedgerUnavailableError("the storage is down")
        return await super()._record_failure(failure)


async def test_no_checkpoint_lacks_a_failure_row_that_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LedgerThatRefusesFailures()
    monkeypatch.setattr("rollout_control_server.gym.capture_ledger.open_ledger", lambda url: storage)
    ledger = GymCaptureLedger("memory://", outage_wait_s=0.05)
    await converse(ledger, "r", 2)
    with pytest.raises(LedgerUnavailableError):
        await ledger.record_failure("r", "call-f", "unresolved_parent")
    assert dict(ledger.cache_sizes())["owed_failures"] == 1
    with pytest.raises(LedgerUnavailableError):
        ledger.export_rows("r")
    storage.down = False
    rows = ledger.export_rows("r")
    assert rows[2] == FAILURE
    storage.down = True
    with pytest.raises(LedgerUnavailableError):
        await ledger.record_failure("r", "call-g", "unresolved_parent")
    # What is owed is replaced with all other rows.
    ledger.import_rows("r", rows)
    assert ledger.export_rows("r") == rows
    await ledger.close()


async def test_gyms_metrics_find_what_they_ask_for(ledger: GymCaptureLedger) -> None:
    owners: weakref.WeakSet[GymCaptureLedger] = weakref.WeakSet([ledger])
    await converse(ledger, "r", 3)
    (owner,) = owners
    sizes = dict(owner.cache_sizes())
    assert sizes["context_digests"] > 0
    assert sizes["owed_failures"] == 0


@pytest.mark.parametrize("staged_by", [None, "train-0001"])
async def test_a_conversation_with_a_newer_gyms_records(
    url: str,
    staged_by: str | None,
    start_gym: Callable[..., Any],
    make_agent: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through Gym's own middleware, which makes records with a field more."""

    class Record(newer_gym.CallRecord):
        capture_key: str | None = staged_by

    newer_gym.install(monkeypatch)
    monkeypatch.setattr("nemo_gym.token_id_capture.external_capture.CallRecord", Record)
    base_url = await start_gym(url)
    agent = make_agent("train-0001-a1", base_url)
    for turn in range(4):
        await agent.turn(f"question {turn}")
    answer = await agent.http.get(
        f"{base_url}/training-token-capture/control/rollouts/train-0001-a1/manifest",
        headers={"Authorization": "Bearer control-plane-token"},
    )
    manifest = newer_gym.RolloutManifest.model_validate_json(answer.content)
    assert manifest.failures == []
    assert [record.capture_key for record in manifest.records] == [staged_by] * 4
    assert [record.response_id for record in manifest.records] == [answer["id"] for answer in agent.answers]
    assert (b"capture_key" in answer.content) == (staged_by is not None)
    if staged_by is None:
        RolloutManifest.model_validate_json(answer.content)
