"""Removals of many rollouts: in as many requests as they need, one after another."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import httpx
import msgspec
from rollout_control_spec import MAX_LEDGER_BATCH, unique_rollout_ids

from rollout_control_client._exchange import when_not_refused
from rollout_control_client._generated.models import IdleRemoval, RolloutRemoval
from rollout_control_client.errors import PartialRemoval, RequestFailedError

__all__ = ["read_removal", "remove_in_batches"]

R = TypeVar("R", bound=RolloutRemoval | IdleRemoval)


async def remove_in_batches(
    remove: Callable[[list[str]], Awaitable[R]], rollout_ids: Sequence[str], nothing: R, wait_s: float
) -> R:
    """Returns what the requests for all ids did together.

    Args:
        remove: Removes the rollouts of one batch, by one request.
        rollout_ids: The rollouts; repeated ids count once. All are checked before the first request.
        nothing: The result for no ids.
        wait_s: Seconds that all of it may wait while the server refuses to remove anything, from now on.

    Raises:
        TypeError: `rollout_ids` is no sequence of strings.
        ValueError: One of them is not a rollout id, or `wait_s` is negative or not finite.
        RequestFailedError: A request was not done; `partial_removal` says what those before it did.
    """
    if not (0 <= wait_s < math.inf):
        raise ValueError(f"wait_s is a finite number of seconds, 0 or more, not {wait_s!r}")
    waiting_ends = asyncio.get_running_loop().time() + wait_s
    unsent = unique_rollout_ids(rollout_ids)
    finished = nothing
    while unsent:
        batch, unsent = unsent[:MAX_LEDGER_BATCH], unsent[MAX_LEDGER_BATCH:]
        try:
            removal = await when_not_refused(partial(remove, batch), waiting_ends)
        except RequestFailedError as error:
            error.partial_removal = PartialRemoval(finished=finished, unconfirmed=batch, unsent=unsent)
            raise
        finished = _join(finished, removal)
    return finished


def _join(first: R, second: R) -> R:
    lists = {name: [*getattr(first, name), *getattr(second, name)] for name in first.__struct_fields__}
    return type(first)(**lists)


def read_removal(parse_response: Callable[[httpx.Response], R], batch: Sequence[str], response: httpx.Response) -> R:
    """Returns what a removal's answer says.

    Raises:
        UnexpectedStatus: It has another status than 200.
        ValueError: It does not name each id of the batch exactly once.
    """
    removal = parse_response(response)
    named: list[str] = [rollout_id for ids in msgspec.structs.astuple(removal) for rollout_id in ids]
    if sorted(named) != sorted(batch):
        raise ValueError("the answer does not name each id of the request exactly once")
    return removal
