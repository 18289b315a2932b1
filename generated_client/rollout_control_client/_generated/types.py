# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""What stands for an optional field that is absent."""

from msgspec import UNSET
from msgspec import UnsetType as Unset

__all__ = ["UNSET", "Unset"]
