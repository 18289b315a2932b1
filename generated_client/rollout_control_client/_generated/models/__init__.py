# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""Contains all the data models used in inputs/outputs"""

from .call_failure import CallFailure
from .call_record import CallRecord
from .call_record_mode import CallRecordMode
from .idle_removal import IdleRemoval
from .idle_removal_request import IdleRemovalRequest
from .ledger_batch_request import LedgerBatchRequest
from .list_rollouts_state import ListRolloutsState
from .listed_rollout import ListedRollout
from .listed_rollout_state import ListedRolloutState
from .problem import Problem
from .rollout_manifest import RolloutManifest
from .rollout_manifests import RolloutManifests
from .rollout_page import RolloutPage
from .rollout_removal import RolloutRemoval
from .rollout_summary import RolloutSummary

__all__ = (
    "CallFailure",
    "CallRecord",
    "CallRecordMode",
    "IdleRemoval",
    "IdleRemovalRequest",
    "LedgerBatchRequest",
    "ListedRollout",
    "ListedRolloutState",
    "ListRolloutsState",
    "Problem",
    "RolloutManifest",
    "RolloutManifests",
    "RolloutPage",
    "RolloutRemoval",
    "RolloutSummary",
)
