# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated

import msgspec

from ..models.listed_rollout_state import ListedRolloutState


class ListedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a listing. Times are seconds of Unix time by the ledger's clock; they are null where the ledger
    does not know them. How far the rows of a retired rollout have been purged never shows, so all that is said
    about its rows is null.

    Attributes:
        rollout_id: Names one rollout, on every operation and in the ledger.
        state: `live`: the rollout has rows and no fence. `retired`: it is fenced. Other ids are not listed.
        calls: How many records the rollout has; null for a retired one.
        failures: How many failure rows the rollout has; null for a retired one.
        first_recorded_at: When the rollout's first row was recorded; null for a retired one.
        last_recorded_at: When the rollout's last row was recorded; null for a retired one.
        retired_at: When the rollout was retired; null for a live one.
    """

    rollout_id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    state: ListedRolloutState
    calls: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)] | None
    failures: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)] | None
    first_recorded_at: float | None
    last_recorded_at: float | None
    retired_at: float | None
