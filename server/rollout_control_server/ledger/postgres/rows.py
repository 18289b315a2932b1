"""How rows are handed to the schema's functions, and what those say of them."""

import enum
import hashlib
from typing import NamedTuple, Self

import msgspec

from rollout_control_server.ledger.base import CheckedCommit, CheckedFailure


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

    @classmethod
    def of_commit(cls, commit: CheckedCommit) -> Self:
        """Returns the row of a commit, without its staging chain where that continues the parent's.

        Whether it does is for the database to say, which compares `parent_digest` with the parent's `chain_digest`.
        """
        chain, key = commit.staging_chain, commit.staging_key
        digest = hashlib.sha256(_chain_text(chain[:-1]))
        parent_digest = digest.digest()
        digest.update(_chain_text(chain[-1:]))
        continues = chain[-1:] == (key,) and (commit.parent_call_id is not None or len(chain) == 1)
        lookup = commit.lookup
        return cls(
            commit.rollout_id,
            commit.model_call_id.encode(),
            record_json=commit.record_json,
            parent_call_id=None if commit.parent_call_id is None else commit.parent_call_id.encode(),
            parent_digest=parent_digest,
            chain_digest=digest.digest(),
            staging_key=None if key == f"{commit.rollout_id}/{commit.model_call_id}" else key.encode(),
            staging_chain=None if continues else msgspec.json.encode(chain),
            fingerprint_version=commit.fingerprint_version,
            fingerprint=None if lookup is None else lookup.fingerprint.encode(),
            context_len=None if lookup is None else lookup.context_len,
            context_digest=None if lookup is None else lookup.context_digest.encode(),
        )

    @classmethod
    def of_failure(cls, failure: CheckedFailure) -> Self:
        """Returns a failure row."""
        return cls(
            failure.rollout_id,
            failure.model_call_id.encode(),
            reason=failure.reason.encode(),
            failure_json=failure.failure_json,
        )

    def size(self) -> int:
        """Returns how many bytes it takes on the wire, about: one of these makes up for the others."""
        return 500 + len(self.record_json or self.failure_json or b"") + len(self.staging_chain or b"")


def _chain_text(keys: tuple[str, ...]) -> bytes:
    """Returns staging keys as text that no other keys give, and to which further keys can be appended."""
    return msgspec.json.encode(keys)[1:-1] + b"," if keys else b""
