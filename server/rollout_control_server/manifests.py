"""Manifests as the bytes of an answer. Those of a ledger of ours are sent as they are stored, and never decoded."""

from typing import Any, Final

import msgspec

from rollout_control_server.ledger.base import CaptureLedger, ManifestsRead
from rollout_control_server.ledger.bulk_answer import BulkAnswer
from rollout_control_server.problems import is_retired
from rollout_control_server.records import CallRecord, RolloutManifest

__all__ = ["DEFAULT_ANSWER_LIMIT", "join_manifests", "read_manifest", "read_manifests"]

DEFAULT_ANSWER_LIMIT: Final = 4 * 2**20
"""Bytes of manifests in one bulk answer: some hundreds of usual rollouts, in little of a server's memory."""

_MANIFEST_DECODER: Final = msgspec.json.Decoder(RolloutManifest)
_REQUIRED_FIELDS: Final = frozenset(
    field.name for field in msgspec.structs.fields(CallRecord) if field.default is not msgspec.UNSET
)
"""The fields of a record that are served whatever their value."""


async def read_manifest(ledger: Any, rollout_id: str) -> bytes:
    """Returns a rollout's manifest as JSON.

    A ledger of ours checked every row when it was recorded. A ledger of another make gives plain objects or JSON, which
    are checked here. Fields of its records that the spec does not declare are served as they came. Those that are null
    are left out, because some clients refuse every field that they do not know.

    Raises:
        ValueError: A ledger of another make gave what is not a manifest of this rollout.
        Exception: Whatever the ledger raises.
    """
    manifest = await ledger.manifest(rollout_id)
    if isinstance(ledger, CaptureLedger):
        return bytes(manifest)
    encoded = _without_null_further_fields(manifest)
    if _MANIFEST_DECODER.decode(encoded).rollout_id != rollout_id:
        raise ValueError("the ledger gave the manifest of another rollout")
    return encoded


async def read_manifests(ledger: Any, rollout_ids: list[str], max_bytes: int) -> ManifestsRead:
    """Reads the manifests of rollouts, one at least, until they come to `max_bytes` of JSON.

    A ledger of ours reads them as of one moment. A ledger of another make is asked for one after the other.

    Raises:
        Exception: Whatever the ledger raises, other than that a rollout is retired.
    """
    if isinstance(ledger, CaptureLedger):
        return await ledger.manifests(rollout_ids, max_bytes)
    answer = BulkAnswer(rollout_ids, max_bytes)
    for rollout_id in rollout_ids:
        try:
            manifest = await read_manifest(ledger, rollout_id)
        except Exception as error:
            if not is_retired(error):
                raise
            answer.add_retired(rollout_id)
            continue
        if len(manifest) > answer.room:
            break
        answer.add_manifest(manifest)
    return answer.read()


def join_manifests(read: ManifestsRead) -> bytes:
    """Returns the manifests as the JSON of the spec's RolloutManifests."""
    return b'{"manifests":[%s],"retired":%s,"remaining":%s}' % (
        b",".join(read.manifests),
        msgspec.json.encode(read.retired),
        msgspec.json.encode(read.remaining),
    )


def _without_null_further_fields(manifest: Any) -> bytes:
    """Returns a manifest as JSON: as it came, but for null fields of records that the spec does not require."""
    plain = msgspec.json.decode(manifest) if isinstance(manifest, bytes) else manifest
    records = plain.get("records") if isinstance(plain, dict) else None
    if not isinstance(records, list) or not any(_null_further_fields(record) for record in records):
        return manifest if isinstance(manifest, bytes) else msgspec.json.encode(manifest)
    kept = [
        {name: value for name, value in record.items() if name not in _null_further_fields(record)}
        if isinstance(record, dict)
        else record
        for record in records
    ]
    return msgspec.json.encode({**plain, "records": kept})


def _null_further_fields(record: Any) -> list[str]:
    if not isinstance(record, dict):
        return []
    return [name for name, value in record.items() if value is None and name not in _REQUIRED_FIELDS]
