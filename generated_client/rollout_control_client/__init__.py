"""The client of the rollout-control protocol, for trainers.

RolloutControlClient does the work, SyncRolloutControlClient in code without asyncio; what they raise is in
`rollout_control_client.errors`. RolloutTree says what a manifest means.
"""

from rollout_control_spec import CONTROL_ROUTE_PREFIX, MAX_LEDGER_BATCH

from rollout_control_client._generated.models import (
    CallFailure,
    CallRecord,
    IdleRemoval,
    ListedRollout,
    RolloutManifest,
    RolloutRemoval,
    RolloutSummary,
)
from rollout_control_client._version import __version__
from rollout_control_client.client import RolloutControlClient
from rollout_control_client.errors import (
    ContractBrokenError,
    OperationNotOfferedError,
    PartialRemoval,
    RemovalRefusedError,
    RequestFailedError,
    RequestTimedOutError,
    RolloutControlError,
    RolloutRetiredError,
    ServerUnreachableError,
    ServiceUnavailableError,
)
from rollout_control_client.listing import RolloutIterator
from rollout_control_client.manifests import ManifestIterator
from rollout_control_client.rollout_tree import RolloutTree, to_rows
from rollout_control_client.sync_client import SyncIterator, SyncManifestIterator, SyncRolloutControlClient

__all__ = [
    "CONTROL_ROUTE_PREFIX",
    "MAX_LEDGER_BATCH",
    "CallFailure",
    "CallRecord",
    "ContractBrokenError",
    "IdleRemoval",
    "ListedRollout",
    "ManifestIterator",
    "OperationNotOfferedError",
    "PartialRemoval",
    "RemovalRefusedError",
    "RequestFailedError",
    "RequestTimedOutError",
    "RolloutControlClient",
    "RolloutControlError",
    "RolloutIterator",
    "RolloutManifest",
    "RolloutRemoval",
    "RolloutRetiredError",
    "RolloutSummary",
    "RolloutTree",
    "ServerUnreachableError",
    "ServiceUnavailableError",
    "SyncIterator",
    "SyncManifestIterator",
    "SyncRolloutControlClient",
    "__version__",
    "to_rows",
]
