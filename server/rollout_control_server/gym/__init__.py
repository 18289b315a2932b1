"""Any ledger of ours as the capture ledger of a NeMo Gym model server.

Named in Gym's configuration, beside `external_staging: true`:

    token_id_capture:
      lineage_store: "rollout_control_server.gym:GymCaptureLedger"
      lineage_store_kwargs: {url: "sqlite:///ledger.db"}

The modules of this package are the only ones that import nemo_gym, which needs Python 3.13, and no other module imports
them. docs/gym.md says what happens when storage fails, and what a crash then loses.
"""

from rollout_control_server.gym.capture_ledger import GymCaptureLedger
from rollout_control_server.gym.patient_ledger import LEDGER_UNAVAILABLE_REASON

__all__ = ["LEDGER_UNAVAILABLE_REASON", "GymCaptureLedger"]
