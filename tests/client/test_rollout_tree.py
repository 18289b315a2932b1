"""What a manifest says of its rollout."""

import json
from typing import Any

import msgspec
import pytest
from rollout_control_client import CallFailure, CallRecord, RolloutManifest, RolloutTree, to_rows

SHA = "a" * 64


def call(name: str, parent: CallRecord | None = None, delta_len: int = 10, **fields: Any) -> CallRecord:
    prev_len = 0 if parent is None else parent.cum_len
    values: dict[str, Any] = {
        "schema_version": 2,
        "digest_version": 2,
        "extras_digest_version": 1,
        "model_call_id": name,
        "parent_call_id": None if parent is None else parent.model_call_id,
        "prev_len": prev_len,
        "delta_len": delta_len,
        "cum_len": prev_len + delta_len,
        "weight_version": 1,
        "digest": SHA,
        "extras_digest": SHA,
        "staging_key": f"r/{name}",
        "mode": "text" if parent is None else "token_in",
        "chain_hash": SHA,
        "cumulative_hash": SHA,
        "response_id": "response",
        "admitted_at": None,
        "output_fingerprint": None,
        "continuation_fingerprint": None,
        "fingerprint_version": 0,
    }
    return CallRecord(**values | fields)


def tree_of(*calls: CallRecord, failures: tuple[CallFailure, ...] = ()) -> RolloutTree:
    return RolloutTree(RolloutManifest(schema_version=2, rollout_id="r", records=list(calls), failures=list(failures)))


def test_a_branched_rollout() -> None:
    root = call("root", delta_len=7)
    first = call("first", root, weight_version=3)
    retry = call("retry", root, delta_len=5, weight_version=2)
    last = call("last", first, delta_len=1)
    other = call("other", delta_len=2)
    tree = tree_of(root, first, retry, last, other)

    assert tree.roots == (root, other)
    assert tree.leaves == (retry, last, other)
    assert tree.children_of(root) == (first, retry)
    assert tree.children_of(last) == ()
    assert tree.chain_to(last) == (root, first, last)
    assert tree.chain_to(other) == (other,)
    assert tree.is_complete
    assert tree.problems == ()
    assert tree.tokens == 7 + 10 + 5 + 1 + 2
    assert tree.leaf_tokens == (7 + 5) + (7 + 10 + 1) + 2
    assert tree.weight_versions == (1, 2, 3)


def test_an_empty_manifest_is_never_complete() -> None:
    tree = tree_of()
    assert not tree.is_complete
    assert tree.problems == ("it has no calls",)
    assert (tree.roots, tree.leaves, tree.tokens, tree.weight_versions) == ((), (), 0, ())


def test_each_reason_why_a_rollout_is_not_complete_is_a_sentence() -> None:
    root = call("root")
    orphan = call("orphan", call("lost"))
    short = call("short", root, prev_len=9, cum_len=19)
    wrong = call("wrong", root, cum_len=21)
    late = call("late", prev_len=3, cum_len=13)
    failure = CallFailure(schema_version=2, model_call_id="failed", reason="worker_capture_failed")
    tree = tree_of(root, orphan, short, wrong, late, root, failures=(failure,))

    assert not tree.is_complete
    assert tree.problems == (
        "the capture of call 'failed' failed: worker_capture_failed",
        "a call id comes twice",
        "the parent 'lost' of call 'orphan' is missing",
        "the lengths of call 'short' do not add up: 10 tokens before it, prev_len 9, delta_len 10, cum_len 19",
        "the lengths of call 'wrong' do not add up: 10 tokens before it, prev_len 10, delta_len 10, cum_len 21",
        "the lengths of call 'late' do not add up: 0 tokens before it, prev_len 3, delta_len 10, cum_len 13",
    )
    with pytest.raises(ValueError, match="reaches no root"):
        tree.chain_to(orphan)


def test_calls_that_are_each_others_ancestors_are_no_endless_chain() -> None:
    one = call("one", call("two"))
    two = call("two", one)
    tree = tree_of(one, two)
    assert tree.roots == ()
    assert tree.leaves == ()
    assert not tree.is_complete
    with pytest.raises(ValueError, match="reaches no root"):
        tree.chain_to(one)


def test_a_call_of_another_rollout_has_no_chain_here() -> None:
    with pytest.raises(ValueError, match="no such call as 'elsewhere'"):
        tree_of(call("root")).chain_to(call("elsewhere"))


def test_a_chain_of_many_calls() -> None:
    calls = [call("0")]
    for number in range(1, 20_000):
        calls.append(call(str(number), calls[-1]))
    tree = tree_of(*calls)
    assert tree.is_complete
    assert tree.chain_to(calls[-1]) == tuple(calls)


def test_rows_have_one_shape() -> None:
    root = call("root", capture_key="r-a1")
    rows = to_rows([tree_of(root, call("leaf", root)).manifest, tree_of().manifest])
    assert [(row["rollout_id"], row["model_call_id"], row["is_leaf"]) for row in rows] == [
        ("r", "root", False),
        ("r", "leaf", True),
    ]
    assert {tuple(row) for row in rows} == {("rollout_id", *CallRecord.__struct_fields__, "is_leaf")}
    assert [row["capture_key"] for row in rows] == ["r-a1", None]
    json.dumps(rows)


def test_the_rows_of_a_peers_manifest_are_its_records(linear: bytes) -> None:
    manifest = msgspec.json.decode(linear, type=RolloutManifest)
    assert RolloutTree(manifest).is_complete
    for row, record in zip(to_rows([manifest]), json.loads(linear)["records"], strict=True):
        assert {name: row[name] for name in record} == record
