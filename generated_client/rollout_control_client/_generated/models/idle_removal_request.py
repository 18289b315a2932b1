# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated

import msgspec


class IdleRemovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The rollouts that one request is about, and how long those to retire must have been idle.

    Attributes:
        rollout_ids: Ids of rollouts. Repeated ids count once.
        idle_for_s: Seconds that the rollout's last row must be old at least, by the ledger's clock.
    """

    rollout_ids: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=255)]], msgspec.Meta(min_length=1, max_length=4096)
    ]
    idle_for_s: Annotated[float, msgspec.Meta(ge=0, le=1000000000000)]
