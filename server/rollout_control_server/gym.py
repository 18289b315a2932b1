"""Any ledger of ours as the capture ledger of a NeMo Gym model server.

Named in Gym's configuration, beside `external_staging: true`:

    token_id_capture:
      lineage_store: "rollout_control_server.gym:GymCaptureLedger"
      lineage_store_kwargs: {url: "sqlite:///ledger.db"}

This is the only module that imports nemo_gym, which brings Python 3.13 with it, and no other module imports this one.
What happens when storage fails, and what a crash then loses, is told in docs/gym.md.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec
from nemo_gym.token_id_capture import protocols
from nemo_gym.token_id_capture.fingerprint import FINGERPRINT_VERSION, assistant_fingerprint, conversation_digest
from nemo_gym.token_id_capture.protocols import LineageMatch, LineageResolution
from nemo_gym.token_id_capture.records import ParentResolutionStatus
from nemo_gym.token_id_capture.staging.records import CaptureLedgerCommit

from rollout_control_server.errors import LedgerClosedError, LedgerUnavailableError, RolloutRetiredError
from rollout_control_server.ledger import open_ledger
from rollout_control_server.records import CallRecord, CaptureCommit, ParentLookup, RolloutRemoval

__all__ = ["LEDGER_UNAVAILABLE_REASON", "GymCaptureLedger"]

logger = logging.getLogger("rollout_control_server.gym")

_Result = TypeVar("_Result")

LEDGER_UNAVAILABLE_REASON: Final = "ledger_unavailable"
"""The reason of a failure row for a call whose record the ledger could not take when the call had been generated."""

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_REMEMBERED_DIGESTS: Final = 4096


class GymCaptureLedger:
    """Gym's `CaptureLedger` protocol over a ledger of ours.

    Gym builds one in each server process, before an event loop runs, and closes it when its server stops; one that was
    given to Gym's `install_lineage_store` is closed by whoever built it.

    A write goes on when the call that waits for it is cancelled, as when an agent hangs up. A failure row that the
    storage would not take is owed: until it is written, which is tried again and again, this process answers for that
    rollout neither a manifest nor a parent, and writes nothing else of it.

    Args:
        url: Which ledger, as `rollout_control_server.ledger.open_ledger` reads it.
        outage_wait_s: Seconds that one operation of a model call waits for storage that does not answer, before it
            fails. While a call waits, its agent waits.

    Raises:
        ValueError: `outage_wait_s` is not positive, or the URL names no ledger.
        LedgerRefusedError: What the URL names cannot be a ledger.
    """

    def __init__(self, url: str, *, outage_wait_s: float = 30.0) -> None:
        if not outage_wait_s > 0:
            raise ValueError(f"outage_wait_s must be positive, and is {outage_wait_s}")
        self._ledger = open_ledger(url)
        self._outage_wait_s = outage_wait_s
        self._digests = _ContextDigests()
        self._owed: dict[str, dict[str, str]] = {}
        self._writes: set[asyncio.Task[None]] = set()
        self._settler: asyncio.Task[None] | None = None

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
            found = await self._patiently(
                rollout_id, lambda: self._ledger.find_parent(rollout_id, fingerprint, FINGERPRINT_VERSION)
            )
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

    async def record(self, commit: CaptureLedgerCommit) -> None:
        """Appends a call; returns when it is durable, or discarded because the rollout is retired.

        Raises:
            LedgerUnavailableError: The storage did not answer in time; a failure row is owed.
            ValueError: The call id holds another commit, the commit cannot be recorded, or Gym cannot fingerprint its
                items. Nothing was changed.
        """
        await self._carry_through(self._write_record(self._our_commit(commit)))

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """Notes that a call's capture failed; returns when that is durable, or discarded like a record.

        Raises:
            LedgerUnavailableError: The storage did not answer in time; the row is owed. At once where a row of this
                call is owed already, because Gym tells of one failure up to three times.
        """
        if model_call_id in self._owed.get(rollout_id, {}):
            raise LedgerUnavailableError(f"a failure row of call {model_call_id!r} is owed until the storage answers")
        await self._carry_through(self._write_failure(rollout_id, model_call_id, reason))

    async def manifest(self, rollout_id: str) -> dict[str, Any]:
        """Returns the rollout's manifest, which Gym's RolloutManifest validates.

        Raises:
            RolloutRetiredError: The rollout is retired; Gym's class where Gym has one.
            LedgerUnavailableError: The storage does not answer now, or a failure row of the rollout is owed.
        """
        await self._settle(rollout_id)
        try:
            manifest = await self._ledger.manifest(rollout_id)
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
            return await self._patiently(rollout_id, lambda: self._ledger.has_rows(rollout_id))
        except RolloutRetiredError as error:
            if _gyms_retired_error() is None:
                return True
            raise _as_gyms(error) from error

    async def retire(self, rollout_ids: Sequence[str]) -> dict[str, list[str]]:
        """Fences rollouts and removes their rows, as `CaptureLedger.retire` says; owed rows go with them."""
        removal = await self._ledger.retire(rollout_ids)
        return self._forgive(removal)

    async def delete(self, rollout_ids: Sequence[str]) -> dict[str, list[str]]:
        """Removes rollouts' rows and fences, as `CaptureLedger.delete` says; owed rows go with them."""
        removal = await self._ledger.delete(rollout_ids)
        return self._forgive(removal)

    async def close(self) -> None:
        """Finishes the writes, tries once more to write what is owed, and closes the ledger. Again is a no-op."""
        await asyncio.gather(*self._writes, return_exceptions=True)
        if self._settler is not None:
            self._settler.cancel()
        for rollout_id in list(self._owed):
            try:
                await self._settle(rollout_id)
            except Exception as error:
                lost = list(self._owed.get(rollout_id, {}).items())
                logger.error("lost the owed failure rows %r of rollout %r: %s", lost, rollout_id, error)
        self._owed.clear()
        await self._ledger.aclose()

    def _our_commit(self, commit: CaptureLedgerCommit) -> CaptureCommit:
        """Returns a commit of Gym's as one of ours, with the lookup that `resolve` asks for."""
        request_items = commit.request_items
        fingerprint = assistant_fingerprint([*request_items, *commit.response_items])
        context_digest = self._digests.of(request_items)
        lookup = ParentLookup(fingerprint, len(request_items), context_digest) if fingerprint else None
        record = CallRecord(**commit.record.model_dump())
        return CaptureCommit(commit.rollout_id, record, commit.staging_chain, lookup)

    def _continues(self, request_items: list[dict[str, Any]], parent: ParentLookup) -> bool:
        """Returns whether the request begins with the items of the parent's own request, unchanged."""
        if len(request_items) < parent.context_len:
            return False
        return self._digests.of(request_items[: parent.context_len]) == parent.context_digest

    async def _write_record(self, commit: CaptureCommit) -> None:
        try:
            await self._patiently(commit.rollout_id, lambda: self._ledger.record(commit))
        except (TypeError, ValueError):  # No fault of the storage, which has changed nothing: Gym notes the failure.
            raise
        except Exception as error:
            logger.error(
                "could not record call %r of rollout %r, whose tokens are staged at %r, and owe a failure row: %s",
                commit.record.model_call_id,
                commit.rollout_id,
                commit.record.staging_key,
                error,
            )
            self._owe(commit.rollout_id, commit.record.model_call_id, LEDGER_UNAVAILABLE_REASON)
            raise

    async def _write_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        try:
            await self._patiently(rollout_id, lambda: self._ledger.record_failure(rollout_id, model_call_id, reason))
        except (TypeError, ValueError):
            raise
        except Exception as error:
            logger.error("owe the failure row of call %r of rollout %r: %s", model_call_id, rollout_id, error)
            self._owe(rollout_id, model_call_id, reason)
            raise

    async def _carry_through(self, write: Coroutine[Any, Any, None]) -> None:
        """Waits for a write that goes on when the waiting is cancelled.

        A write of its own task, because under anyio's cancelled scopes every await of the caller is cancelled anew,
        and a call that ended so would have neither a record nor a failure row.
        """
        task = asyncio.create_task(write)
        self._writes.add(task)
        task.add_done_callback(self._written)
        await asyncio.shield(task)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        # Asked for here as well, because whoever waited for it may be gone.
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.info("a write was refused: %s", error)

    async def _patiently(self, rollout_id: str, operation: Callable[[], Awaitable[_Result]]) -> _Result:
        """Returns what the operation does, once what is owed for the rollout is written; waits for absent storage."""
        outage: LedgerUnavailableError | None = None
        pause_s = _FIRST_PAUSE_S
        try:
            async with asyncio.timeout(self._outage_wait_s):
                while True:
                    try:
                        await self._settle(rollout_id)
                        return await operation()
                    except LedgerClosedError:
                        raise
                    except LedgerUnavailableError as error:
                        outage = error
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except TimeoutError:
            raise LedgerUnavailableError(f"the ledger did not answer within {self._outage_wait_s} s") from outage

    def _owe(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        self._owed.setdefault(rollout_id, {}).setdefault(model_call_id, reason)
        if self._settler is None or self._settler.done():
            self._settler = asyncio.create_task(self._settle_all())

    async def _settle(self, rollout_id: str) -> None:
        """Writes what is owed for the rollout."""
        for model_call_id, reason in list(self._owed.get(rollout_id, {}).items()):
            await self._ledger.record_failure(rollout_id, model_call_id, reason)
            logger.info("wrote the failure row of call %r of rollout %r that was owed", model_call_id, rollout_id)
            owed = self._owed.get(rollout_id, {})
            owed.pop(model_call_id, None)
            if not owed:
                self._owed.pop(rollout_id, None)

    async def _settle_all(self) -> None:
        """Tries to write what is owed until nothing is."""
        pause_s = _FIRST_PAUSE_S
        while self._owed:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            for rollout_id in list(self._owed):
                try:
                    await self._settle(rollout_id)
                except LedgerClosedError:
                    return
                except Exception as error:
                    logger.debug("still owe failure rows of rollout %r: %s", rollout_id, error)

    def _forgive(self, removal: RolloutRemoval) -> dict[str, list[str]]:
        for rollout_id in (*removal.removed, *removal.absent):
            self._owed.pop(rollout_id, None)
        return {"removed": removal.removed, "absent": removal.absent}


class _ContextDigests:
    """Gym's `conversation_digest`, remembered.

    It is most of what a call costs here, it grows with the conversation, and the same items come twice: in a call's
    record, and as the context of the request that continues the call. What is remembered is found by a digest of the
    items as they are, which costs a small part of it.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}

    def of(self, items: list[dict[str, Any]]) -> str:
        """Returns `conversation_digest(items)`.

        Raises:
            Exception: What Gym's function raises for items that it cannot hash, mostly ValueError.
        """
        try:
            exact = hashlib.sha256(msgspec.msgpack.encode(items)).digest()
        except Exception:
            return str(conversation_digest(items))  # Gym knows what can be hashed.
        known = self._known.get(exact)
        if known is None:
            known = self._known[exact] = str(conversation_digest(items))
            if len(self._known) > _REMEMBERED_DIGESTS:
                del self._known[next(iter(self._known))]
        return known

    def remember(self, items: list[dict[str, Any]]) -> None:
        """Hashes items for a later `of`, which tells if they can't be."""
        with contextlib.suppress(Exception):
            self.of(items)


def _gyms_retired_error() -> type[Exception] | None:
    """Returns Gym's own class, to which its routes answer 410; 0.7.0 has none, and knows of no retired rollouts."""
    return getattr(protocols, "RolloutRetiredError", None)


def _as_gyms(error: RolloutRetiredError) -> Exception:
    gyms = _gyms_retired_error()
    return error if gyms is None else gyms(str(error))
