"""Rows that are not what was written, as PostgreSQL hands them out where data pages have no checksums."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest
from postgres_server import PostgresServer
from rollout_control_server.errors import LedgerConflictError, LedgerError
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.records import CaptureCommit, RolloutManifest
from rollout_control_server.samples import sample_conversation
from rollout_control_spec import RolloutRetiredError

CONVERSATION = sample_conversation("r", 20)
NEXT = sample_conversation("r", 21)[20]

DAMAGES = {
    "a record that ends early": "UPDATE {}.call_record SET record_json = substr(record_json, 1, 50)",
    "a record with another digit": "UPDATE {}.call_record SET record_json = set_byte(record_json, 19, 57)",
    "a record that is a number": "UPDATE {}.call_record SET record_json = '17'",
    "a record that is no UTF-8": "UPDATE {}.call_record SET record_json = '\\xff'",
    "an empty record": "UPDATE {}.call_record SET record_json = ''",
    "an old record cut short": "UPDATE {}.call_record SET record_json = substr(record_json, 1, 9), json_crc = NULL",
    "an old record that is a number": "UPDATE {}.call_record SET record_json = '17', json_crc = NULL",
    "another checksum": "UPDATE {}.call_record SET json_crc = -5",
    "a failure row that ends early": "UPDATE {}.call_failure SET failure_json = substr(failure_json, 1, 9)",
    "an old failure row of nothing": "UPDATE {}.call_failure SET failure_json = '', json_crc = NULL",
    "a reason that is no UTF-8": "UPDATE {}.call_failure SET reason = '\\xff'",
    "a call id that is no UTF-8": "UPDATE {}.call_record SET model_call_id = '\\xff'::bytea || model_call_id",
    "a chain digest of nothing": "UPDATE {}.call_record SET chain_digest = ''",
    "a staging key that is no UTF-8": "UPDATE {}.call_record SET staging_key = '\\xff'",
    "a chain that is no JSON": "UPDATE {}.call_record SET parent_seq = NULL, staging_chain = '[\"a'",
    "a chain of numbers": "UPDATE {}.call_record SET parent_seq = NULL, staging_chain = '[1,2]'",
    "no chain": "UPDATE {}.call_record SET parent_seq = NULL, staging_chain = NULL",
    "a parent that is not there": "UPDATE {}.call_record SET parent_seq = 99",
    "a parent that is itself": "UPDATE {}.call_record SET parent_seq = seq",
    "a parent below all": "UPDATE {}.call_record SET parent_seq = -1",
    "a context digest that is no UTF-8": "UPDATE {}.call_record SET context_digest = '\\xff'",
    "no context digest": "UPDATE {}.call_record SET context_digest = NULL",
    "a negative context length": "UPDATE {}.call_record SET context_len = -5",
    "no context length": "UPDATE {}.call_record SET context_len = NULL",
    "a fingerprint that is no UTF-8": "UPDATE {}.call_record SET fingerprint = '\\xff'",
    "unserved fields that are no JSON": "UPDATE {}.call_record SET unserved_json = '{{'",
    "a generation without rows": "UPDATE {}.rollout SET generation = 1000000",
    "counts of nothing": "UPDATE {}.rollout SET calls = 0, failures = 0",
    "a last number that is taken": "UPDATE {}.rollout SET calls = 5",
    "negative counts": "UPDATE {}.rollout SET calls = -5, failures = -5",
    "times that are none": "UPDATE {}.rollout SET first_recorded_at = 'nan', last_recorded_at = 'infinity'",
}


def fingerprint_of(commit: CaptureCommit) -> str:
    assert commit.lookup is not None
    return commit.lookup.fingerprint


@pytest.fixture
def schema() -> str:
    return f"test_{uuid.uuid4().hex}"


@pytest.fixture
async def ledger(postgres: PostgresServer, schema: str) -> AsyncIterator[CaptureLedger]:
    async with open_ledger(f"{postgres.url}?schema={schema}&operation_timeout_s=3") as ledger:
        for commit in CONVERSATION:
            await ledger.record(commit)
        await ledger.record_failure("r", "failed", "reason")
        yield ledger


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_is_an_error_of_the_ledger_or_does_not_show(
    postgres: PostgresServer, ledger: CaptureLedger, schema: str, damage: str
) -> None:
    """Nothing else is raised, and a manifest that is answered is one, with nothing but what was recorded."""
    connection = await asyncpg.connect(postgres.url)
    await connection.execute(DAMAGES[damage].format(schema))
    await connection.close()
    recorded = {commit.record.model_call_id: commit.record for commit in CONVERSATION}
    operations: list[Any] = [
        ledger.manifest("r"),
        ledger.manifests(["r"], 10**6),
        ledger.export("r"),
        ledger.find_parent("r", fingerprint_of(CONVERSATION[-1]), 2),
        ledger.find_parent("r", fingerprint_of(CONVERSATION[3]), 2),
        ledger.record(CONVERSATION[3]),
        ledger.record(NEXT),
        ledger.record_failure("r", "another", "reason"),
        ledger.has_rows("r"),
        ledger.rollouts(),
        ledger.summary(),
        ledger.retire_idle(["r"], 1000),
        ledger.manifest("r"),
        ledger.retire(["r"]),
    ]
    for operation in operations:
        try:
            answer = await operation
        except (LedgerError, LedgerConflictError, RolloutRetiredError):
            continue
        for manifest in [answer] if isinstance(answer, bytes) else getattr(answer, "manifests", []):
            for record in msgspec.json.decode(manifest, type=RolloutManifest).records:
                assert record == (NEXT.record if record.model_call_id == NEXT.record.model_call_id
                                  else recorded[record.model_call_id])  # fmt: skip
