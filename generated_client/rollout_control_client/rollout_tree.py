"""What a manifest says of its rollout: the calls as a tree, whether it is complete, and its tokens in numbers."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec

from rollout_control_client._generated.models import CallRecord, RolloutManifest

__all__ = ["RolloutTree", "to_rows"]


class RolloutTree:
    """The calls of one rollout as a tree, made from its manifest.

        tree = RolloutTree(manifest)
        if tree.is_complete:
            for leaf in tree.leaves:
                train_on(tree.chain_to(leaf))

    - A **root** is a call without a parent: it began from text.
    - The **children** of a call are those that name it as their parent: they continued its tokens.
    - A **leaf** is a call without children. Its chain is a whole sequence of tokens, from a root's first to the leaf's
      last. An agent that retried or branched has several.
    - The **chain** to a call has the calls from its root to the call itself, in order.

    Everything follows from the manifest alone. What it cannot say: a call that left neither a record nor a failure row,
    because its model server ended before it could write one, is missing here without a trace.

    Args:
        manifest: The rollout's manifest.

    Attributes:
        manifest: The manifest.
        calls: Its records, in commit order.
    """

    def __init__(self, manifest: RolloutManifest) -> None:
        self.manifest = manifest
        self.calls: tuple[CallRecord, ...] = tuple(manifest.records)
        self._by_id = {call.model_call_id: call for call in self.calls}
        self._children: dict[str, list[CallRecord]] = {}
        for call in self.calls:
            if call.parent_call_id is not None:
                self._children.setdefault(call.parent_call_id, []).append(call)

    @property
    def roots(self) -> tuple[CallRecord, ...]:
        """The calls without a parent, in commit order."""
        return tuple(call for call in self.calls if call.parent_call_id is None)

    @property
    def leaves(self) -> tuple[CallRecord, ...]:
        """The calls that no other call names as its parent, in commit order."""
        return tuple(call for call in self.calls if call.model_call_id not in self._children)

    def children_of(self, call: CallRecord) -> tuple[CallRecord, ...]:
        """Returns the calls that name this one as their parent, in commit order."""
        return tuple(self._children.get(call.model_call_id, ()))

    def chain_to(self, call: CallRecord) -> tuple[CallRecord, ...]:
        """Returns the calls from the root to this one, in order.

        Raises:
            ValueError: The call is not of this rollout, or its chain does not reach a root: a parent is missing, or
                calls are each other's ancestors. `problems` names such calls.
        """
        if self._by_id.get(call.model_call_id) != call:
            raise ValueError(f"rollout {self.manifest.rollout_id!r} has no such call as {call.model_call_id!r}")
        chain = [call]
        while chain[-1].parent_call_id is not None:
            parent = self._by_id.get(chain[-1].parent_call_id)
            if parent is None or len(chain) > len(self.calls):
                raise ValueError(
                    f"the chain to call {call.model_call_id!r} of rollout {self.manifest.rollout_id!r} reaches no root"
                )
            chain.append(parent)
        return tuple(reversed(chain))

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing in `problems`."""
        return not self.problems

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Why one should not train on this rollout as if it were whole, a sentence each; empty where it is complete.

        A rollout is complete if it has at least one call (a mistyped id has an empty manifest too) and no failures, if
        every parent is there, and if the lengths add up along each chain: a root begins at 0, a child where its parent
        ends.
        """
        found = [] if self.calls else ["it has no calls"]
        found += [
            f"the capture of call {failure.model_call_id!r} failed: {failure.reason}"
            for failure in self.manifest.failures
        ]
        if len(self._by_id) < len(self.calls):
            found.append("a call id comes twice")
        for call in self.calls:
            parent = None if call.parent_call_id is None else self._by_id.get(call.parent_call_id)
            if call.parent_call_id is not None and parent is None:
                found.append(f"the parent {call.parent_call_id!r} of call {call.model_call_id!r} is missing")
                continue
            begin = 0 if parent is None else parent.cum_len
            # A call always adds tokens, so calls that are each other's ancestors do not add up either.
            if call.prev_len != begin or call.cum_len != call.prev_len + call.delta_len:
                found.append(
                    f"the lengths of call {call.model_call_id!r} do not add up: {begin} tokens before it, "
                    f"prev_len {call.prev_len}, delta_len {call.delta_len}, cum_len {call.cum_len}"
                )
        return tuple(found)

    @property
    def tokens(self) -> int:
        """How many tokens the rollout has, each counted once, which is the sum of `delta_len` of all calls."""
        return sum(call.delta_len for call in self.calls)

    @property
    def leaf_tokens(self) -> int:
        """How many tokens the chains of all leaves have together, shared beginnings counted for each."""
        return sum(leaf.cum_len for leaf in self.leaves)

    @property
    def weight_versions(self) -> tuple[int, ...]:
        """The versions of the weights that generated its calls, ascending, each once."""
        return tuple(sorted({call.weight_version for call in self.calls}))


def to_rows(manifests: Iterable[RolloutManifest]) -> list[dict[str, Any]]:
    """Returns a row for each call of the manifests, for a table of pandas, polars or Arrow.

    A row has `rollout_id`, each field of the CallRecord, and `is_leaf`; every row has the same columns. Failures are no
    calls: `manifest.failures` has them.

        >>> import pandas, polars, pyarrow
        >>> rows = to_rows([manifest])
        >>> pandas.DataFrame(rows)[["rollout_id", "delta_len", "cum_len", "is_leaf"]]
          rollout_id  delta_len  cum_len  is_leaf
        0   linear-3         40       40    False
        1   linear-3         57       97    False
        2   linear-3         74      171     True
        >>> polars.DataFrame(rows)["delta_len"].sum()
        171
        >>> pyarrow.Table.from_pylist(rows).num_rows
        3
    """
    rows: list[dict[str, Any]] = []
    for manifest in manifests:
        leaves = _ids(RolloutTree(manifest).leaves)
        for call in manifest.records:
            row = {"rollout_id": manifest.rollout_id, **msgspec.structs.asdict(call)}
            rows.append({**row, "is_leaf": call.model_call_id in leaves})
    return rows


def _ids(calls: Sequence[CallRecord]) -> frozenset[str]:
    return frozenset(call.model_call_id for call in calls)
