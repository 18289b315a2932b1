# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated

import msgspec


class IdleRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """What the removal of idle rollouts found. Each id of the request is in exactly one of the three lists, once, in
    the order of its first appearance.

    Attributes:
        removed: Ids whose rollouts were idle, and are retired now.
        absent: Ids without rows, and ids that were fenced before. Nothing was done to them.
        active: Ids of rollouts with a more recent row, or a last row whose time is not known. Nothing was done to
            them.
    """

    removed: list[Annotated[str, msgspec.Meta(min_length=1, max_length=255)]]
    absent: list[Annotated[str, msgspec.Meta(min_length=1, max_length=255)]]
    active: list[Annotated[str, msgspec.Meta(min_length=1, max_length=255)]]
