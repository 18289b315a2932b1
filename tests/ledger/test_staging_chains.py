"""What is remembered of staging chains: text only, of bounded size, for as long as somebody has the ledger."""

import gc
import weakref
from typing import Any
from unittest import mock

import pytest
from rollout_control_server.ledger import MemoryLedger, staging_chains
from rollout_control_server.ledger.staging_chains import StagingChains, chain_digest
from rollout_control_server.samples import sample_conversation


def keys(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}/{index:05d}" for index in range(count))


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
def test_the_digests_of_a_chain_do_not_depend_on_what_is_remembered(count: int) -> None:
    chains = StagingChains()
    for length in range(1, count + 1):
        chain = chains.check(keys("r", length))
        assert chain == (keys("r", length), chain_digest(keys("r", length)), chain_digest(keys("r", length - 1)))
    assert StagingChains().check(keys("r", count)) == chain
    assert chains.check(()).digest == chain_digest(())


def test_a_deep_chain_is_found_by_its_last_key_and_digest() -> None:
    chains = StagingChains()
    before = chains.check(keys("r", 100))
    chain = chains.check([*before.keys, "last"])
    assert chains.find("last", chain.digest) == (*before.keys, "last")
    assert chains.find("last", before.digest) is None
    # Once continued it is forgotten, and a branch is remembered beside the other.
    assert chains.find(before.keys[-1], before.digest) is None
    branch = chains.check((*before.keys, "branch"))
    assert chains.find("branch", branch.digest) == (*before.keys, "branch")


def test_what_is_only_equal_to_a_key_does_not_come_back() -> None:
    chains = StagingChains()
    before = chains.check(keys("r", 100)).keys
    disguised: Any = (mock.ANY, *before[1:], "last")
    chain = chains.check(disguised).keys
    assert {type(key) for key in chain} == {str}
    assert chain == (*before, "last")


def test_the_chains_that_are_remembered_have_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_chains, "_MAX_BYTES", 100_000)
    chains = StagingChains()
    seen = [chains.check(tuple(key * 200 for key in keys(f"{index}", 70))) for index in range(10)]
    # The last one fits, and no second.
    assert [chains.find(chain.keys[-1], chain.digest) is not None for chain in seen] == [False] * 9 + [True]
    few = [chains.check(keys(f"{index}", 70)) for index in range(10)]
    assert all(chains.find(chain.keys[-1], chain.digest) == chain.keys for chain in few)


async def test_nothing_is_remembered_of_a_ledger_that_is_gone() -> None:
    ledger = MemoryLedger()
    for commit in sample_conversation("r", 100):
        await ledger.record(commit)
    chains = weakref.ref(ledger._chains)
    await ledger.aclose()
    del ledger
    gc.collect()
    assert chains() is None
