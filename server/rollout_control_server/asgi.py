"""The shapes of an ASGI application (asgi.readthedocs.io), and an answer that one gives."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["ASGIApp", "Answer", "Receive", "Scope", "Send"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(slots=True)
class Answer:
    """A whole HTTP answer.

    Attributes:
        status: The status.
        body: The body, sent in one message.
        media_type: The value of Content-Type.
        headers: Further headers.
    """

    status: int
    body: bytes
    media_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)

    async def send(self, send: Send) -> None:
        """Sends it; the HTTP server leaves the body out where the method is HEAD."""
        headers = [
            (b"content-type", self.media_type.encode()),
            (b"content-length", b"%d" % len(self.body)),
            *((name.lower().encode(), value.encode()) for name, value in self.headers.items()),
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})
