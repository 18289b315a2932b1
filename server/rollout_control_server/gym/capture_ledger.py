"""Gym's `CaptureLedger` protocol over a ledger of ours."""

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from nemo_gym.token_id_capture import protocols
from nemo_gym.token_id_capture.fingerprint import FINGERPRINT_VERSION, assistant_fingerprint
from nemo_gym.token_id_capture.protocols import LineageMatch, LineageResolution
from nemo_gym.token_id_capture.records import ParentResolutionStatus
from nemo_gym.token_id_capture.staging import records as gyms

from rollout_control_server.errors import LedgerClosedError, RolloutRetiredError
from rollout_control_server.gym.context_digests import ContextDigests
from rollout_control_server.gym.ledger_loop import LedgerLoop
from rollout_control_server.gym.patient_ledger import PatientLedger
from rollout_control_server.gym.rows import export_of_rows, rows_of_export
from rollout_control_server.ledger import open_ledger
from rollout_control_server.ledger.results import RolloutExport
from rollout_control_server.records import CallRecord, CaptureCommit, ParentLookup, RolloutRemoval

__all__ = ["GymCaptureLedger"]

logger = logging.getLogger("rollout_control_server.gym")

_LATER_ATTEMPT: Final = re.compile(r"(.+)-a([1-9][0-9]*)")


class GymCaptureLedger:
    """Gym's `CaptureLedger` protocol over a ledger of ours, and what Gym's checkpoints ask of one.

    Gym builds one in each server process, before an event loop runs, and closes it when its server stops; one that was
    given to Gym's `install_lineage_store` is closed by whoever built it.

    The ledger is used in an event loop and a thread of its own. So the coroutines may be awaited in any event loop, in
    several too, and the synchronous methods may be called in any thread, that of a running event loop included.

    A write goes on when the call that waits for it is cancelled, as when an agent hangs up. A failure row that the
    storage would not take is owed: until it is written, which is tried again and again, this process answers for that
    rollout neither a manifest nor a parent, and writes nothing else of it.

    Args:
        url: Which ledger, as `rollout_control_server.ledger.open_ledger` reads it.
        outage_wait_s: Seconds that one operation of a model call, or of a checkpoint, waits for storage that does not
            answer, before it fails. While a call waits, its agent waits.

    Raises:
        ValueError: `outage_wait_s` is not positive, or the URL names no ledger.
        LedgerRefusedError: What the URL names cannot be a ledger.
    """

    def __init__(self, url: str, *, outage_wait_s: float = 30.0) -> None:
        if not outage_wait_s > 0:
            raise ValueError(f"outage_wait_s must be positive, and is {outage_wait_s}")
        self._ledger = PatientLedger(open_ledger(url), outage_wait_s)
        self._loop = LedgerLoop()
        self._digests = ContextDigests()

    def is_process_shared(self) -> bool:
        """Returns whether several processes can share the ledger; Gym refuses to run several workers otherwise."""
        return self._ledger.process_shared

    async def resolve(self, rollout_id: str, request_items: list[dict[str, Any]]) -> LineageResolution:
        """Returns which committed call of the rollout the request continues.

        The rules are those of Gym's FileLineageStore for ledger rows: the fingerprint must name exactly one call, and
        only then is that call's context compared. In a retired rollout no request is resolved.

        Raises:
            LedgerUnavailableError: The storage did not answer in time. Gym fails the call before it is generated.
            ValueError: Gym cannot fingerprint the items.
        """
        fingerprint = assistant_fingerprint(request_items)
        if not fingerprint:
            return LineageResolution(ParentResolutionStatus.ROOT)
        try:
            found = await self._loop.wait_for(self._ledger.find_parent(rollout_id, fingerprint, FINGERPRINT_VERSION))
        except RolloutRetiredError:
            return LineageResolution(ParentResolutionStatus.UNRESOLVED, reason="rollout_retired")
        if found is None or found.lookup is None or not self._continues(request_items, found.lookup):
            return LineageResolution(ParentResolutionStatus.UNRESOLVED, reason="no_match")
        # The record will need it, and from now on the call waits for its generation.
        asyncio.get_running_loop().call_soon(self._digests.remember, request_items)
        parent = found.record
        match = LineageMatch(
            model_call_id=parent.model_call_id,
            cumulative_token_ids=(),
            digest=parent.cumulative_hash,
            staging_chain=found.staging_chain,
            prev_len=parent.cum_len,
            chain_hash=parent.chain_hash,
        )
        return LineageResolution(ParentResolutionStatus.RESOLVED, match)

    async def record(self, commit: gyms.CaptureLedgerCommit) -> None:
        """Appends a call; returns when it is durable, or discarded because the rollout is retired.

        Raises:
            LedgerUnavailableError: The storage did not answer in time; a failure row is owed.
            ValueError: The call id holds another commit, the commit cannot be recorded, or Gym cannot fingerprint its
                items. Nothing was changed.
        """
        await self._loop.carry_through(self._ledger.record(self._our_commit(commit)))

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """Notes that a call's capture failed; returns when that is durable, or discarded like a record.

        Raises:
            LedgerUnavailableError: The storage did not answer in time; the row is owed. At once where a row of this
                call is owed already, because Gym notes one failure up to three times.
        """
        await self._loop.carry_through(self._ledger.record_failure(rollout_id, model_call_id, reason))

    async def manifest(self, rollout_id: str) -> dict[str, Any]:
        """Returns the rollout's manifest, which Gym's RolloutManifest validates.

        Raises:
            RolloutRetiredError: The rollout is retired; Gym's class where Gym has one.
            LedgerUnavailableError: The storage does not answer now, or a failure row of the rollout is owed.
        """
        try:
            manifest = await self._loop.wait_for(self._ledger.manifest(rollout_id))
        except RolloutRetiredError as error:
            raise _as_gyms(error) from error
        decoded: dict[str, Any] = msgspec.json.decode(manifest)
        return decoded

    async def has_rows(self, rollout_id: str) -> bool:
        """Returns whether the rollout has any row, committed or failed.

        Gym asks in order to let a request without a known parent begin a rollout. A retired one must not begin again:
        True where Gym would answer the agent 500 to an error.

        Raises:
            RolloutRetiredError: Gym's class, where Gym has one: the rollout is retired.
            LedgerUnavailableError: The storage did not answer in time. Gym fails the call before it is generated.
        """
        try:
            return await self._loop.wait_for(self._ledger.has_rows(rollout_id))
        except RolloutRetiredError as error:
            if _gyms_retired_error() is None:
                return True
            raise _as_gyms(error) from error

    async def retire(self, rollout_ids: Sequence[str]) -> dict[str, list[str]]:
        """Fences rollouts and removes their rows, as `CaptureLedger.retire` says; owed rows go with them."""
        return _as_payload(await self._loop.carry_through(self._ledger.retire(rollout_ids)))

    async def delete(self, rollout_ids: Sequence[str]) -> dict[str, list[str]]:
        """Removes rollouts' rows and fences, as `CaptureLedger.delete` says; owed rows go with them."""
        return _as_payload(await self._loop.carry_through(self._ledger.delete(rollout_ids)))

    def export_rows(self, rollout_id: str) -> list[dict[str, Any]]:
        """Returns the rollout's rows in the layout of Gym's own store, in commit order, for a checkpoint.

        Imported rows have the keys with which they were imported. A rollout that is unknown, deleted or retired has
        none; that it is retired is logged as a warning.

        Raises:
            LedgerUnavailableError: The storage did not answer in time, or a failure row of the rollout is owed.
            ValueError: The rollout id is none.
        """
        export = self._loop.block_on(self._ledger.export(rollout_id))
        if export.retired_at is not None:
            logger.warning("rollout %r is retired, so a checkpoint gets no rows of it", rollout_id)
        return rows_of_export(export)

    def import_rows(self, rollout_id: str, rows: list[dict[str, Any]]) -> None:
        """As `import_rows_many` of one rollout."""
        self.import_rows_many({rollout_id: rows})

    def import_rows_many(self, rows_by_rollout: Mapping[str, list[dict[str, Any]]]) -> None:
        """Puts rows of a checkpoint in the place of what the ledger has of their rollouts, as one atomic change.

        Rows and fences of the rollouts go, and those of later attempts of the same rollouts, unless they are in the
        batch themselves: importing `r-a1` clears `r-a2` and all that follow. No rows clear a rollout.

        Raises:
            LedgerUnavailableError: The storage did not answer in time.
            ValueError: A row makes no record and no failure, rows cannot stand together, or an id is none. Nothing was
                changed.
        """
        # A newer Gym's CallRecord has more fields; a manifest serves those that the running Gym knows.
        served_fields = gyms.CallRecord.model_fields.keys()
        now = time.time()
        exports = [export_of_rows(one, rows, now, served_fields) for one, rows in rows_by_rollout.items()]
        self._loop.block_on(self._import(exports))

    def cache_sizes(self) -> Iterable[tuple[str, int]]:
        """Returns how much this process remembers, by name: Gym's metrics ask for it."""
        return [("context_digests", len(self._digests)), ("owed_failures", self._ledger.owed_failures)]

    async def close(self) -> None:
        """Finishes the writes, tries once more to write what is owed, and closes the ledger. Again is a no-op."""
        try:
            await self._loop.carry_through(self._ledger.close())
        except LedgerClosedError:
            return
        await self._loop.stop()

    async def _import(self, exports: list[RolloutExport]) -> None:
        cleared: set[str] = set()
        for export in exports:
            first = _attempt_of(export.rollout_id)
            for rollout_id in await self._ledger.ids_with_prefix(f"{first.rollout}-a"):
                attempt = _attempt_of(rollout_id)
                if attempt.rollout == first.rollout and attempt.number > first.number:
                    cleared.add(rollout_id)
        cleared.difference_update(export.rollout_id for export in exports)
        await self._ledger.import_([*exports, *(RolloutExport(one, None, []) for one in sorted(cleared))])

    def _our_commit(self, commit: gyms.CaptureLedgerCommit) -> CaptureCommit:
        """Returns a commit of Gym's as one of ours, with the lookup that `resolve` asks for."""
        request_items = commit.request_items
        fingerprint = assistant_fingerprint([*request_items, *commit.response_items])
        context_len, context_digest = len(request_items), self._digests.of(request_items)
        lookup = ParentLookup(fingerprint, context_len, context_digest) if fingerprint else None
        fields = commit.record.model_dump(mode="json")
        # A field that Gym's record has and ours does not declare. What is null is not served, and exported again.
        further = {name: fields.pop(name) for name in list(fields) if name not in CallRecord.__struct_fields__}
        unserved: dict[str, Any] = {}
        if fields.get("capture_key", "") is None:
            unserved["capture_key"] = fields.pop("capture_key")
        if lookup is None:  # No request finds this call; a row of Gym's has the context all the same.
            unserved |= {"context_len": context_len, "context_digest": context_digest}
        return CaptureCommit(commit.rollout_id, CallRecord(**fields), commit.staging_chain, lookup, further, unserved)

    def _continues(self, request_items: list[dict[str, Any]], parent: ParentLookup) -> bool:
        """Returns whether the request begins with the items of the parent's own request, unchanged."""
        if len(request_items) < parent.context_len:
            return False
        return self._digests.of(request_items[: parent.context_len]) == parent.context_digest


class _Attempt(NamedTuple):
    """A rollout's id, split: the first attempt's id, and the number of this one, 0 for the first."""

    rollout: str
    number: int


def _attempt_of(rollout_id: str) -> _Attempt:
    later = _LATER_ATTEMPT.fullmatch(rollout_id)
    return _Attempt(rollout_id, 0) if later is None else _Attempt(later[1], int(later[2]))


def _as_payload(removal: RolloutRemoval) -> dict[str, list[str]]:
    return {"removed": removal.removed, "absent": removal.absent}


def _gyms_retired_error() -> type[Exception] | None:
    """Returns Gym's own class, to which its routes answer 410; 0.7.0 has none, and knows of no retired rollouts."""
    return getattr(protocols, "RolloutRetiredError", None)


def _as_gyms(error: RolloutRetiredError) -> Exception:
    gyms = _gyms_retired_error()
    return error if gyms is None else gyms(str(error))
