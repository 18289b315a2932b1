"""The listing of a server's rollouts, read page by page."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import httpx
from rollout_control_spec import validate_rollout_id_prefix

from rollout_control_client._generated import AuthenticatedClient
from rollout_control_client._generated.api.listing import list_rollouts
from rollout_control_client._generated.models import ListedRollout, RolloutPage
from rollout_control_client.iterators import PartIterator

__all__ = ["ListingFilters", "RolloutIterator", "check_seconds", "iterate"]

MOST_SECONDS: Final = 10**12
"""The largest number of seconds, and the latest Unix time, that a request can have (spec, schema Seconds)."""


def check_seconds(name: str, seconds: float) -> None:
    """Returns if it is a number of seconds that a request can have.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative, not finite or too large.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} is a number of seconds, not {type(seconds).__name__}")
    if not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(f"{name} is a number of seconds from 0 to {MOST_SECONDS}, not {seconds!r:.80}")


@dataclass(frozen=True)
class ListingFilters:
    """The filters of a listing; None where one is not given.

    Raises:
        TypeError: A filter is of another type.
        ValueError: A filter cannot be what it says.
    """

    state: Literal["live", "retired"] | None
    prefix: str | None
    idle_for_s: float | None
    changed_since: float | None
    has_failures: bool | None

    def __post_init__(self) -> None:
        if self.state not in (None, "live", "retired"):
            raise ValueError(f"state is 'live' or 'retired', not {self.state!r:.80}")
        if self.prefix is not None:
            validate_rollout_id_prefix(self.prefix)
        for name, seconds in (("idle_for_s", self.idle_for_s), ("changed_since", self.changed_since)):
            if seconds is not None:
                check_seconds(name, seconds)
        if not isinstance(self.has_failures, bool | None):
            raise TypeError(f"has_failures is True, False or None, not {self.has_failures!r:.80}")

    def build_request(self, http: AuthenticatedClient, after: str | None) -> httpx.Request:
        """Returns the request for the page behind an id, or for the first page."""
        parameters = {**asdict(self), "after": after}
        given: Any = {name: value for name, value in parameters.items() if value is not None}
        return list_rollouts.build_request(client=http, **given)

    def read_page(self, after: str | None, response: httpx.Response) -> RolloutPage:
        """Returns the page that an answer has.

        Raises:
            UnexpectedStatus: It has another status than 200.
            ValueError: The page breaks the contract: iterating over such pages could repeat a rollout or never end, or
                would show rollouts that were not asked for.
        """
        page = list_rollouts.parse_response(response)
        before = after or ""
        for rollout in page.rollouts:
            if rollout.rollout_id <= before:
                raise ValueError(f"rollout {rollout.rollout_id!r} comes after {before!r}, out of the order of ids")
            if not rollout.rollout_id.startswith(self.prefix or "") or self.state not in (None, rollout.state):
                raise ValueError(f"{rollout.state} rollout {rollout.rollout_id!r} does not match what was asked for")
            before = rollout.rollout_id
        if page.next_ is not None and (not page.rollouts or page.next_ != before):
            raise ValueError(f"the page's next is {page.next_!r}, and not its last rollout")
        return page


class RolloutIterator(PartIterator[ListedRollout]):
    """Gives each rollout of a listing once, in the order of the ids; what `RolloutControlClient.rollouts` returns."""


async def iterate(
    page_after: Callable[[str | None], Awaitable[RolloutPage]],
) -> AsyncGenerator[list[ListedRollout], None]:
    """Iterates over the pages' rollouts.

    Args:
        page_after: Reads the page behind an id, or the first one.
    """
    after = None
    while True:
        page = await page_after(after)
        yield page.rollouts
        if page.next_ is None:
            return
        after = page.next_
