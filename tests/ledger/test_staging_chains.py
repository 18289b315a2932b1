"""What is remembered of staging chains: text only, of bounded size, for as long as somebody has the ledger."""

import gc
import weakref
from typing import Any
from unittest import mock

import pytest
from rollout_control_server.ledger import MemoryLedger, staging_chains
from rollout_control_server.ledger.staging_chains import CheckedChains
from rollout_control_server.samples import sample_conversation


def keys(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}/{index:05d}" for index in range(count))


def test_a_chain_continues_the_one_that_was_checked_before() -> None:
    chains = CheckedChains()
    before, _ = chains.check(keys("r", 100))
    chain, continued = chains.check([*before, "last"])
    assert chain == (*before, "last")
    assert continued is before
    # Once continued it is forgotten; a branch is checked whole.
    assert chains.check((*before, "branch")) == ((*before, "branch"), None)


def test_what_is_only_equal_to_a_key_does_not_come_back() -> None:
    chains = CheckedChains()
    before, _ = chains.check(keys("r", 100))
    disguised: Any = (mock.ANY, *before[1:], "last")
    chain, _ = chains.check(disguised)
    assert {type(key) for key in chain} == {str}
    assert chain == (*before, "last")


def test_the_chains_that_are_remembered_have_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_chains, "_MAX_BYTES", 100_000)
    chains = CheckedChains()
    seen = [chains.check(tuple(key * 200 for key in keys(f"{index}", 70)))[0] for index in range(10)]
    # The last one fits, and no second.
    assert [chains.check((*chain, "last"))[1] is chain for chain in seen] == [False] * 9 + [True]
    few = [chains.check(keys(f"{index}", 70))[0] for index in range(10)]
    assert all(chains.check((*chain, "last"))[1] is chain for chain in few)


async def test_nothing_is_remembered_of_a_ledger_that_is_gone() -> None:
    ledger = MemoryLedger()
    for commit in sample_conversation("r", 100):
        await ledger.record(commit)
    chains = weakref.ref(ledger._checked_chains)
    await ledger.aclose()
    del ledger
    gc.collect()
    assert chains() is None
