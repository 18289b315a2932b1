"""Listings as the objects of the wire: which rollouts a ledger has, how much it holds, and which of them are idle."""

from typing import Any

import msgspec

from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.records import IdleRemoval, ListedRollout, ListingQuery, RolloutPage, RolloutSummary

__all__ = ["read_page", "read_summary", "retire_idle"]


async def read_page(ledger: Any, query: ListingQuery) -> RolloutPage:
    """Returns a page of a ledger's listing.

    A ledger of another make takes the same arguments, and returns a plain object with the fields of the wire.

    Raises:
        ValueError: A ledger of another make returns something else.
        Exception: Whatever the ledger raises.
    """
    page = await ledger.rollouts(
        state=query.state,
        prefix=query.prefix or "",
        idle_for_s=query.idle_for_s,
        changed_since=query.changed_since,
        has_failures=query.has_failures,
        limit=query.limit,
        after=query.after,
    )
    if not isinstance(ledger, CaptureLedger):
        return msgspec.convert(page, RolloutPage, from_attributes=True)
    # A ledger's entry also has the time of the last change, which the wire does not have.
    return RolloutPage(
        [ListedRollout(*entry[: len(ListedRollout.__struct_fields__)]) for entry in page.rollouts], page.next
    )


async def read_summary(ledger: Any) -> RolloutSummary:
    """Returns how much a ledger holds.

    Raises:
        ValueError: A ledger of another make returns something else than an object with the fields of the wire.
        Exception: Whatever the ledger raises.
    """
    summary = await ledger.summary()
    if isinstance(ledger, CaptureLedger):
        return RolloutSummary(*summary)
    return msgspec.convert(summary, RolloutSummary, from_attributes=True)


async def retire_idle(ledger: Any, rollout_ids: list[str], idle_for_s: float) -> IdleRemoval:
    """Retires those of the rollouts that are idle.

    Raises:
        ValueError: A ledger of another make returns something else than an object with the fields of the wire.
        Exception: Whatever the ledger raises.
    """
    removal = await ledger.retire_idle(rollout_ids, idle_for_s)
    if isinstance(ledger, CaptureLedger):
        return IdleRemoval(*removal)
    return msgspec.convert(removal, IdleRemoval, from_attributes=True)
