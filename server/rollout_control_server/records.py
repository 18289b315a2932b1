"""The objects of the protocol as msgspec structs, one for each schema of the spec, and what a writer hands a ledger.

`tests/contract/test_parity.py` holds them against the spec's schemas and names every exception.
"""

import sys
from typing import Annotated, Any, Literal

import msgspec
from rollout_control_spec import MAX_INT, MAX_LEDGER_BATCH, MAX_PAGE, MAX_ROLLOUT_ID_LENGTH

__all__ = [
    "CallFailure",
    "CallRecord",
    "CaptureCommit",
    "IdleRemoval",
    "IdleRemovalRequest",
    "LedgerBatchRequest",
    "ListedRollout",
    "ListingQuery",
    "ParentLookup",
    "RolloutManifest",
    "RolloutManifests",
    "RolloutPage",
    "RolloutRemoval",
    "RolloutSummary",
]

Identifier = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
# The largest is about 30,000 years: far beyond any use, and within what every database can compute with.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=10**12)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT)]
# `$` alone lets a trailing newline through; the length does not.
Sha256Hex = Annotated[str, msgspec.Meta(min_length=64, max_length=64, pattern=r"^[0-9a-f]{64}$")]


class LedgerBatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of the operations on many rollouts.

    Attributes:
        rollout_ids: 1 to 4096 rollout ids. Decoding checks that they are strings. Whether each id is valid is decided
            later, and answered with another status (spec, "The order of decisions").
    """

    rollout_ids: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_LEDGER_BATCH)]


class RolloutRemoval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a retire or a delete found. Each id of the batch is in one of the lists, in the batch's order.

    Attributes:
        removed: Ids that were not fenced and had at least one row, failure rows included.
        absent: All other ids.
    """

    removed: list[str]
    absent: list[str]


class IdleRemovalRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of the route that retires idle rollouts.

    Attributes:
        rollout_ids: 1 to 4096 rollout ids, as in `LedgerBatchRequest`.
        idle_for_s: Seconds that the last row of a rollout must be old at least, by the ledger's clock.
    """

    rollout_ids: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_LEDGER_BATCH)]
    idle_for_s: Seconds


class IdleRemoval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What retiring idle rollouts found; each id of the batch is in one of the lists, in the batch's order.

    Attributes:
        removed: Ids whose rollouts were idle, and are retired now.
        absent: Ids without rows, and ids that were fenced before.
        active: Ids of rollouts with a more recent row, or a last row whose time is not known.
    """

    removed: list[str]
    absent: list[str]
    active: list[str]


class ListingQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query parameters of the listing (spec, listRollouts); None where one is not given.

    Attributes:
        state: Only live rollouts, or only retired ones.
        prefix: What the rollout's id begins with.
        idle_for_s: Only live rollouts whose last row is at least so many seconds old.
        changed_since: Only rollouts that changed at this Unix time or later, or at a time that is not known.
        has_failures: Only live rollouts with a failure row, or without one.
        limit: How many rollouts the page has at most.
        after: The id behind which the page begins. The struct checks that it is a string; whether it is a rollout id is
            decided later, with another status (spec, "The order of decisions").
    """

    state: Literal["live", "retired"] | None = None
    prefix: (
        Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ROLLOUT_ID_LENGTH, pattern=r"^[A-Za-z0-9._-]+$")]
        | None
    ) = None
    idle_for_s: Seconds | None = None
    changed_since: Seconds | None = None
    has_failures: bool | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE
    after: str | None = None

    def __post_init__(self) -> None:
        # The `$` of the pattern lets a line feed at the end through.
        if self.prefix is not None and self.prefix.endswith("\n"):
            raise ValueError("prefix ends in a line feed, which no rollout id has")


class ListedRollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rollout of a listing. Times are Unix seconds by the ledger's clock; None where they are not known.

    Attributes:
        rollout_id: The rollout.
        state: `live`: it has rows and no fence. `retired`: it is fenced.
        calls: Its records; None for a retired rollout, like failures and the times of its rows.
        failures: Its failure rows.
        first_recorded_at: When its first row was recorded.
        last_recorded_at: When its last row was recorded.
        retired_at: When it was retired; None for a live rollout.
    """

    rollout_id: str
    state: Literal["live", "retired"]
    calls: Count | None
    failures: Count | None
    first_recorded_at: float | None
    last_recorded_at: float | None
    retired_at: float | None


class RolloutPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a listing, in the order of the ids' ASCII bytes.

    Attributes:
        rollouts: The rollouts.
        next: The last id of this page where another page follows; None at the end.
    """

    rollouts: Annotated[list[ListedRollout], msgspec.Meta(max_length=MAX_PAGE)]
    next: str | None


class RolloutSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a ledger holds, in numbers.

    Attributes:
        live: Rollouts that have rows and no fence.
        retired: Rollouts that are fenced.
        with_failures: Live rollouts that have a failure row.
        rows: Rows of live rollouts, records and failures.
        waiting_rows: Rows of removed rollouts whose storage has not been freed yet.
        oldest_recorded_at: When the first row of the longest live rollout was recorded, in Unix seconds; None where
            there is none, or where no time is known.
    """

    live: Count
    retired: Count
    with_failures: Count
    rows: Count
    waiting_rows: Count
    oldest_recorded_at: float | None


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One model call whose tokens are staged: a row of the manifest's `records`.

    Lengths are in tokens, `admitted_at` in seconds of Unix time. `capture_key`, which newer model servers send, is the
    id of the attempt under which the tokens were staged. Where it is not set, the record has no such field.

    The constructor checks how the fields fit together. Types, bounds and patterns are checked when a record is decoded,
    or recorded in a ledger.

    A newer model server may give a record further fields (spec, schema CallRecord); no other object of the protocol has
    any. Decoding a record ignores them. Whoever records a call passes them in `CaptureCommit.further_fields`.

    Raises:
        ValueError: The lengths do not add up, a root or a child has what only the other may have, or `admitted_at` is
            not finite (spec, schema CallRecord).
    """

    schema_version: Literal[2] = 2
    digest_version: Literal[2] = 2
    extras_digest_version: Literal[1] = 1
    model_call_id: Identifier
    parent_call_id: Identifier | None
    prev_len: Count
    delta_len: PositiveCount
    cum_len: Count
    weight_version: Count
    digest: Sha256Hex
    extras_digest: Sha256Hex
    staging_key: Identifier
    mode: Literal["text", "token_in"]
    chain_hash: Sha256Hex
    cumulative_hash: Sha256Hex
    response_id: Identifier
    admitted_at: float | None
    output_fingerprint: Sha256Hex | None
    continuation_fingerprint: Sha256Hex | None
    fingerprint_version: Count
    capture_key: Identifier | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.cum_len != self.prev_len + self.delta_len:
            raise ValueError("cum_len must be prev_len + delta_len")
        if self.parent_call_id is None:
            if self.mode != "text" or self.prev_len != 0:
                raise ValueError("a root (parent_call_id null) has mode 'text' and prev_len 0")
        elif self.mode != "token_in" or self.prev_len == 0:
            raise ValueError("a child (parent_call_id set) has mode 'token_in' and prev_len > 0")
        if self.admitted_at is not None and not -sys.float_info.max <= self.admitted_at <= sys.float_info.max:
            raise ValueError("admitted_at must be a finite number or null")


class CallFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model call whose token capture failed: a row of the manifest's `failures`."""

    schema_version: Literal[2] = 2
    model_call_id: Identifier
    reason: Identifier


class RolloutManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rollout's calls: the committed ones in commit order, and the failed ones."""

    schema_version: Literal[2] = 2
    rollout_id: str
    records: list[CallRecord]
    failures: list[CallFailure]


class RolloutManifests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifests of a batch, as many as one answer has room for. Each id is in one place, in the batch's order.

    Attributes:
        manifests: The manifests of rollouts that are not retired.
        retired: Ids of retired rollouts.
        remaining: Ids that the answer had no room for. Ask for them again.
    """

    manifests: list[RolloutManifest]
    retired: list[str]
    remaining: list[str]


class ParentLookup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a later request finds this call as its parent. A manifest never has it.

    Attributes:
        fingerprint: The fingerprint of what the model wrote in request and response together.
        context_len: How many items the request had.
        context_digest: The digest of those items.
    """

    fingerprint: Identifier
    context_len: Count
    context_digest: str


class CaptureCommit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model server hands the ledger for one call whose tokens are staged.

    Attributes:
        rollout_id: The rollout that the call belongs to.
        record: The manifest's row.
        staging_chain: The staging keys from the root to this call; empty when the writer keeps none.
        lookup: How a later request finds this call as its parent; None when it never should.
        further_fields: Fields of the record that `CallRecord` does not declare, as JSON values by name. A manifest
            serves them after the declared ones, but for those that are None.
        unserved_fields: JSON values by name that only `CaptureLedger.export` gives back. They are not part of "the same
            commit": recording a call again with others changes nothing.
    """

    rollout_id: str
    record: CallRecord
    staging_chain: tuple[Identifier, ...] = ()
    lookup: ParentLookup | None = None
    further_fields: dict[str, Any] = {}
    unserved_fields: dict[str, Any] = {}
