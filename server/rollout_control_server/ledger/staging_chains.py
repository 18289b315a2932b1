"""Checking and digesting the staging chains of commits, at a cost that hardly grows with their length."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

__all__ = ["CheckedChain", "StagingChains", "chain_digest"]

_DEEP: Final = 64
"""From how many keys on a chain is remembered; shorter ones are checked as fast without."""
_MAX_BYTES: Final = 32 * 2**20
"""Of all remembered chains together: those of some 500 rollouts that are a thousand calls deep."""


class CheckedChain(NamedTuple):
    """A chain that is fit to be recorded.

    Attributes:
        keys: The staging keys from the root to the call.
        digest: 16 bytes that tell the chain from every other one.
        parent_digest: The digest of the chain without its last key. Where the parent's chain has it, the parent's chain
            and this call's own key are all of the chain.
    """

    keys: tuple[str, ...]
    digest: bytes
    parent_digest: bytes


class _Remembered(NamedTuple):
    keys: tuple[str, ...]
    hash: hashlib.blake2b
    size: int


def chain_digest(keys: Sequence[str]) -> bytes:
    """Returns the digest of a staging chain: BLAKE2b, of 16 bytes, of its JSON array without the closing bracket."""
    return _hash_of(keys).digest()


class StagingChains:
    """Checks staging chains, and remembers the deep ones that were not continued since; the least recent go first.

    A chain comes with every commit, and is as long as the rollout is deep. One that continues a remembered chain by one
    key is compared with that, which only compares pointers where the strings are the same objects, and its digest
    continues the other's. To look into a thousand strings takes ten times as long. A ledger also finds in here the
    chain of a call that this process has recorded lately, and need not read it from storage.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        # By the last key of each.
        self._chains: Final[OrderedDict[str, _Remembered]] = OrderedDict()
        self._bytes = 0

    def check(self, staging_chain: Sequence[str]) -> CheckedChain:
        """Checks that a chain holds text that is not empty and has no lone surrogate.

        Raises:
            TypeError: It is a bare string, or holds something else than strings.
            ValueError: A key is empty or has a lone surrogate.
        """
        if isinstance(staging_chain, str):
            raise TypeError("staging_chain is a sequence of staging keys, not a string")
        keys = tuple(staging_chain)
        parent: _Remembered | None = None
        if len(keys) >= _DEEP and isinstance(keys[-2], str):
            with self._lock:
                parent = self._chains.get(keys[-2])
        # Made of what was checked, since something else than a string can be equal to one.
        continued = None if parent is None else parent.keys + keys[-1:]
        if parent is None or continued != keys:
            _check_keys(keys)
            parent = _Remembered(keys[:-1], _hash_of(keys[:-1]), 0)
        else:
            _check_keys(keys[-1:])
            keys = continued
        if not keys:
            return CheckedChain(keys, parent.hash.digest(), parent.hash.digest())
        hashed = parent.hash.copy()
        hashed.update((b"," if parent.keys else b"") + msgspec.json.encode(keys[-1]))
        if len(keys) >= _DEEP:
            self._remember(_Remembered(keys, hashed, len(keys) * (8 + len(keys[-1]))), continues=parent.keys[-1])
        return CheckedChain(keys, hashed.digest(), parent.hash.digest())

    def find(self, last_key: str, digest: bytes) -> tuple[str, ...] | None:
        """Returns the remembered chain that ends in this key and has this digest, if there is one."""
        with self._lock:
            found = self._chains.get(last_key)
        return found.keys if found is not None and found.hash.digest() == digest else None

    def _remember(self, chain: _Remembered, continues: str) -> None:
        with self._lock:
            for replaced in (chain.keys[-1], continues):
                before = self._chains.pop(replaced, None)
                if before is not None:
                    self._bytes -= before.size
            self._chains[chain.keys[-1]] = chain
            self._bytes += chain.size
            while self._bytes > _MAX_BYTES:
                _, oldest = self._chains.popitem(last=False)
                self._bytes -= oldest.size


def _hash_of(keys: Sequence[str]) -> hashlib.blake2b:
    return hashlib.blake2b(msgspec.json.encode(keys)[:-1], digest_size=16, usedforsecurity=False)


def _check_keys(keys: Sequence[Any]) -> None:
    if not {str}.issuperset(map(type, keys)):
        raise TypeError("staging_chain holds something else than strings")
    "".join(keys).encode()
    if not all(keys):
        raise ValueError("staging_chain holds an empty staging key")
