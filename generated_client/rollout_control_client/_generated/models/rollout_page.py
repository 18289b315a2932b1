# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated

import msgspec

from ..models.listed_rollout import ListedRollout


class RolloutPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a listing.

    Attributes:
        rollouts: The rollouts, in the order of their ids' ASCII bytes.
        next_: The id of the last rollout of this page where another page follows, and what `after` is for that
            page; null at the end.
    """

    rollouts: Annotated[list[ListedRollout], msgspec.Meta(max_length=1000)]
    next_: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = msgspec.field(name="next")
