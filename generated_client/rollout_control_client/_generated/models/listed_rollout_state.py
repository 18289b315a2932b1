# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Literal

ListedRolloutState = Literal["live", "retired"]
