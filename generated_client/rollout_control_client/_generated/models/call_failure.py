# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated, Literal

import msgspec


class CallFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A model call whose token capture did not complete.

    Attributes:
        schema_version: The version of this layout.
        model_call_id: Names the call within its rollout.
        reason: Why the capture failed. In use are `worker_capture_failed`,
            `worker_response_missing_commit_coordinates`, `invalid_worker_commit_coordinates`, `unresolved_parent`,
            `request_finished_without_staged_coordinates`, `ledger_row_missing_response_id` and
            `ledger_row_missing_chain_hash`. The set is open.
    """

    schema_version: Literal[2]
    model_call_id: Annotated[str, msgspec.Meta(min_length=1)]
    reason: Annotated[str, msgspec.Meta(min_length=1)]
