# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated

import msgspec


class RolloutSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a ledger holds, in numbers.

    Attributes:
        live: Rollouts that have rows and no fence.
        retired: Rollouts that are fenced.
        with_failures: Live rollouts that have a failure row.
        rows: Rows of live rollouts, records and failures.
        waiting_rows: Rows of removed rollouts whose storage has not been freed yet.
        oldest_recorded_at: When the first row of the longest live rollout was recorded, in seconds of Unix time
            by the ledger's clock; null where there is no live rollout, or none whose time is known.
    """

    live: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)]
    retired: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)]
    with_failures: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)]
    rows: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)]
    waiting_rows: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)]
    oldest_recorded_at: float | None
