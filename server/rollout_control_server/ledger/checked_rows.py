"""Rows of a ledger, checked against the spec and encoded, as every backend stores them."""

import math
from typing import Any, Final, NamedTuple

import msgspec
from rollout_control_spec import MAX_INT, validate_rollout_id

from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger.staging_chains import StagingChains
from rollout_control_server.records import CallFailure, CallRecord, CaptureCommit, ParentLookup

__all__ = ["CheckedCommit", "CheckedFailure", "check_commit", "check_failure", "decode_commit", "decode_failure"]

_FAILURE_DECODER: Final = msgspec.json.Decoder(CallFailure)
_RECORD_DECODER: Final = msgspec.json.Decoder(CallRecord)
_LOOKUP_DECODER: Final[msgspec.json.Decoder[ParentLookup | None]] = msgspec.json.Decoder(ParentLookup | None)
_FIELDS_DECODER: Final = msgspec.json.Decoder(dict[str, Any])
_ENCODER: Final = msgspec.json.Encoder()
# Sorted, so that two objects with the same members are the same bytes.
_FIELDS_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_DECLARED: Final = frozenset(CallRecord.__struct_fields__)


class CheckedCommit(NamedTuple):
    """A commit that has been checked and encoded, as a backend stores it.

    Attributes:
        rollout_id: A valid rollout id.
        model_call_id: Any non-empty text, U+0000 included.
        parent_call_id: The parent's call id, None for a root.
        staging_key: The last resort to find the tokens, named in the warning about a discarded write.
        record_json: The CallRecord as JSON, its further fields after the declared ones: the manifest's bytes.
        staging_chain: The staging keys from the root to this call. Where it is the parent's chain and this call's key,
            a backend stores no more than that.
        fingerprint_version: The record's.
        lookup: How a later request finds this call; None when it never should.
        unserved_json: A JSON object of the fields that only an export gives back; empty bytes where there are none. A
            backend does not look into it.
        chain_digest: What tells the staging chain from any other.
        parent_chain_digest: The same of the staging chain without its last key. A backend that keeps digests sees in
            one look whether the chain continues the parent's.
    """

    rollout_id: str
    model_call_id: str
    parent_call_id: str | None
    staging_key: str
    record_json: bytes
    staging_chain: tuple[str, ...]
    fingerprint_version: int
    lookup: ParentLookup | None
    unserved_json: bytes
    chain_digest: bytes
    parent_chain_digest: bytes

    def same(self, other: "CheckedCommit") -> bool:
        """Tells whether two commits of one call are the same commit: whether all but the unserved fields is equal."""
        return self[:8] == other[:8]


class CheckedFailure(NamedTuple):
    """A failure row that has been checked and encoded, as a backend stores it.

    Attributes:
        rollout_id: A valid rollout id.
        model_call_id: Any non-empty text, U+0000 included.
        reason: Likewise.
        failure_json: The CallFailure as JSON: the manifest's bytes.
        unserved_json: As in CheckedCommit.
    """

    rollout_id: str
    model_call_id: str
    reason: str
    failure_json: bytes
    unserved_json: bytes = b""


def check_commit(commit: CaptureCommit, chains: StagingChains) -> CheckedCommit:
    """Encodes a commit and reads it back by the spec's rules: a struct's constructor checks no types.

    Raises:
        TypeError: It is no CaptureCommit.
        ValueError: It breaks a rule of the spec's CallRecord, or its rollout id is none.
    """
    if not isinstance(commit, CaptureCommit):
        raise TypeError(f"record takes a CaptureCommit, not {type(commit).__name__}")
    validate_rollout_id(commit.rollout_id)
    try:
        record = _RECORD_DECODER.decode(_ENCODER.encode(commit.record))
        # Encoded from what was read back, so that 1 and 1.0 in `admitted_at` are the same commit.
        record_json = _ENCODER.encode(record)
        unserved_json = b""
        if commit.further_fields or commit.unserved_fields:
            served = {name: value for name, value in commit.further_fields.items() if value is not None}
            nulls = {name: None for name in commit.further_fields if name not in served}
            if not _DECLARED.isdisjoint(commit.further_fields):
                raise ValueError("further_fields has a name that CallRecord declares")
            record_json = _join_objects(record_json, _encode_fields(served))
            unserved_json = _encode_fields({**nulls, **commit.unserved_fields})
        lookup = _LOOKUP_DECODER.decode(_ENCODER.encode(commit.lookup))
        chain = chains.check(commit.staging_chain)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"this commit cannot be recorded: {error}") from error
    return CheckedCommit(
        commit.rollout_id,
        record.model_call_id,
        record.parent_call_id,
        record.staging_key,
        record_json,
        chain.keys,
        record.fingerprint_version,
        lookup,
        unserved_json,
        chain.digest,
        chain.parent_digest,
    )


def check_failure(
    rollout_id: str, model_call_id: str, reason: str, unserved_fields: dict[str, Any] | None = None
) -> CheckedFailure:
    """Encodes a failure row by the spec's rules.

    Raises:
        TypeError: `model_call_id` or `reason` is no string.
        ValueError: The rollout id is none, or one of the others is empty or has a lone surrogate.
    """
    validate_rollout_id(rollout_id)
    for value in (model_call_id, reason):
        if not isinstance(value, str):
            raise TypeError(f"model_call_id and reason are strings, not {type(value).__name__}")
    try:
        failure_json = _ENCODER.encode(CallFailure(model_call_id=model_call_id, reason=reason))
        _FAILURE_DECODER.decode(failure_json)
        unserved_json = _encode_fields(unserved_fields or {})
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"this failure cannot be recorded: {error}") from error
    return CheckedFailure(rollout_id, model_call_id, reason, failure_json, unserved_json)


def decode_commit(stored: CheckedCommit) -> CaptureCommit:
    """Returns the commit that was handed to the ledger, from what a backend stored of it.

    Raises:
        LedgerCorruptError: The stored bytes are no commit.
    """
    try:
        record = _RECORD_DECODER.decode(stored.record_json)
        fields = _FIELDS_DECODER.decode(stored.record_json)
        unserved = _FIELDS_DECODER.decode(stored.unserved_json) if stored.unserved_json else {}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(stored, error) from error
    further = {name: value for name, value in fields.items() if name not in _DECLARED}
    return CaptureCommit(stored.rollout_id, record, stored.staging_chain, stored.lookup, further, unserved)


def decode_failure(stored: CheckedFailure) -> tuple[CallFailure, dict[str, Any]]:
    """Returns a stored failure row, and its unserved fields.

    Raises:
        LedgerCorruptError: The stored bytes are no failure row.
    """
    try:
        failure = _FAILURE_DECODER.decode(stored.failure_json)
        return failure, _FIELDS_DECODER.decode(stored.unserved_json) if stored.unserved_json else {}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(stored, error) from error


def _damaged(stored: CheckedCommit | CheckedFailure, error: Exception) -> LedgerCorruptError:
    return LedgerCorruptError(
        f"the row of call {stored.model_call_id!r} of rollout {stored.rollout_id!r} is damaged: {error}"
    )


def _join_objects(first: bytes, second: bytes) -> bytes:
    """Returns one JSON object with the members of two; the first has some."""
    return first[:-1] + b"," + second[1:] if second else first


def _encode_fields(fields: dict[str, Any]) -> bytes:
    """Returns the fields as a JSON object, or empty bytes where there are none.

    Raises:
        ValueError: A value is not JSON, or would come back as another.
    """
    if not fields:
        return b""
    for name, value in fields.items():
        if not isinstance(name, str):
            raise ValueError(f"a field's name is a string, not {type(name).__name__}")
        _check_value(value)
    return _FIELDS_ENCODER.encode(fields)


def _check_value(value: Any) -> None:
    """Refuses what JSON cannot carry, and what its encoder would quietly make something else of: NaN, a tuple."""
    match value:
        case None | bool() | str():
            pass
        case int() if -MAX_INT <= value <= MAX_INT:
            pass
        case float() if math.isfinite(value):
            pass
        case list():
            for item in value:
                _check_value(item)
        case dict() if all(isinstance(name, str) for name in value):
            for item in value.values():
                _check_value(item)
        case _:
            raise ValueError(
                f"{value!r:.80} is no JSON value: use None, booleans, strings, finite numbers up to 2^63 - 1, lists "
                "and objects with string keys"
            )
