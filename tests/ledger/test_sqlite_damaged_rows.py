"""Whatever bytes somebody has stored: no operation raises an error of another tree, and `verify` names the damage."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from damaged_file import DAMAGED, answers, fill
from rollout_control_server.ledger.results import Verification
from rollout_control_server.ledger.sqlite.connections import connect

STATEMENTS = (
    "UPDATE call SET json = substr(json, 1, 50)",
    "UPDATE call SET json = replace(json, '\"weight_version\":3', '\"weight_version\":-3')",
    'UPDATE call SET json = replace(json, \'"mode":"text"\', \'"mode":"texu"\')',
    "UPDATE call SET json = '17'",
    "UPDATE call SET json = CAST(x'7bff7d' AS TEXT)",
    "UPDATE call SET staging_chain = '[\"a'",
    "UPDATE call SET staging_chain = '[1,2]'",
    "UPDATE call SET staging_chain = CAST(x'5b22ff225d' AS TEXT)",
    "UPDATE call SET chain_digest = x'00'",
    "UPDATE call SET chain_digest = NULL",
    "UPDATE call SET context_digest = CAST(x'ff' AS TEXT)",
    "UPDATE call SET context_digest = 3.5",
    "UPDATE call SET fingerprint = CAST(x'ff' AS TEXT) WHERE generation > 3",
    "UPDATE call SET fingerprint = 17 WHERE fingerprint IS NOT NULL",
    "UPDATE call SET fingerprint_version = -5",
    "UPDATE call SET fingerprint_version = NULL",
    "UPDATE call SET context_len = -5",
    "UPDATE call SET context_len = NULL",
    "UPDATE call SET parent_seq = NULL",
    "UPDATE call SET parent_seq = 99",
    "UPDATE call SET parent_seq = -1 WHERE parent_seq IS NOT NULL",
    "UPDATE call SET parent_seq = call_rowid & 16777215",
    "UPDATE call SET reason = 'x' WHERE call_rowid & 16777215 = 3",
    "UPDATE call SET reason = CAST(x'ff' AS TEXT) WHERE reason IS NOT NULL",
    "UPDATE call SET reason = '' WHERE reason IS NOT NULL",
    "UPDATE call SET model_call_id = CAST(x'ff' || rowid AS TEXT)",
    "UPDATE call SET model_call_id = 'x' || rowid",
    "UPDATE call SET unserved = '[1'",
    "UPDATE call SET unserved = CAST(x'ff' AS TEXT)",
    "UPDATE call SET unserved = '17'",
    "UPDATE call SET recorded_at = 9e999",
    "UPDATE rollout SET generation = 1 << 38 WHERE generation IS NOT NULL",
    "UPDATE rollout SET generation = -5 WHERE generation IS NOT NULL",
    "UPDATE rollout SET generation = 9223372036854775807 WHERE generation IS NOT NULL",
    "UPDATE rollout SET generation = 1 WHERE generation IS NOT NULL",
    "UPDATE rollout SET retired_at = 9e999 WHERE retired_at IS NOT NULL",
    "UPDATE rollout SET failures = -3",
    "UPDATE rollout SET failures = 99",
    "UPDATE rollout SET imported_rows = 99",
    "UPDATE rollout SET rollout_id = CAST(x'ff' || rollout_id AS TEXT)",
    "UPDATE rollout SET rollout_id = 'a b' || rollout_id",
    "UPDATE newest_generation SET generation = 9223372036854775807",
    "UPDATE newest_generation SET generation = -3",
    "UPDATE newest_generation SET generation = 7",
    "DELETE FROM newest_generation",
    "INSERT INTO newest_generation VALUES (7)",
    "INSERT INTO purge_queue SELECT generation FROM rollout WHERE generation IS NOT NULL",
    "INSERT INTO purge_queue VALUES (9223372036854775807)",
    "DROP INDEX recorded_call",
    "DROP INDEX failed_call",
    "DROP INDEX parent",
    "DROP TABLE purge_queue",
    "DROP TABLE rollout",
    "DELETE FROM call WHERE call_rowid & 16777215 = 2",
    "UPDATE call SET call_rowid = call_rowid + (1 << 50) WHERE call_rowid & 16777215 = 4",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "ledger.sqlite"
    fill(path)
    return path


@pytest.mark.parametrize("statement", STATEMENTS)
def test_damage_by_another_program_is_named(whole: Path, tmp_path: Path, statement: str) -> None:
    path = tmp_path / "ledger.sqlite"
    shutil.copy(whole, path)
    with closing(connect(path)) as connection:
        connection.execute(statement)
    found = answers(path)
    verification = found.get("verify", DAMAGED)
    assert verification == DAMAGED or (isinstance(verification, Verification) and verification.damages)
