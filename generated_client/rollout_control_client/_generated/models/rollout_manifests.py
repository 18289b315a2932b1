# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated

import msgspec

from ..models.rollout_manifest import RolloutManifest


class RolloutManifests(msgspec.Struct, frozen=True, kw_only=True):
    """What there was room for. Each id of the request is in exactly one of the three lists, once, in the order of
    its first appearance.

    Attributes:
        manifests: The manifests of the rollouts that are not retired.
        retired: Ids of retired rollouts, whose manifests are gone.
        remaining: Ids that were not dealt with, because the answer had reached its size limit.
    """

    manifests: list[RolloutManifest]
    retired: list[Annotated[str, msgspec.Meta(min_length=1, max_length=255)]]
    remaining: list[Annotated[str, msgspec.Meta(min_length=1, max_length=255)]]
