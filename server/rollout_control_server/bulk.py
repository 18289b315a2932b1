"""Many manifests in one answer, as bytes that are joined and never decoded."""

from typing import Any

import msgspec

from rollout_control_server.errors import ProblemKind, refusal_of
from rollout_control_server.ledger.base import CaptureLedger, ManifestsRead

__all__ = ["encoded", "joined", "read_manifests"]


def encoded(manifest: Any) -> bytes:
    """Returns a ledger's manifest as JSON: ours give bytes, those of another make plain objects."""
    return manifest if isinstance(manifest, bytes) else msgspec.json.encode(manifest)


async def read_manifests(ledger: Any, rollout_ids: list[str], max_bytes: int) -> ManifestsRead:
    """Reads the manifests of rollouts until they come to a size, and at least one.

    A ledger of ours reads them as of one moment; one of another make is asked id by id.

    Raises:
        Exception: Whatever the ledger raises, but for the errors that say that a rollout is retired.
    """
    if isinstance(ledger, CaptureLedger):
        return await ledger.manifests(rollout_ids, max_bytes)
    read = ManifestsRead([], [], [])
    size = 0
    for index, rollout_id in enumerate(rollout_ids):
        try:
            manifest = encoded(await ledger.manifest(rollout_id))
        except Exception as error:
            if refusal_of(error).kind is not ProblemKind.ROLLOUT_RETIRED:
                raise
            read.retired.append(rollout_id)
            continue
        size += len(manifest)
        if size > max_bytes and index > 0:
            read.remaining.extend(rollout_ids[index:])
            break
        read.manifests.append(manifest)
    return read


def joined(read: ManifestsRead) -> bytes:
    """Returns the JSON of the spec's RolloutManifests."""
    return b'{"manifests":[%s],"retired":%s,"remaining":%s}' % (
        b",".join(read.manifests),
        msgspec.json.encode(read.retired),
        msgspec.json.encode(read.remaining),
    )
