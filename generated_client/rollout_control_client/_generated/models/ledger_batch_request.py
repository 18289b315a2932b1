# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated

import msgspec


class LedgerBatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The rollouts that one request is about.

    Attributes:
        rollout_ids: Ids of rollouts. Repeated ids count once.
    """

    rollout_ids: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=255)]], msgspec.Meta(min_length=1, max_length=4096)
    ]
