"""The operations of the control plane: what each asks of a ledger, and how the ledger's result or error is answered."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
from rollout_control_spec import unique_rollout_ids, validate_rollout_id

from rollout_control_server.errors import ProblemKind, RequestRefusedError
from rollout_control_server.listing import read_page, read_summary, retire_idle
from rollout_control_server.manifests import DEFAULT_ANSWER_LIMIT, join_manifests, read_manifest, read_manifests
from rollout_control_server.problems import problem_for
from rollout_control_server.records import IdleRemovalRequest, LedgerBatchRequest, ListingQuery, RolloutRemoval

__all__ = ["Operations", "RefuseRemoval"]

T = TypeVar("T")

RefuseRemoval = Callable[[], str | Awaitable[str | None] | None]
"""Returns why retire and delete are refused for now, or None; plain or async."""


class Operations:
    """The operations on one ledger. Each returns the body of its answer as JSON.

    Each of them raises RequestRefusedError for whatever keeps it from being done.
    """

    def __init__(
        self, ledger: Any, refuse_removal: RefuseRemoval | None = None, answer_limit: int = DEFAULT_ANSWER_LIMIT
    ) -> None:
        """Takes a ledger of ours or of another make; see `install_rollout_control_routes`.

        Raises:
            TypeError: `refuse_removal` cannot be called.
            ValueError: `answer_limit` is less than 1.
        """
        if refuse_removal is not None and not callable(refuse_removal):
            raise TypeError(f"refuse_removal is called for a reason, and {refuse_removal!r:.80} cannot be")
        if answer_limit < 1:
            raise ValueError(f"answer_limit must be at least 1 byte, and is {answer_limit}")
        self._ledger: Final = ledger
        self._refuse_removal: Final = refuse_removal
        self._answer_limit: Final = answer_limit

    async def manifest(self, rollout_id: str) -> bytes:
        """Reads one rollout's manifest (spec, getRolloutManifest)."""
        _validate(validate_rollout_id, rollout_id)
        try:
            return await read_manifest(self._ledger, rollout_id)
        except Exception as error:
            raise problem_for(error, f"manifest of rollout {rollout_id!r}") from error

    async def manifests(self, batch: LedgerBatchRequest) -> bytes:
        """Reads the manifests of a batch, as many as one answer has room for (spec, getRolloutManifests)."""
        rollout_ids = _validate(unique_rollout_ids, batch.rollout_ids)
        try:
            return join_manifests(await read_manifests(self._ledger, rollout_ids, self._answer_limit))
        except Exception as error:
            raise problem_for(error, f"manifests of {len(rollout_ids)} rollouts") from error

    async def retire(self, batch: LedgerBatchRequest) -> bytes:
        """Fences the rollouts of a batch and removes their rows (spec, retireRollouts)."""
        return await self._remove("retire", batch)

    async def delete(self, batch: LedgerBatchRequest) -> bytes:
        """Removes rows and fences of the rollouts of a batch (spec, deleteRollouts)."""
        return await self._remove("delete", batch)

    async def rollouts(self, query: ListingQuery) -> bytes:
        """Lists the rollouts that there are (spec, listRollouts)."""
        if query.after is not None:
            _validate(validate_rollout_id, query.after)
        self._require("rollouts")
        try:
            return msgspec.json.encode(await read_page(self._ledger, query))
        except Exception as error:
            raise problem_for(error, "list rollouts") from error

    async def summary(self) -> bytes:
        """Counts what the ledger holds (spec, summarizeRollouts)."""
        self._require("summary")
        try:
            return msgspec.json.encode(await read_summary(self._ledger))
        except Exception as error:
            raise problem_for(error, "summary") from error

    async def retire_idle(self, batch: IdleRemovalRequest) -> bytes:
        """Retires those rollouts of a batch that are idle (spec, retireIdleRollouts)."""
        rollout_ids = _validate(unique_rollout_ids, batch.rollout_ids)
        self._require("retire_idle")
        await self._refuse_if_paused()
        try:
            return msgspec.json.encode(await retire_idle(self._ledger, rollout_ids, batch.idle_for_s))
        except Exception as error:
            raise problem_for(error, f"retire_idle of {len(rollout_ids)} rollouts") from error

    async def _remove(self, operation: str, batch: LedgerBatchRequest) -> bytes:
        rollout_ids = _validate(unique_rollout_ids, batch.rollout_ids)
        removal = self._require(operation)
        await self._refuse_if_paused()
        try:
            return msgspec.json.encode(_as_removal(await removal(rollout_ids)))
        except Exception as error:
            raise problem_for(error, f"{operation} of {len(rollout_ids)} rollouts") from error

    def _require(self, operation: str) -> Any:
        """Returns the ledger's method, which a ledger of another make may lack."""
        method = getattr(self._ledger, operation, None)
        if method is None:
            raise RequestRefusedError(
                ProblemKind.NOT_IMPLEMENTED, f"this server's ledger has no operation {operation!r}"
            )
        return method

    async def _refuse_if_paused(self) -> None:
        if self._refuse_removal is None:
            return
        reason = self._refuse_removal()
        if inspect.isawaitable(reason):
            reason = await reason
        if reason is not None:
            # A lone surrogate cannot be sent.
            detail = str(reason).encode("utf-8", "replace").decode()
            raise RequestRefusedError(ProblemKind.REMOVAL_REFUSED, detail)


def _validate(check: Callable[[Any], T], ids: object) -> T:
    try:
        return check(ids)
    except ValueError as error:
        raise RequestRefusedError(ProblemKind.INVALID_ROLLOUT_ID, str(error)) from error


def _as_removal(answer: Any) -> RolloutRemoval:
    """Returns a ledger's answer as exactly the fields of the wire. A ledger of another make answers with a dict."""
    if isinstance(answer, RolloutRemoval):
        return answer
    return RolloutRemoval(removed=list(answer["removed"]), absent=list(answer["absent"]))
