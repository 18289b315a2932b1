"""How a line breaks our server: what it can change, and the list of all broken servers."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import pytest
import rollout_control_spec
from rollout_control_server import MemoryLedger, control_application, create_app
from rollout_control_server.auth import BearerToken
from rollout_control_server.errors import ProblemKind, RequestRefusedError
from rollout_control_server.ledger.base import join_manifest
from served import TOKEN


@dataclass
class Reply:
    """An answer on its way to the client."""

    method: str
    path: str
    status: int
    headers: dict[str, str]
    body: bytes
    request_headers: dict[bytes, bytes]

    @property
    def is_manifest(self) -> bool:
        return self.status == 200 and self.path.endswith("/manifest")

    @property
    def is_removal(self) -> bool:
        return self.status == 200 and self.path.endswith(("/retire", "/delete"))

    @property
    def is_error(self) -> bool:
        return self.status >= 400

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        document = json.loads(self.body)
        change(document)
        self.body = json.dumps(document).encode()

    def become(self, status: int) -> None:
        """Turns a problem into the same one with another status."""
        self.edit(lambda problem: problem.update(status=status))
        self.status = status

    def become_problem(self, status: int) -> None:
        self.status = status
        self.headers["content-type"] = "application/problem+json"
        kind = "urn:rollout-control:problem:not-found"
        self.body = json.dumps({"type": kind, "title": "Broken", "status": status, "detail": "broken"}).encode()

    def become_manifest(self) -> None:
        self.status = 200
        self.headers["content-type"] = "application/json"
        rollout_id = self.path.split("/")[-2]
        self.body = join_manifest(rollout_id, [], [])


@dataclass
class Server:
    """Ours, and how one line changes it."""

    monkeypatch: pytest.MonkeyPatch
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    replies: list[Callable[[Reply], object]] = field(default_factory=list)
    requests: list[Callable[[dict[str, Any]], object]] = field(default_factory=list)
    reads_first: Callable[[Any], bool] = lambda _: False

    def reply(self, change: Callable[[Reply], object]) -> None:
        self.replies.append(change)

    def request(self, change: Callable[[dict[str, Any]], object]) -> None:
        self.requests.append(change)

    def read_first(self, when: Callable[[Any], bool]) -> None:
        """Waits for the whole body before anything is decided."""
        self.reads_first = when

    def app(self) -> Any:
        inner: Any = create_app(self.ledger, TOKEN)

        async def application(scope: Any, receive: Any, send: Any) -> None:
            if self.reads_first(scope):
                received = await whole_body(receive)
                receive = replayed(received)
            for change_scope in self.requests:
                scope = dict(scope)
                change_scope(scope)
            head: dict[str, Any] = {}
            body = bytearray()

            async def edited(message: Any) -> None:
                if message["type"] == "http.response.start":
                    head.update(message)
                    return
                body.extend(message.get("body", b""))
                if message.get("more_body"):
                    return
                headers = {name.decode().lower(): value.decode() for name, value in head["headers"]}
                reply = Reply(
                    scope["method"], scope["path"], head["status"], headers, bytes(body), dict(scope["headers"])
                )
                for change in self.replies:
                    change(reply)
                headers["content-length"] = str(len(reply.body))
                raw = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
                await send({"type": "http.response.start", "status": reply.status, "headers": raw})
                await send({"type": "http.response.body", "body": reply.body})

            await inner(scope, receive, edited)

        return application


Line: TypeAlias = Callable[[Server], object]


async def whole_body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


def replayed(body: bytes) -> Any:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def let_in(scope: dict[str, Any]) -> None:
    """Gives a request the token."""
    headers = [header for header in scope["headers"] if header[0] != b"authorization"]
    scope["headers"] = [*headers, (b"authorization", f"Bearer {TOKEN}".encode())]


def with_header(scope: dict[str, Any], name: bytes, value: bytes) -> None:
    scope["headers"] = [*(header for header in scope["headers"] if header[0] != name), (name, value)]


def sent(scope: dict[str, Any], name: bytes) -> bytes:
    """Returns a header of the request, empty if there is none."""
    return bytes(dict(scope["headers"]).get(name, b""))


def ids_that_match(pattern: str) -> Line:
    return patched(rollout_control_spec, "_ROLLOUT_ID", re.compile(pattern))


def token_check(accepts: Callable[[bytes], bool]) -> Line:
    """A server that decides by the value of the Authorization header alone."""

    def check(_: BearerToken, headers: Any) -> None:
        values = [value for name, value in headers if name == b"authorization"]
        if not values or not accepts(values[0]):
            raise RequestRefusedError(ProblemKind.UNAUTHORIZED, "no", {"WWW-Authenticate": "Bearer"})

    return patched(BearerToken, "check", check)


def batches(struct: Any) -> Line:
    return patched(control_application, "_BATCH_DECODER", msgspec.json.Decoder(struct))


def batch_struct(*, least: int = 1, most: int | None = 4096, closed: bool = True) -> Any:
    rollout_ids = Annotated[list[str], msgspec.Meta(min_length=least, max_length=most)]
    return msgspec.defstruct("LedgerBatchRequest", [("rollout_ids", rollout_ids)], forbid_unknown_fields=closed)


def replies(when: Callable[[Reply], bool], change: Callable[[Reply], object]) -> Line:
    return lambda server: server.reply(lambda reply: change(reply) if when(reply) else None)


def records(change: Callable[[dict[str, Any]], object]) -> Line:
    """A server that changes each record of a manifest."""
    return replies(
        lambda reply: reply.is_manifest,
        lambda reply: reply.edit(lambda manifest: [change(record) for record in manifest["records"]]),
    )


def problem(change: Callable[[dict[str, Any]], object]) -> Line:
    return replies(lambda reply: reply.is_error, lambda reply: reply.edit(change))


def manifest(change: Callable[[dict[str, Any]], object]) -> Line:
    return replies(lambda reply: reply.is_manifest, lambda reply: reply.edit(change))


def removal(change: Callable[[dict[str, Any]], object], operation: str = "") -> Line:
    return replies(lambda reply: reply.is_removal and reply.path.endswith(operation), lambda reply: reply.edit(change))


def requests(when: Callable[[dict[str, Any]], object], change: Callable[[dict[str, Any]], object]) -> Line:
    return lambda server: server.request(lambda scope: change(scope) if when(scope) else None)


def patched(owner: Any, name: str, value: Any) -> Line:
    return lambda server: server.monkeypatch.setattr(owner, name, value)


def reading_first(when: Callable[[dict[str, Any]], bool]) -> Line:
    """A server that waits for the whole body before it decides anything."""
    return lambda server: server.read_first(when)


def ledger(name: str, method: Callable[..., Any]) -> Line:
    """A server whose ledger has another method."""
    return patched(MemoryLedger, name, method)


@dataclass(frozen=True)
class BrokenServer:
    """One broken server.

    Attributes:
        breaks: The requirement that it breaks.
        name: What is wrong with it.
        line: The line that does it.
        follows: What else is broken because of that.
    """

    breaks: str
    name: str
    line: Line
    follows: frozenset[str] = frozenset()


BROKEN_SERVERS: Final[list[BrokenServer]] = []


def broken(breaks: str, name: str, line: Line, *follows: str) -> None:
    BROKEN_SERVERS.append(BrokenServer(breaks, name, line, frozenset(follows) - {breaks}))


def status_is(*statuses: int) -> Any:
    return lambda reply: reply.status in statuses


def has_status(old: int, new: int) -> Line:
    return replies(status_is(old), lambda reply: reply.become(new))
