"""How rows are handed to the schema's functions, and what those say of them."""

import enum
import hashlib
import zlib
from typing import Final, NamedTuple, Self

import msgspec

from rollout_control_server.ledger.base import CheckedCommit, CheckedFailure
from rollout_control_server.ledger.results import RolloutExport

SHORT_CHAIN_BYTES: Final = 1000
"""A chain of about this size is sent with its row, which costs less than being asked for it would."""


class Outcome(enum.IntEnum):
    """What `record_rows` made of a row."""

    KEPT = 0
    DISCARDED = 1
    HOLDS_ANOTHER_COMMIT = 2
    HAS_FAILED = 3
    BUSY = 4
    """Someone else holds the rollout's lock. Nothing was changed."""
    NEEDS_CHAIN = 5
    """The staging chain is not the parent's and this call's key, as far as the database knows. Send it whole."""
    NOT_YET = 6
    """A row before it in its rollout needs its chain. Nothing was changed."""


class Row(NamedTuple):
    """One row as `record_rows` takes it, in the order of its parameters."""

    rollout_id: str
    model_call_id: bytes
    reason: bytes | None = None
    failure_json: bytes | None = None
    record_json: bytes | None = None
    parent_call_id: bytes | None = None
    parent_digest: bytes | None = None
    chain_digest: bytes | None = None
    staging_key: bytes | None = None
    staging_chain: bytes | None = None
    fingerprint_version: int | None = None
    fingerprint: bytes | None = None
    context_len: int | None = None
    context_digest: bytes | None = None
    json_crc: int | None = None
    unserved_json: bytes | None = None

    @classmethod
    def of_commit(cls, commit: CheckedCommit) -> Self:
        """Returns the row of a commit, without its staging chain where that is long and may continue the parent's.

        Whether it does is for the database to say, which compares `parent_digest` with the parent's `chain_digest`. It
        asks for a long chain when it does not.
        """
        chain, key = commit.staging_chain, commit.staging_key
        digest = hashlib.sha256(_chain_text(chain[:-1]))
        parent_digest = digest.digest()
        digest.update(_chain_text(chain[-1:]))
        continues = chain[-1:] == (key,) and (commit.parent_call_id is not None or len(chain) == 1)
        is_long = len(chain) * (3 + len(key)) > SHORT_CHAIN_BYTES
        lookup = commit.lookup
        return cls(
            commit.rollout_id,
            commit.model_call_id.encode(),
            record_json=commit.record_json,
            parent_call_id=None if commit.parent_call_id is None else commit.parent_call_id.encode(),
            parent_digest=parent_digest if continues else None,
            chain_digest=digest.digest(),
            staging_key=None if key == f"{commit.rollout_id}/{commit.model_call_id}" else key.encode(),
            staging_chain=None if continues and is_long else msgspec.json.encode(chain),
            fingerprint_version=commit.fingerprint_version,
            fingerprint=None if lookup is None else lookup.fingerprint.encode(),
            context_len=None if lookup is None else lookup.context_len,
            context_digest=None if lookup is None else lookup.context_digest.encode(),
            json_crc=zlib.crc32(commit.record_json),
            unserved_json=commit.unserved_json or None,
        )

    @classmethod
    def of_failure(cls, failure: CheckedFailure) -> Self:
        """Returns a failure row."""
        return cls(
            failure.rollout_id,
            failure.model_call_id.encode(),
            reason=failure.reason.encode(),
            failure_json=failure.failure_json,
            json_crc=zlib.crc32(failure.failure_json),
            unserved_json=failure.unserved_json or None,
        )

    def size(self) -> int:
        """Returns about how many bytes it takes on the wire: its long fields, and 500 for all others together."""
        return 500 + len(self.record_json or self.failure_json or b"") + len(self.staging_chain or b"")


class ImportedRow(NamedTuple):
    """One row as `import_rollouts` takes it, in the order of its parameters."""

    rollout_id: str
    model_call_id: bytes
    reason: bytes | None
    failure_json: bytes | None
    record_json: bytes | None
    chain_digest: bytes | None
    staging_key: bytes | None
    staging_chain: bytes | None
    fingerprint_version: int | None
    fingerprint: bytes | None
    context_len: int | None
    context_digest: bytes | None
    json_crc: int | None
    unserved_json: bytes | None
    seq: int
    parent_seq: int | None
    recorded_at: float | None


def imported_rows(export: RolloutExport) -> list[ImportedRow]:
    """Returns the rows of a rollout, each commit with the number of the row whose chain it continues, or its chain."""
    rows: list[ImportedRow] = []
    commits: dict[bytes, tuple[int, bytes | None]] = {}
    for seq, (checked, recorded_at) in enumerate(export.rows, 1):
        parent_seq: int | None = None
        staging_chain: bytes | None = None
        if isinstance(checked, CheckedCommit):
            row = Row.of_commit(checked)
            if row.parent_digest is not None and row.parent_call_id is None:
                parent_seq = 0
            elif row.parent_digest is not None and row.parent_call_id in commits:
                candidate, digest = commits[row.parent_call_id]
                parent_seq = candidate if digest == row.parent_digest else None
            if parent_seq is None:
                staging_chain = msgspec.json.encode(checked.staging_chain)
            commits[row.model_call_id] = seq, row.chain_digest
        else:
            row = Row.of_failure(checked)
        fields = row._replace(staging_chain=staging_chain)._asdict()
        del fields["parent_call_id"], fields["parent_digest"]
        rows.append(ImportedRow(**fields, seq=seq, parent_seq=parent_seq, recorded_at=recorded_at))
    return rows


def digest_of_chain(keys: tuple[str, ...]) -> bytes:
    """Returns the digest of a whole staging chain, which is stored with its call."""
    return hashlib.sha256(_chain_text(keys)).digest()


def _chain_text(keys: tuple[str, ...]) -> bytes:
    """Returns staging keys as text that no other keys give, and to which further keys can be appended."""
    return msgspec.json.encode(keys)[1:-1] + b"," if keys else b""
