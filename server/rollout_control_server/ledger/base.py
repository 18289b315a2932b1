"""What a capture ledger promises, and the checks that every ledger of ours shares.

`CaptureLedger` has two faces. Callers use the public methods, which check their arguments and say what became of a
write. A backend implements the methods that begin with an underscore, on arguments that are already checked.

The promises are kept by each backend and shown by `rollout_control_server.ledger.conformance`, which is the same for
all of them.
"""

import abc
import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from types import TracebackType
from typing import Final, NamedTuple, Self

import msgspec
from rollout_control_spec import unique_rollout_ids, validate_rollout_id

from rollout_control_server.ledger.staging_chains import CheckedChains
from rollout_control_server.records import CallFailure, CallRecord, CaptureCommit, ParentLookup, RolloutRemoval

__all__ = ["CaptureLedger", "CheckedCommit", "CheckedFailure", "FenceCount", "ManifestsRead"]

logger = logging.getLogger("rollout_control_server.ledger")

_FAILURE_DECODER: Final = msgspec.json.Decoder(CallFailure)
_RECORD_DECODER: Final = msgspec.json.Decoder(CallRecord)
_LOOKUP_DECODER: Final[msgspec.json.Decoder[ParentLookup | None]] = msgspec.json.Decoder(ParentLookup | None)
_ENCODER: Final = msgspec.json.Encoder()


class CheckedCommit(NamedTuple):
    """A commit that has been checked and encoded, as a backend stores it.

    Attributes:
        rollout_id: A valid rollout id.
        model_call_id: Any non-empty text, U+0000 included.
        parent_call_id: The parent's call id, None for a root.
        staging_key: The last resort to find the tokens, named in the warning about a discarded write.
        record_json: The CallRecord as JSON: the manifest's bytes.
        staging_chain: The staging keys from the root to this call. Where it is the parent's chain and this call's key,
            a backend stores no more than that.
        fingerprint_version: The record's.
        lookup: How a later request finds this call; None when it never should.
        continued_chain: The staging chain of an earlier commit, the same object as then, that this commit's chain is
            without its last key. A backend that remembers it need not compare them. None where it is not known.
    """

    rollout_id: str
    model_call_id: str
    parent_call_id: str | None
    staging_key: str
    record_json: bytes
    staging_chain: tuple[str, ...]
    fingerprint_version: int
    lookup: ParentLookup | None
    continued_chain: tuple[str, ...] | None = None

    def same(self, other: "CheckedCommit") -> bool:
        """Tells whether two commits of one call are the same commit: whether all that was handed in is equal."""
        return self[:-1] == other[:-1]


class CheckedFailure(NamedTuple):
    """A failure row that has been checked and encoded, as a backend stores it."""

    rollout_id: str
    model_call_id: str
    reason: str
    failure_json: bytes


class FenceCount(NamedTuple):
    """What `forget_fences` did and left.

    Attributes:
        forgotten: Fences forgotten by this call.
        kept: Fences that remain.
        kept_bytes: What those cost where they are stored, in bytes; an estimate.
    """

    forgotten: int
    kept: int
    kept_bytes: int


class ManifestsRead(NamedTuple):
    """What one bulk reading has dealt with; each id is in one of the three, in the order that was asked for.

    Attributes:
        manifests: The manifests of the rollouts that are not retired, each as JSON.
        retired: Ids of retired rollouts.
        remaining: Ids that were not dealt with, because the manifests had reached the size that was asked for.
    """

    manifests: list[bytes]
    retired: list[str]
    remaining: list[str]


class CaptureLedger(abc.ABC):
    """The capture ledgers of many rollouts, written by model servers and removed by a trainer.

    For each rollout id there is a ledger with rows, or a fence, or neither. All methods may be called from many tasks
    at once; `async with` closes the ledger at its end.

    Every method may raise LedgerUnavailableError (the storage cannot answer now; nothing is half done),
    LedgerCorruptError, and LedgerClosedError after `aclose`. A write that raised one of them, or was cancelled, may
    have happened or not; repeating it is safe.

    Promises, from the wire contract ("The ledger"):

    - What a method has returned for is durable, and visible through every other handle on the same storage.
    - A rollout that is fenced keeps no row: a write that races `retire` is removed by it or discarded.
    - A batch of `retire` or `delete` is one atomic change, however large.
    - Staged token data is never touched.
    """

    process_shared: bool
    """Whether several processes can write one ledger of this kind."""

    async def record(self, commit: CaptureCommit) -> bool:
        """Appends a call to its rollout's ledger.

        The same call id with the same commit, all of it, is a no-op.

        Returns:
            True when the row is in the ledger, and False when the rollout is fenced and the write was discarded, which
            is logged as a warning with the staging key.

        Raises:
            LedgerConflictError: The call id holds another commit, or has a failure row. Nothing was changed.
            TypeError: It is no CaptureCommit.
            ValueError: The commit breaks a rule of the spec's CallRecord, or its rollout id is none.
        """
        checked = _check_commit(commit, self._checked_chains)
        kept = await self._record(checked)
        if not kept:
            logger.warning(
                "discarded a late write to retired rollout %r: call %r, whose tokens are staged at %r",
                checked.rollout_id,
                checked.model_call_id,
                checked.staging_key,
            )
        return kept

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> bool:
        """Notes that a call's capture failed.

        The same call id and reason again is a no-op. A failure of a call that has a record is kept beside it.

        Returns:
            True when the row is in the ledger, and False when the rollout is fenced and the write was discarded, which
            is logged as a warning with the reason.

        Raises:
            TypeError: An argument is not a string.
            ValueError: The rollout id is none, or one of the other arguments is empty or has a lone surrogate.
        """
        checked = _check_failure(rollout_id, model_call_id, reason)
        kept = await self._record_failure(checked)
        if not kept:
            logger.warning(
                "discarded a late failure row of retired rollout %r: call %r, reason %r",
                rollout_id,
                model_call_id,
                reason,
            )
        return kept

    async def manifest(self, rollout_id: str) -> bytes:
        """Returns the rollout's manifest as JSON, which the spec's RolloutManifest describes.

        It is one consistent reading: records in commit order, then failures in the order of their writing. A rollout
        without rows has an empty one. To look into it, `msgspec.json.decode(manifest, type=RolloutManifest)`.

        Raises:
            RolloutRetiredError: The rollout is fenced.
            ValueError: The rollout id is none.
        """
        return await self._manifest(validate_rollout_id(rollout_id))

    async def manifests(self, rollout_ids: Sequence[str], max_bytes: int) -> ManifestsRead:
        """Reads the manifests of many rollouts, as one consistent reading.

        The ids are dealt with in their order, each once, until the manifests come to `max_bytes`. The first id is dealt
        with whatever its manifest's size. The memory that this takes is bounded by `max_bytes` and that manifest.

        Args:
            rollout_ids: The rollouts.
            max_bytes: How many bytes of JSON the manifests may have together; at least 1.

        Raises:
            TypeError: `rollout_ids` is a bare string, or holds something that is no string.
            ValueError: One of them is no rollout id, or `max_bytes` is less than 1.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, and is {max_bytes}")
        return await self._manifests(unique_rollout_ids(rollout_ids), max_bytes)

    async def has_rows(self, rollout_id: str) -> bool:
        """Returns whether the rollout has any row, committed or failed.

        Raises:
            RolloutRetiredError: The rollout is fenced.
            ValueError: The rollout id is none.
        """
        return await self._has_rows(validate_rollout_id(rollout_id))

    async def find_parent(self, rollout_id: str, fingerprint: str, fingerprint_version: int) -> CaptureCommit | None:
        """Returns the one commit of the rollout whose lookup has this fingerprint, of this version.

        None when no commit has it, and when several have: a parent is never guessed. Failure rows are never found.
        The cost does not grow with the rollout's calls, apart from the staging chain that is returned.

        Raises:
            RolloutRetiredError: The rollout is fenced.
            ValueError: The rollout id is none.
        """
        found = await self._find_parent(validate_rollout_id(rollout_id), fingerprint, fingerprint_version)
        if found is None:
            return None
        record = _RECORD_DECODER.decode(found.record_json)
        return CaptureCommit(found.rollout_id, record, found.staging_chain, found.lookup)

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Fences the rollouts, ids without rows included, and removes their rows.

        Retiring a fenced rollout is a no-op that reports it as absent. How long this takes does not depend on how
        many rows the rollouts have.

        Raises:
            TypeError: `rollout_ids` is a bare string, or holds something that is no string.
            ValueError: One of them is no rollout id. Nothing was changed.
        """
        return await self._retire(unique_rollout_ids(rollout_ids))

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Removes rows and fences, so that the ids can be used again. Protects from no late write.

        How long this takes does not depend on how many rows the rollouts have.

        Raises:
            TypeError: `rollout_ids` is a bare string, or holds something that is no string.
            ValueError: One of them is no rollout id. Nothing was changed.
        """
        return await self._delete(unique_rollout_ids(rollout_ids))

    async def forget_fences(self, older_than: timedelta) -> FenceCount:
        """Forgets the fences that were set longer ago than this, and counts those that remain.

        A ledger never does this by itself. A write that comes later than that starts a new ledger, so `older_than`
        must exceed the longest time that a late write can take. `timedelta.max` forgets none and only counts.

        Raises:
            ValueError: `older_than` is negative.
        """
        if older_than < timedelta(0):
            raise ValueError(f"older_than must not be negative, and is {older_than}")
        return await self._forget_fences(older_than)

    @cached_property
    def _checked_chains(self) -> CheckedChains:
        """What `record` knows of chains; made at its first use, since a backend need not call any constructor here."""
        return CheckedChains()

    @abc.abstractmethod
    async def check_ready(self) -> None:
        """Returns if the storage can take a write now, as far as can be told without one.

        Raises:
            LedgerUnavailableError: It can not.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Finishes what was accepted, then releases everything. Closing again is a no-op."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @abc.abstractmethod
    async def _record(self, commit: CheckedCommit) -> bool: ...

    @abc.abstractmethod
    async def _record_failure(self, failure: CheckedFailure) -> bool: ...

    @abc.abstractmethod
    async def _manifest(self, rollout_id: str) -> bytes: ...

    @abc.abstractmethod
    async def _manifests(self, rollout_ids: list[str], max_bytes: int) -> ManifestsRead: ...

    @abc.abstractmethod
    async def _has_rows(self, rollout_id: str) -> bool: ...

    @abc.abstractmethod
    async def _find_parent(
        self, rollout_id: str, fingerprint: str, fingerprint_version: int
    ) -> CheckedCommit | None: ...

    @abc.abstractmethod
    async def _retire(self, rollout_ids: list[str]) -> RolloutRemoval: ...

    @abc.abstractmethod
    async def _delete(self, rollout_ids: list[str]) -> RolloutRemoval: ...

    @abc.abstractmethod
    async def _forget_fences(self, older_than: timedelta) -> FenceCount: ...


def join_manifest(rollout_id: str, records: Sequence[bytes], failures: Sequence[bytes]) -> bytes:
    """Returns a manifest's JSON from the JSON of its rows, or of several with commas between, without decoding any.

    A rollout id needs no escaping: its alphabet has no character that JSON escapes.
    """
    return b"".join(
        (
            b'{"schema_version":2,"rollout_id":"',
            rollout_id.encode(),
            b'","records":[',
            b",".join(records),
            b'],"failures":[',
            b",".join(failures),
            b"]}",
        )
    )


def _check_commit(commit: CaptureCommit, chains: CheckedChains) -> CheckedCommit:
    """Encodes a commit and reads it back by the spec's rules: a struct's constructor checks no types."""
    if not isinstance(commit, CaptureCommit):
        raise TypeError(f"record takes a CaptureCommit, not {type(commit).__name__}")
    validate_rollout_id(commit.rollout_id)
    try:
        record = _RECORD_DECODER.decode(_ENCODER.encode(commit.record))
        # Encoded from what was read back, so that 1 and 1.0 in `admitted_at` are the same commit.
        record_json = _ENCODER.encode(record)
        lookup = _LOOKUP_DECODER.decode(_ENCODER.encode(commit.lookup))
        staging_chain, continued_chain = chains.check(commit.staging_chain)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"this commit cannot be recorded: {error}") from error
    return CheckedCommit(
        commit.rollout_id,
        record.model_call_id,
        record.parent_call_id,
        record.staging_key,
        record_json,
        staging_chain,
        record.fingerprint_version,
        lookup,
        continued_chain,
    )


def _check_failure(rollout_id: str, model_call_id: str, reason: str) -> CheckedFailure:
    validate_rollout_id(rollout_id)
    for value in (model_call_id, reason):
        if not isinstance(value, str):
            raise TypeError(f"model_call_id and reason are strings, not {type(value).__name__}")
    try:
        failure_json = _ENCODER.encode(CallFailure(model_call_id=model_call_id, reason=reason))
        _FAILURE_DECODER.decode(failure_json)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"this failure cannot be recorded: {error}") from error
    return CheckedFailure(rollout_id, model_call_id, reason, failure_json)
