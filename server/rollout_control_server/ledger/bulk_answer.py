"""Filling the answer to a reading of many manifests, the same way in every ledger."""

from rollout_control_server.ledger.results import ManifestsRead

__all__ = ["BulkAnswer"]


class BulkAnswer:
    """An answer that is filled id by id, in the order of the request, until it has reached its size.

    answer = BulkAnswer(rollout_ids, max_bytes)
    for rollout_id in rollout_ids:
        if it is retired:
            answer.add_retired(rollout_id)
        elif answer.has_room_for(the bytes of its manifest):
            answer.add_manifest(its manifest)
        else:
            break
    return answer.read()
    """

    def __init__(self, rollout_ids: list[str], max_bytes: int) -> None:
        self._rollout_ids = rollout_ids
        self._bytes_left = max_bytes
        self._manifests: list[bytes] = []
        self._retired: list[str] = []

    def has_room_for(self, manifest_bytes: int) -> bool:
        """Returns whether the next id's manifest may have so many bytes. The request's first id always has room."""
        return manifest_bytes <= self._bytes_left or not (self._manifests or self._retired)

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
