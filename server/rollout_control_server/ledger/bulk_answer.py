"""Fills the answer to a reading of many manifests, the same way in every ledger."""

import sys

from rollout_control_server.ledger.results import ManifestsRead

__all__ = ["BulkAnswer"]


class BulkAnswer:
    """The answer to a reading of many manifests, while it is filled.

    Its user takes the ids in the order of the request. For each it calls `add_retired`, or `add_manifest` if the
    manifest is not larger than `room`; at the first that is larger, it stops. `read` returns the answer.
    """

    def __init__(self, rollout_ids: list[str], max_bytes: int) -> None:
        self._rollout_ids = rollout_ids
        self._bytes_left = max_bytes
        self._manifests: list[bytes] = []
        self._retired: list[str] = []

    @property
    def room(self) -> int:
        """How many bytes the next id's manifest may have. The first id of the request has room for any."""
        return self._bytes_left if self._manifests or self._retired else sys.maxsize

    def add_manifest(self, manifest: bytes) -> None:
        """Adds the manifest of the next id."""
        self._manifests.append(manifest)
        self._bytes_left -= len(manifest)

    def add_retired(self, rollout_id: str) -> None:
        """Notes that the next id, which this is, is retired."""
        self._retired.append(rollout_id)

    def read(self) -> ManifestsRead:
        """Returns the answer. The ids that were not added remain."""
        added = len(self._manifests) + len(self._retired)
        return ManifestsRead(self._manifests, self._retired, self._rollout_ids[added:])
