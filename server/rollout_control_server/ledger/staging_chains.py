"""Checking the staging chains of commits, at a cost that hardly grows with their length."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

__all__ = ["CheckedChains", "bytes_of_chain"]

_DEEP: Final = 64
"""From how many keys on a chain is remembered; shorter ones are checked as fast."""
_MAX_BYTES: Final = 32 * 2**20
"""Of all remembered chains together: those of some 500 rollouts that are a thousand calls deep."""


def bytes_of_chain(staging_chain: tuple[str, ...]) -> int:
    """Returns about how much memory a chain takes: its keys are taken to be as long as the last."""
    return len(staging_chain) * (8 + len(staging_chain[-1])) if staging_chain else 0


class CheckedChains:
    """Checks staging chains, and remembers the deep ones that were not continued since; the least recent go first.

    A chain comes with every commit, and is as long as the rollout is deep. One that continues a chain that was checked
    before, by one key, is compared with that, which only compares pointers where the strings are the same objects. To
    look into a thousand strings takes ten times as long.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        # Each by its last key.
        self._chains: Final[OrderedDict[str, tuple[str, ...]]] = OrderedDict()
        self._bytes = 0

    def check(self, staging_chain: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
        """Checks that a chain holds text that is not empty and has no lone surrogate.

        Returns:
            The chain, and the one that it continues, the same object as it was returned then, or None if that is not
            known.

        Raises:
            TypeError: It is a bare string, or holds something else than strings.
            ValueError: A key is empty or has a lone surrogate.
        """
        if isinstance(staging_chain, str):
            raise TypeError("staging_chain is a sequence of staging keys, not a string")
        chain = tuple(staging_chain)
        if len(chain) < _DEEP:
            _check_keys(chain)
            return chain, None
        with self._lock:
            continued = self._chains.get(chain[-2])
        # Made of what was checked, since something else than a string can be equal to one.
        seen = None if continued is None else continued + chain[-1:]
        if seen == chain:
            _check_keys(chain[-1:])
            self._remember(seen, continued)
            return seen, continued
        _check_keys(chain)
        self._remember(chain, None)
        return chain, None

    def _remember(self, chain: tuple[str, ...], continued: tuple[str, ...] | None) -> None:
        with self._lock:
            for replaced in (chain, continued):
                if replaced is not None and (before := self._chains.pop(replaced[-1], None)) is not None:
                    self._bytes -= bytes_of_chain(before)
            self._chains[chain[-1]] = chain
            self._bytes += bytes_of_chain(chain)
            while self._bytes > _MAX_BYTES:
                _, oldest = self._chains.popitem(last=False)
                self._bytes -= bytes_of_chain(oldest)


def _check_keys(keys: tuple[str, ...]) -> None:
    if not {str}.issuperset(map(type, keys)):
        raise TypeError("staging_chain holds something else than strings")
    "".join(keys).encode()
    if not all(keys):
        raise ValueError("staging_chain holds an empty staging key")
