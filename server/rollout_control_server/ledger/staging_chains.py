"""Checking the staging chains of commits, at a cost that hardly grows with their length."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

__all__ = ["check_staging_chain"]

_DEEP: Final = 64
"""From how many keys on a chain is remembered; shorter ones are checked as fast."""
_MAX_KEYS: Final = 524_288
"""Of all remembered chains together: those of 512 rollouts that are a thousand calls deep, 4 MB of pointers."""


def check_staging_chain(staging_chain: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Checks that a chain holds text that is not empty and has no lone surrogate.

    A chain comes with every commit, and is as long as the rollout is deep. One that continues a chain that was checked
    before, by one key, is compared with that, which only compares pointers where the strings are the same objects. To
    look into a thousand strings takes ten times as long.

    Returns:
        The chain, and the one that it continues, as it was handed in then, or None if that is not known.

    Raises:
        TypeError: It is a bare string, or holds something else than strings.
        ValueError: A key is empty or has a lone surrogate.
    """
    if isinstance(staging_chain, str):
        raise TypeError("staging_chain is a sequence of staging keys, not a string")
    chain = tuple(staging_chain)
    continued = _checked.take_continued(chain) if len(chain) > _DEEP else None
    _check_keys(chain if continued is None else chain[-1:])
    if len(chain) >= _DEEP:
        _checked.put(chain)
    return chain, continued


def _check_keys(keys: tuple[str, ...]) -> None:
    "".join(keys).encode()
    if not all(keys):
        raise ValueError("staging_chain holds an empty staging key")


class _AnyKey:
    """Equals every key."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


class _CheckedChains:
    """The chains that were checked last and not continued since; the least recent go first."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        # By the last key: the chain, and what every chain that continues it by one key is equal to. To cut a chain for
        # the comparison would touch each string, which takes longer when another thread's processor has them.
        self._chains: Final[OrderedDict[str, tuple[tuple[str, ...], tuple[object, ...]]]] = OrderedDict()
        self._keys = 0

    def take_continued(self, chain: tuple[str, ...]) -> tuple[str, ...] | None:
        """Returns and forgets the chain that this one is without its last key, if it is here."""
        with self._lock:
            found = self._chains.get(chain[-2])
            if found is None or found[1] != chain:
                return None
            del self._chains[chain[-2]]
            self._keys -= len(found[0])
            return found[0]

    def put(self, chain: tuple[str, ...]) -> None:
        with self._lock:
            before = self._chains.pop(chain[-1], None)
            if before is not None:
                self._keys -= len(before[0])
            self._chains[chain[-1]] = chain, chain + _ONE_MORE
            self._keys += len(chain)
            while self._keys > _MAX_KEYS:
                _, (oldest, _) = self._chains.popitem(last=False)
                self._keys -= len(oldest)


_ONE_MORE: Final = (_AnyKey(),)
_checked: Final = _CheckedChains()
