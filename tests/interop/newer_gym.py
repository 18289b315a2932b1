"""What nemo-gym's next release is expected to have more than 0.7.0, as far as a capture ledger meets it.

Its pull requests 2941 and 3349 add the record's `capture_key`, an error for retired rollouts, and checkpoints.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from nemo_gym.token_id_capture import external_capture, protocols
from nemo_gym.token_id_capture.lineage import FileLineageStore
from nemo_gym.token_id_capture.staging import records


class CallRecord(records.CallRecord):
    """A record that names the attempt under which its tokens were staged; null where it is the record's own."""

    capture_key: str | None = None


class RolloutManifest(records.RolloutManifest):
    """A manifest of such records."""

    records: list[CallRecord]


class RolloutRetiredError(LookupError):
    """What the manifest of a retired rollout raises."""


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has Gym's middleware make such records, and gives its modules what they will have."""
    monkeypatch.setattr(records, "CallRecord", CallRecord)
    monkeypatch.setattr(external_capture, "CallRecord", CallRecord)
    monkeypatch.setattr(protocols, "RolloutRetiredError", RolloutRetiredError, raising=False)


class CheckpointedStore(FileLineageStore):
    """Gym's own store, which hands out its rows and takes them back."""

    def export_rows(self, rollout_id: str) -> list[dict[str, Any]]:
        return list(self._read(rollout_id))

    def import_rows(self, rollout_id: str, rows: list[dict[str, Any]]) -> None:
        lines = [json.dumps(row) + "\n" for row in rows]
        self._ledger_path(rollout_id).write_text("".join(lines))


def restore(ledger: Any, checkpoint: Mapping[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Continues each rollout of a checkpoint as its next attempt, as Gym does; returns the new ids by the old."""
    ids, restored = {}, {}
    for rollout_id, rows in checkpoint.items():
        first, _, number = rollout_id.partition("-a")
        ids[rollout_id] = f"{first}-a{int(number or 0) + 1}"
        restored[ids[rollout_id]] = [
            {**row, "capture_key": rollout_id} if row.get("staging_key") and not row.get("capture_key") else row
            for row in rows
        ]
    ledger.import_rows_many(restored)
    return ids
