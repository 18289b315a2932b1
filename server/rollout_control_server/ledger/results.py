"""What the methods of a ledger return, beside a manifest and a removal, and the filter of a listing."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from rollout_control_server.ledger.checked_rows import CheckedCommit, CheckedFailure

__all__ = [
    "Damage",
    "FenceCount",
    "IdleRemoval",
    "LedgerRow",
    "ManifestsRead",
    "RolloutEntry",
    "RolloutExport",
    "RolloutFilter",
    "RolloutPage",
    "RolloutSummary",
    "Verification",
    "VerifyProgress",
]

VerifyProgress = Callable[[str, int, int | None], None]
"""What `verify` calls now and then: what it reads, how much of that it has read, and of how much; None if not known."""


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


class LedgerRow(NamedTuple):
    """One row of a rollout with the time of its recording.

    Attributes:
        row: The row.
        recorded_at: Unix seconds by the ledger's clock; None where it is not known, as for rows that an earlier version
            of the ledger's storage recorded without a time.
    """

    row: CheckedCommit | CheckedFailure
    recorded_at: float | None


class RolloutExport(NamedTuple):
    """All that a ledger knows of one rollout: what `export` returns and `import_` takes.

    Attributes:
        rollout_id: The rollout.
        retired_at: When it was fenced, in Unix seconds; None where it is not. A fenced rollout has no rows.
        rows: Records and failures in the order in which they were written; empty where the id has never recorded a
            call.
    """

    rollout_id: str
    retired_at: float | None
    rows: list[LedgerRow]


class RolloutFilter(NamedTuple):
    """Which rollouts a listing shows: those that all of the filters match.

    Attributes:
        state: `live`, `retired`, or both for None.
        prefix: What the id begins with.
        idle_for_s: Live rollouts whose last row is at least so many seconds old.
        changed_since: Rollouts whose last change is not older than this, in Unix seconds, or not known.
        has_failures: Live rollouts with a failure row, or without one.
    """

    state: Literal["live", "retired"] | None = None
    prefix: str = ""
    idle_for_s: float | None = None
    changed_since: float | None = None
    has_failures: bool | None = None


class RolloutEntry(NamedTuple):
    """One rollout of a listing. Times are Unix seconds by the ledger's clock; None where they are not known.

    Attributes:
        rollout_id: The rollout.
        state: `live`: it has rows and no fence. `retired`: it is fenced.
        calls: Its records; None for a retired rollout, like failures and the times of its rows, so that how far a purge
            has come does not show.
        failures: Its failure rows.
        first_recorded_at: When its first row was recorded.
        last_recorded_at: When its last row was recorded.
        retired_at: When it was fenced; None for a live rollout.
        changed_at: When a row was recorded, or the rollout was retired or imported, whatever came last.
    """

    rollout_id: str
    state: Literal["live", "retired"]
    calls: int | None
    failures: int | None
    first_recorded_at: float | None
    last_recorded_at: float | None
    retired_at: float | None
    changed_at: float | None


class RolloutPage(NamedTuple):
    """A part of a listing, in the order of the ids' ASCII bytes.

    Attributes:
        rollouts: The rollouts.
        next: The last id of this page where more may follow, to be given as `after`; None at the end.
    """

    rollouts: list[RolloutEntry]
    next: str | None


class RolloutSummary(NamedTuple):
    """What a ledger holds, in numbers.

    Attributes:
        live: Rollouts with rows and without a fence.
        retired: Fenced rollouts.
        with_failures: Live rollouts that have a failure row.
        rows: Rows of live rollouts, failures included.
        waiting_rows: Rows of removed rollouts that the purge has not freed yet.
        oldest_recorded_at: When the first row of the longest known live rollout was recorded, in Unix seconds; None
            where there is none, or where no time is known.
    """

    live: int
    retired: int
    with_failures: int
    rows: int
    waiting_rows: int
    oldest_recorded_at: float | None


class IdleRemoval(NamedTuple):
    """What `retire_idle` did; each id of the batch is in one of the three, in the batch's order.

    Attributes:
        removed: Ids whose rollouts were idle, and are retired now.
        absent: Ids without rows, and ids that were retired before.
        active: Ids whose rollouts have a more recent row, or one whose time is not known; left as they are.
    """

    removed: list[str]
    absent: list[str]
    active: list[str]


class Damage(NamedTuple):
    """Something that cannot be true of what a ledger has stored.

    Attributes:
        what: What is wrong, in words.
        rollout_ids: The rollouts that it touches, as far as they can be told.
    """

    what: str
    rollout_ids: list[str]


class Verification(NamedTuple):
    """What `verify` has read, and found.

    Attributes:
        rollouts: How many rollouts it has read, fenced ones included.
        rows: How many rows of theirs.
        damages: What is wrong with the ledger; empty for a sound one.
    """

    rollouts: int
    rows: int
    damages: list[Damage]
