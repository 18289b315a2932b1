"""Staging chains that a handle has seen lately, so that a record costs the same however deep its rollout is."""

import threading
from collections import OrderedDict
from typing import Final

from rollout_control_server.ledger.staging_chains import bytes_of_chain

__all__ = ["ChainCache"]

_MAX_CHAINS: Final = 2048
_MAX_BYTES: Final = 32 * 2**20
"""Of all chains together: two chains each of 256 rollouts that are a thousand calls deep."""


class ChainCache:
    """The least recently used go first. A chain never changes while its generation lives, so no entry is ever wrong.

    What is kept is the tuple that the writer handed in. The next commit of the rollout usually holds the same string
    objects, so that comparing the two chains compares pointers.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._chains: Final[OrderedDict[tuple[int, str], tuple[int, tuple[str, ...]]]] = OrderedDict()
        self._bytes = 0

    def get(self, generation: int, model_call_id: str) -> tuple[int, tuple[str, ...]] | None:
        """Returns the call's place in its rollout and its chain, or None."""
        with self._lock:
            found = self._chains.get((generation, model_call_id))
            if found is not None:
                self._chains.move_to_end((generation, model_call_id))
            return found

    def put(self, generation: int, model_call_id: str, seq: int, chain: tuple[str, ...]) -> None:
        """Remembers the chain of a call that is in the ledger."""
        with self._lock:
            if (generation, model_call_id) in self._chains:
                return
            self._chains[generation, model_call_id] = seq, chain
            self._bytes += bytes_of_chain(chain)
            while len(self._chains) > _MAX_CHAINS or self._bytes > _MAX_BYTES:
                _, (_, oldest) = self._chains.popitem(last=False)
                self._bytes -= bytes_of_chain(oldest)
