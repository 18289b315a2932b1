# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""Contains all the data models used in inputs/outputs"""

from .call_failure import CallFailure
from .call_record import CallRecord
from .call_record_mode import CallRecordMode
from .ledger_batch_request import LedgerBatchRequest
from .problem import Problem
from .rollout_manifest import RolloutManifest
from .rollout_manifests import RolloutManifests
from .rollout_removal import RolloutRemoval

__all__ = (
    "CallFailure",
    "CallRecord",
    "CallRecordMode",
    "LedgerBatchRequest",
    "Problem",
    "RolloutManifest",
    "RolloutManifests",
    "RolloutRemoval",
)
