"""What a capture ledger promises, and the checks that every ledger of ours shares.

`CaptureLedger` has two faces. Callers use the public methods, which check their arguments and say what became of a
write. A backend implements the methods that begin with an underscore, on arguments that are already checked.

The promises are kept by each backend and shown by `rollout_control_server.ledger.conformance`, which is the same for
all of them.
"""

import abc
import logging
import math
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from types import TracebackType
from typing import Literal, Self

from rollout_control_spec import MAX_PAGE, unique_rollout_ids, validate_rollout_id, validate_rollout_id_prefix

from rollout_control_server.errors import LedgerCorruptError
from rollout_control_server.ledger.checked_rows import (
    CheckedCommit,
    CheckedFailure,
    check_commit,
    check_failure,
    decode_commit,
    decode_failure,
)
from rollout_control_server.ledger.exports import check_entry, check_export
from rollout_control_server.ledger.results import (
    Damage,
    FenceCount,
    IdleRemoval,
    ManifestsRead,
    RolloutEntry,
    RolloutExport,
    RolloutFilter,
    RolloutPage,
    RolloutSummary,
    Verification,
    VerifyProgress,
)
from rollout_control_server.ledger.staging_chains import StagingChains
from rollout_control_server.records import CaptureCommit, RolloutRemoval

__all__ = ["MAX_PAGE", "CaptureLedger", "CheckedCommit", "CheckedFailure", "FenceCount", "ManifestsRead"]

logger = logging.getLogger("rollout_control_server.ledger")


class CaptureLedger(abc.ABC):
    """The capture ledgers of many rollouts, written by model servers and removed by a trainer.

    For each rollout id there is a ledger with rows, or a fence, or neither. All methods may be called from many tasks
    at once; `async with` closes the ledger at its end.

    Every method may raise LedgerUnavailableError (the storage cannot answer now; nothing is half done),
    LedgerCorruptError, and LedgerClosedError after `aclose`. A write that raised one of them, or was cancelled, may
    have happened or not; repeating it is safe.

    Promises:

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
        checked = check_commit(commit, self._chains)
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
        checked = check_failure(rollout_id, model_call_id, reason)
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
        return None if found is None else decode_commit(found)

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

    async def export(self, rollout_id: str) -> RolloutExport:
        """Returns all that is known of a rollout, as one consistent reading, for `import_` of this or another ledger.

        An id that never recorded a call has no rows and no fence. Exporting changes nothing.

        Raises:
            LedgerCorruptError: A stored row is damaged.
            ValueError: The rollout id is none.
        """
        export = await self._export(validate_rollout_id(rollout_id))
        for row, _ in export.rows:
            decode_commit(row) if isinstance(row, CheckedCommit) else decode_failure(row)
        return export

    async def import_(self, rollouts: Sequence[RolloutExport]) -> None:
        """Puts rollouts in the place of what the ledger has under their ids, fences included, as one atomic change.

        One without rows and without a fence clears its id, as `delete` does. Rows and fences keep their times.
        Importing the same again changes nothing but the time of the rollouts' last change.

        Raises:
            LedgerCorruptError: A row is damaged. Nothing was changed.
            TypeError: Something else than RolloutExports is given.
            ValueError: The rollouts cannot stand together in a ledger: an id or a call id is none or comes twice, a
                record follows a failure row of its call, a fenced rollout has rows, or a time is not finite. Nothing
                was changed.
        """
        checked = [check_export(export) for export in rollouts]
        ids = [export.rollout_id for export in checked]
        if len(unique_rollout_ids(ids)) < len(ids):
            raise ValueError("a rollout id comes twice in one import")
        await self._import(checked)

    async def rollouts(
        self,
        *,
        state: Literal["live", "retired"] | None = None,
        prefix: str = "",
        idle_for_s: float | None = None,
        changed_since: float | None = None,
        has_failures: bool | None = None,
        limit: int = MAX_PAGE,
        after: str | None = None,
    ) -> RolloutPage:
        """Returns which rollouts there are: those with rows, and fenced ones, in the order of the ids' ASCII bytes.

        A page is one consistent reading. Paging by `after=page.next` until that is None shows each rollout that is
        there all the time exactly once, whatever happens around it.

        Args:
            state: `live` (it has rows and no fence) or `retired` (it is fenced); both unless given.
            prefix: What the id begins with.
            idle_for_s: Live rollouts only, whose last row is at least so many seconds old. One whose times are not
                known is never idle.
            changed_since: Rollouts that had a row recorded, or were retired or imported, at this Unix time or later, or
                at a time that is not known.
            has_failures: Live rollouts only, with a failure row, or without one.
            limit: How many rollouts the page may show, 1 to `MAX_PAGE`.
            after: The id after which the page begins; it need not exist.

        Raises:
            ValueError: An argument is none of these.
        """
        if state not in (None, "live", "retired"):
            raise ValueError(f"state is 'live' or 'retired', not {state!r:.80}")
        if prefix:
            validate_rollout_id_prefix(prefix)
        for name, value in {"idle_for_s": idle_for_s, "changed_since": changed_since}.items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is a number of seconds, not negative, and not {value!r:.80}")
        if not 1 <= limit <= MAX_PAGE:
            raise ValueError(f"limit is 1 to {MAX_PAGE} rollouts, not {limit!r:.80}")
        if after is not None:
            validate_rollout_id(after)
        return await self._list_rollouts(
            RolloutFilter(state, prefix, idle_for_s, changed_since, has_failures), limit, after
        )

    async def summary(self) -> RolloutSummary:
        """Returns how much the ledger holds; cheap enough to be asked every ten seconds."""
        return await self._summary()

    async def retire_idle(self, rollout_ids: Sequence[str], idle_for_s: float) -> IdleRemoval:
        """Retires those of the rollouts whose last row, of any kind, is at least so many seconds old.

        Decided in the same change as the retiring, so that a rollout that records a row meanwhile is not retired. An id
        without rows is not fenced.

        Raises:
            TypeError: `rollout_ids` is a bare string, or holds something that is no string.
            ValueError: One of them is no rollout id, or `idle_for_s` is negative or not finite. Nothing was changed.
        """
        if not (math.isfinite(idle_for_s) and idle_for_s >= 0):
            raise ValueError(f"idle_for_s is a number of seconds, not negative, and not {idle_for_s!r:.80}")
        return await self._retire_idle(unique_rollout_ids(rollout_ids), idle_for_s)

    async def verify(self, progress: VerifyProgress | None = None) -> Verification:
        """Reads everything that the ledger has stored, and says what of it cannot be true.

        Others may use the ledger meanwhile, and each rollout is read as it is at one moment.

        Args:
            progress: Called now and then, in whatever thread the reading is done.

        Raises:
            LedgerUnavailableError: Something could not be read now, so that nothing is known of it.
        """
        return await self._verify(progress or _no_progress)

    @cached_property
    def _chains(self) -> StagingChains:
        """What this handle remembers of staging chains.

        Made at its first use, since a backend need not call any constructor here.
        """
        return StagingChains()

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

    @abc.abstractmethod
    async def _export(self, rollout_id: str) -> RolloutExport: ...

    @abc.abstractmethod
    async def _import(self, rollouts: list[RolloutExport]) -> None: ...

    @abc.abstractmethod
    async def _list_rollouts(self, matching: RolloutFilter, limit: int, after: str | None) -> RolloutPage: ...

    @abc.abstractmethod
    async def _summary(self) -> RolloutSummary: ...

    @abc.abstractmethod
    async def _retire_idle(self, rollout_ids: list[str], idle_for_s: float) -> IdleRemoval: ...

    async def _verify(self, progress: VerifyProgress) -> Verification:
        """Verifies rollouts, rows, chains and what the listing says of them.

        A backend that can look at more, such as its pages and its indexes, does.
        """
        damages: list[Damage] = []
        rollouts = rows = 0
        after: str | None = ""
        while after is not None:
            page = await self._list_rollouts(RolloutFilter(), MAX_PAGE, after or None)
            for entry in page.rollouts:
                try:
                    rows += await self._verify_rollout(entry)
                except LedgerCorruptError as error:
                    damages.append(Damage(str(error), [entry.rollout_id]))
                rollouts += 1
                progress("rollouts", rollouts, None)
            after = page.next
        return Verification(rollouts, rows, damages)

    async def _verify_rollout(self, entry: RolloutEntry) -> int:
        """Returns how many rows a rollout has, which is as its entry in the listing says.

        Raises:
            LedgerCorruptError: It is not so, or a row is damaged.
        """
        while True:
            export = await self._export(entry.rollout_id)
            try:
                check_entry(export, entry)
                return len(export.rows)
            except LedgerCorruptError:
                page = await self._list_rollouts(RolloutFilter(prefix=entry.rollout_id), 1, None)
                again = next((each for each in page.rollouts if each.rollout_id == entry.rollout_id), None)
                if again == entry:
                    raise
            # It was changed between the two readings.
            if again is None:
                return 0
            entry = again


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


def _no_progress(what: str, done: int, total: int | None) -> None:
    """Shows nothing."""
