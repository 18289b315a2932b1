# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated

import msgspec


class RolloutRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """What a removal found. Each id of the request is in exactly one of the two lists, once, in the order of its
    first appearance. How far the rows have physically been purged never shows.

    Attributes:
        removed: Ids that were not fenced and had at least one row, failure rows included, when the change was
            made.
        absent: All other ids, a fenced id whose fence a delete lifts included.
    """

    removed: list[Annotated[str, msgspec.Meta(min_length=1, max_length=255)]]
    absent: list[Annotated[str, msgspec.Meta(min_length=1, max_length=255)]]
