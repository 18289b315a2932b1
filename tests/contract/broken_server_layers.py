"""How a server of ours is broken: an ASGI layer around its application changes requests or answers, or its ledger is
of a class derived from CaptureLedger. `broken` adds a server to the list.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from rollout_control_server import MemoryLedger, create_app
from rollout_control_server.record_rows import record_rows
from rollout_control_spec import validate_rollout_id
from served import TOKEN

RECORD_PATH: Final = "/record-rows"
"""Where the layer takes rows for the ledger, as a record command gets them on its standard input."""

BATCH_PATHS: Final = ("/rollouts/retire", "/rollouts/delete", "/rollouts/manifests")


@dataclass
class Reply:
    """An answer on its way to the client."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_error(self) -> bool:
        return self.status >= 400

    def edit(self, change: Callable[[Any], object]) -> None:
        document = json.loads(self.body)
        change(document)
        self.body = json.dumps(document).encode()

    def become(self, status: int) -> None:
        """Turns a problem into the same one with another status."""
        self.edit(lambda problem: problem.update(status=status))
        self.status = status

    def become_problem(self, status: int, kind: str = "not-found") -> None:
        self.status = status
        self.headers["content-type"] = "application/problem+json"
        document = {"type": f"urn:rollout-control:problem:{kind}", "title": "Broken", "status": status}
        self.body = json.dumps({**document, "detail": "broken"}).encode()

    def become_json(self, document: Any) -> None:
        self.status = 200
        self.headers["content-type"] = "application/json"
        self.body = json.dumps(document).encode()


@dataclass
class Call:
    """A request on its way to our application.

    Attributes:
        scope: The ASGI scope; changes of it reach the application.
        body: The body of an authorized batch, which is read before the application is asked; None of other requests.
        reply: The answer, once there is one.
    """

    scope: dict[str, Any]
    body: bytes | None = None
    reply: Reply = field(default_factory=lambda: Reply(0, {}, b""))

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    @property
    def is_manifest(self) -> bool:
        return self.reply.status == 200 and self.path.endswith("/manifest") and self.method == "GET"

    @property
    def is_removal(self) -> bool:
        return self.reply.status == 200 and self.path.endswith(("/retire", "/delete"))

    def header(self, name: bytes) -> bytes:
        """Returns a header of the request, empty if there is none."""
        return bytes(dict(self.scope["headers"]).get(name, b""))

    def set_header(self, name: bytes, value: bytes) -> None:
        headers = [header for header in self.scope["headers"] if header[0] != name]
        self.scope["headers"] = [*headers, (name, value)]

    def let_in(self) -> None:
        """Gives the request the token."""
        self.set_header(b"authorization", f"Bearer {TOKEN}".encode())

    @property
    def document(self) -> Any:
        """The JSON of the body; None if there is none."""
        try:
            return json.loads(self.body or b"")
        except ValueError:
            return None

    @property
    def rollout_ids(self) -> list[Any]:
        """The ids of a batch; none if the body is none."""
        ids = self.document.get("rollout_ids") if isinstance(self.document, dict) else None
        return ids if isinstance(ids, list) else []

    def set_body(self, body: bytes) -> None:
        self.body = body
        self.scope["headers"] = [header for header in self.scope["headers"] if header[0] != b"transfer-encoding"]
        self.set_header(b"content-length", str(len(body)).encode())

    def set_rollout_ids(self, rollout_ids: list[Any]) -> None:
        if rollout_ids != self.rollout_ids:
            self.set_body(json.dumps({**self.document, "rollout_ids": rollout_ids}).encode())


RequestEdit: TypeAlias = Callable[[Call], Reply | None] | Callable[[Call], Awaitable[Reply | None]]
"""Changes a request, or answers it instead of our application."""


@dataclass
class Server:
    """Ours, and how one line changes it."""

    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    request_edits: list[Any] = field(default_factory=list)
    reply_edits: list[Callable[[Call], object]] = field(default_factory=list)
    reads_first: Callable[[Call], bool] = lambda _: False

    def app(self) -> Any:
        inner: Any = create_app(self.ledger, TOKEN)

        async def application(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await inner(scope, receive, send)
            elif scope["path"] == RECORD_PATH:
                await record_rows(self.ledger, **json.loads(await whole_body(receive)))
                await answer(send, Reply(200, {}, b""))
            else:
                call = Call(dict(scope))
                if is_batch(call) or self.reads_first(call):
                    call.body = await whole_body(receive)
                call.reply = await self._edited(call) or await asked(inner, call, receive)
                for change in self.reply_edits:
                    change(call)
                await answer(send, call.reply)

        return application

    async def _edited(self, call: Call) -> Reply | None:
        """Changes the request, and returns the answer of the edit that answers it."""
        for change in self.request_edits:
            reply = change(call)
            if inspect.isawaitable(reply):
                reply = await reply
            if isinstance(reply, Reply):
                return reply
        return None


def is_batch(call: Call) -> bool:
    return (
        call.method == "POST"
        and call.path.endswith(BATCH_PATHS)
        and call.header(b"authorization") == f"Bearer {TOKEN}".encode()
        and call.header(b"content-type").startswith(b"application/json")
        and not call.header(b"content-encoding")
    )


async def asked(application: Any, call: Call, receive: Any) -> Reply:
    """Returns the answer of an application."""
    reply = Reply(0, {}, b"")
    bodies = iter([call.body] if call.body is not None else [])

    async def replayed() -> Any:
        body = next(bodies, None)
        return await receive() if body is None else {"type": "http.request", "body": body, "more_body": False}

    async def kept(message: Any) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            reply.body += message.get("body", b"")

    await application(call.scope, replayed, kept)
    return reply


async def answer(send: Any, reply: Reply) -> None:
    headers = {**reply.headers, "content-length": str(len(reply.body))}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw})
    await send({"type": "http.response.body", "body": reply.body})


async def whole_body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


Line: TypeAlias = Callable[[Server], object]


def requests(when: Callable[[Call], object], change: Callable[[Call], Any]) -> Line:
    """A server that changes some requests, or answers them in a way of its own."""
    return lambda server: server.request_edits.append(lambda call: change(call) if when(call) else None)


def batches(change: Callable[[Call], object]) -> Line:
    """A server that takes another batch than the one that was sent."""
    return requests(lambda call: call.body is not None, change)


def batch_bodies(change: Callable[[bytes], bytes]) -> Line:
    """A server that takes another body than the one that was sent."""

    def changed(call: Call) -> None:
        body = change(call.body or b"")
        if body != call.body:
            call.set_body(body)

    return batches(changed)


def replies(when: Callable[[Call], object], change: Callable[[Reply], object]) -> Line:
    """A server that answers some requests otherwise."""
    return lambda server: server.reply_edits.append(lambda call: change(call.reply) if when(call) else None)


def status_is(*statuses: int) -> Callable[[Call], bool]:
    return lambda call: call.reply.status in statuses


def has_status(old: int, new: int) -> Line:
    return replies(lambda call: call.reply.status == old and call.method != "HEAD", lambda reply: reply.become(new))


def records(change: Callable[[dict[str, Any]], object]) -> Line:
    """A server that changes each record of a manifest."""
    return manifest(lambda document: [change(record) for record in document["records"]])


def problem(change: Callable[[dict[str, Any]], object]) -> Line:
    return replies(lambda call: call.reply.is_error and call.method != "HEAD", lambda reply: reply.edit(change))


def manifest(change: Callable[[dict[str, Any]], object]) -> Line:
    return replies(lambda call: call.is_manifest, lambda reply: reply.edit(change))


def removal(change: Callable[[dict[str, Any]], object], operation: str = "") -> Line:
    return replies(lambda call: call.is_removal and call.path.endswith(operation), lambda reply: reply.edit(change))


def success_of(operation: str, change: Callable[[dict[str, Any]], object]) -> Line:
    """A server that changes the successful answers of one operation."""
    return replies(
        lambda call: call.reply.status == 200 and call.path.endswith(operation), lambda reply: reply.edit(change)
    )


def authorizes(accepts: Callable[[bytes], bool]) -> Line:
    """A server that lets in whoever sends an Authorization header that is accepted; without one it is empty."""

    def decide(call: Call) -> None:
        if accepts(call.header(b"authorization")):
            call.let_in()
        else:
            call.set_header(b"authorization", b"Bearer another-one")

    return requests(lambda _: True, decide)


def reading_first(when: Callable[[Call], bool]) -> Line:
    """A server that waits for the whole body before it decides anything."""
    return lambda server: setattr(server, "reads_first", when)


def on_ledger(kind: type[MemoryLedger]) -> Line:
    """A server whose ledger is of another class."""
    return lambda server: setattr(server, "ledger", kind())


def is_valid(rollout_id: object) -> bool:
    try:
        validate_rollout_id(rollout_id)  # type: ignore[arg-type]  # it raises TypeError for what is no string
    except (ValueError, TypeError):
        return False
    return True


def ids_that_match(pattern: str, *, dot_segments: bool = False, in_batches: bool = True) -> Line:
    """A server for which another rule says what a rollout id is: our application gets other ids in their place."""
    known: dict[str, str] = {}

    def other(rollout_id: str) -> str:
        if re.fullmatch(pattern, rollout_id) is None or (rollout_id in {".", ".."} and not dot_segments):
            return "a b"
        if is_valid(rollout_id):
            return rollout_id
        stand_in = f"in-place-of-{hashlib.sha256(rollout_id.encode()).hexdigest()}"
        known[stand_in] = rollout_id
        return stand_in

    def change(call: Call) -> None:
        if call.body is not None and in_batches:
            call.set_rollout_ids([other(name) if isinstance(name, str) else name for name in call.rollout_ids])
        written = call.scope["raw_path"].decode()
        found = re.fullmatch("(.*/rollouts/)([^/]+)(/manifest)", written)
        if found and "%2f" not in written.lower():
            call.scope["raw_path"] = f"{found[1]}{quote(other(unquote(found[2])))}{found[3]}".encode()

    def restore(reply: Reply) -> None:
        for stand_in, rollout_id in known.items():
            reply.body = reply.body.replace(stand_in.encode(), json.dumps(rollout_id)[1:-1].encode())

    def line(server: Server) -> None:
        requests(lambda _: True, change)(server)
        replies(lambda _: True, restore)(server)

    return line


@dataclass(frozen=True)
class BrokenServer:
    """One broken server.

    Attributes:
        breaks: The requirement that it breaks, and that the report has to name first.
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
