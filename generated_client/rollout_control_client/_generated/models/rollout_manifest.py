# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated, Literal

import msgspec

from ..models.call_failure import CallFailure
from ..models.call_record import CallRecord


class RolloutManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout's ledger, without a single token.

    Attributes:
        schema_version: The version of this layout. A client refuses any other.
        rollout_id: Names one rollout, on every operation and in the ledger.
        records: The committed calls, in commit order.
        failures: The calls whose capture failed, in the order in which the failures were written. A rollout with
            a failure has a hole, and a trainer should not train on it as if it were whole. One call can have several
            failures, and a record beside them.
    """

    schema_version: Literal[2]
    rollout_id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    records: list[CallRecord]
    failures: list[CallFailure]
