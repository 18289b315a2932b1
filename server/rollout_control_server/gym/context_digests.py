"""Gym's digests of conversations, remembered."""

import contextlib
import hashlib
import threading
from typing import Any, Final

import msgspec
from nemo_gym.token_id_capture.fingerprint import conversation_digest

__all__ = ["ContextDigests"]

_REMEMBERED: Final = 4096


class ContextDigests:
    """Gym's `conversation_digest`, remembered for the last 4,096 conversations.

    It is most of what a call costs here, it grows with the conversation, and the same items come twice: in a call's
    record, and as the context of the request that continues the call. What is remembered is found by a digest of the
    items as they are, which costs a small part of it.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, items: list[dict[str, Any]]) -> str:
        """Returns `conversation_digest(items)`.

        Raises:
            Exception: What Gym's function raises for items that it cannot hash, mostly ValueError.
        """
        try:
            exact = hashlib.sha256(msgspec.msgpack.encode(items)).digest()
        except Exception:
            return str(conversation_digest(items))  # Gym decides what can be hashed.
        known = self._known.get(exact)
        if known is None:
            known = str(conversation_digest(items))
            with self._changing:
                self._known[exact] = known
                if len(self._known) > _REMEMBERED:
                    del self._known[next(iter(self._known))]
        return known

    def remember(self, items: list[dict[str, Any]]) -> None:
        """Hashes items for a later `of`, which raises if they cannot be hashed."""
        with contextlib.suppress(Exception):
            self.of(items)
