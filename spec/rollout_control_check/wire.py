"""One HTTP request at a time, each on a connection of its own, sent exactly as it is given.

A usual client mends requests and hides what an odd server does. This one sends a path without normalising it, any
bytes in a header, a body that it announces and withholds; it reads an answer that comes before the request is whole;
and one time limit bounds the whole exchange, also when the answer comes one byte at a time.
"""

import re
import selectors
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import h11
from rollout_control_spec import AUTH_TOKEN_VARIABLE, CONTROL_ROUTE_PREFIX

__all__ = [
    "OUT_OF_TIME",
    "TOKEN_IN_SHELL",
    "Answer",
    "Credentials",
    "Exchange",
    "NoAnswerError",
    "Request",
    "UnreachableError",
    "Wire",
    "check_base_url",
]

ANSWER_LIMIT: Final = 128 * 2**20
"""Bytes of one answer; more is not read. The spec bounds a bulk answer by 64 MiB, or by its first manifest."""

TOKEN_IN_SHELL: Final = f"${AUTH_TOKEN_VARIABLE}"

OUT_OF_TIME: Final = "the time limit ran out"

LONGEST_HOST: Final = 253
"""Characters of the longest name in the DNS (RFC 1035, section 2.3.4)."""

HOST_LABEL: Final = re.compile("[A-Za-z0-9_-]{1,63}")
"""A part of a host's name. Underscores stand in the names of containers."""


@dataclass(frozen=True)
class Credentials:
    """An Authorization header: what is sent, and the shell word for it, which reads the token from the environment."""

    value: bytes = field(repr=False)
    in_shell: str


@dataclass(frozen=True)
class Request:
    """What is sent.

    Attributes:
        method: The method.
        path: The path below the base URL, sent as it is.
        credentials: The Authorization header, if any.
        headers: Further headers.
        body: The body; None sends none.
        withheld: How many bytes of body are announced and never sent; instead of a body.
        body_in_shell: Shell commands that print the body, where it is too long to be quoted.
    """

    method: str
    path: str
    credentials: Credentials | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    withheld: int = 0
    body_in_shell: str = ""


@dataclass(frozen=True)
class Answer:
    """What came back; names of headers are lower-case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Returns the values of a header, joined by commas, or None without one."""
        values = [value for header, value in self.headers if header == name]
        return ", ".join(values) if values else None

    @property
    def media_type(self) -> str:
        """The media type without its parameters, in lower case."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()


class UnreachableError(Exception):
    """No connection can be made, or what answers does not speak HTTP."""


class NoAnswerError(Exception):
    """The connection was accepted, and no whole answer came over it."""


@dataclass
class Exchange:
    """A request and what became of it.

    Attributes:
        request: What was sent.
        answer: What came, if it was whole.
        failure: Why no whole answer came, in words.
    """

    request: Request
    answer: Answer | None = None
    failure: str = ""


def check_base_url(base_url: str) -> str:
    """Returns a base URL without the slashes at its end, if a server can be at such a URL.

    Raises:
        ValueError: It can be none. The message says what is wrong with it, and shows no password.
    """
    if "@" in base_url.partition("?")[0]:
        raise ValueError("a base URL has no user and no password: reports would show them")
    shown = f"a base URL looks like http://127.0.0.1:8080, not {ascii(base_url)[:100]}"
    if not base_url.isascii() or not base_url.isprintable() or " " in base_url:
        raise ValueError(f"{shown}: it has a character that a URL must percent-encode")
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{shown}: {error}") from error
    if parts.scheme not in {"http", "https"}:
        raise ValueError(f"{shown}: it must begin with http:// or https://")
    if "?" in base_url or "#" in base_url:
        raise ValueError(f"{shown}: it has no query and no fragment")
    if port == 0 or not _is_host(parts.hostname or ""):
        raise ValueError(f"{shown}: {'0 is no port' if port == 0 else 'it names no host'}")
    before, prefix, _ = f"{base_url}/".partition(f"{CONTROL_ROUTE_PREFIX}/")
    if prefix:
        raise ValueError(f"a base URL ends before {CONTROL_ROUTE_PREFIX}, which is added to it: give {before}")
    return base_url.rstrip("/")


def _is_host(name: str) -> bool:
    """Tells whether a URL's host is an IPv6 address, or labels of 1 to 63 characters with dots between."""
    if ":" in name:
        # `urlsplit` has checked that an address in brackets is one.
        return True
    return len(name) <= LONGEST_HOST and all(map(HOST_LABEL.fullmatch, name.removesuffix(".").split(".")))


@dataclass
class Wire:
    """Sends requests to one server.

    Attributes:
        base_url: `http://` or `https://`, a host, perhaps a port and a path.
        timeout_s: Seconds for one whole exchange.
        deadline: No exchange lasts beyond this reading of `time.monotonic()`.
        exchanges: How many requests were sent.
    """

    base_url: str
    timeout_s: float
    deadline: float = float("inf")
    exchanges: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.base_url = check_base_url(self.base_url)
        parts = urlsplit(self.base_url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._authority = parts.netloc
        self._base_path = parts.path
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None

    def exchange(self, request: Request) -> Exchange:
        """Sends a request and returns what became of it, a failure on the way included.

        Raises:
            UnreachableError: Nothing accepts a connection, or the other side speaks something else than HTTP.
        """
        self.exchanges += 1
        exchange = Exchange(request)
        ends_at = min(time.monotonic() + self.timeout_s, self.deadline)
        try:
            with self._connect(ends_at) as connection:
                exchange.answer = _converse(connection, self._events(request), ends_at)
        except NoAnswerError as error:
            exchange.failure = str(error)
        return exchange

    def _connect(self, ends_at: float) -> socket.socket:
        where = f"{self._host}:{self._port}"
        remaining = max(ends_at - time.monotonic(), 0.01)
        try:
            connection = socket.create_connection((self._host, self._port), timeout=remaining)
        except (OSError, UnicodeError) as error:  # UnicodeError: the name breaks the rules for international names
            raise UnreachableError(f"nothing accepts a connection at {where}: {error}") from error
        if self._tls is None:
            return connection
        try:
            return self._tls.wrap_socket(connection, server_hostname=self._host)
        except OSError as error:
            connection.close()
            raise UnreachableError(f"no TLS connection to {where}: {error}") from error

    def _events(self, request: Request) -> list[h11.Event]:
        headers: list[tuple[bytes, bytes]] = [(b"Host", self._authority.encode()), (b"Accept", b"*/*")]
        if request.credentials is not None:
            headers.append((b"Authorization", request.credentials.value))
        headers += [(name.encode(), value.encode()) for name, value in request.headers]
        chunked = any(name.lower() == "transfer-encoding" for name, _ in request.headers)
        if request.withheld or (request.body is not None and not chunked):
            headers.append((b"Content-Length", str(request.withheld or len(request.body or b"")).encode()))
        headers.append((b"Connection", b"close"))
        events: list[h11.Event] = [
            h11.Request(method=request.method, target=(self._base_path + request.path).encode(), headers=headers)
        ]
        if not request.withheld:
            if request.body:
                events.append(h11.Data(data=request.body))
            events.append(h11.EndOfMessage())
        return events


class _Incoming:
    """An answer that is being received."""

    def __init__(self, protocol: h11.Connection) -> None:
        self._protocol = protocol
        self._head: h11.Response | None = None
        self._body = bytearray()

    def whole(self) -> Answer | None:
        """Returns the answer when all of it has been received.

        Raises:
            NoAnswerError: It never will be.
            UnreachableError: It is no HTTP.
        """
        while (event := self._next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                self._head = event
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > ANSWER_LIMIT:
                    raise NoAnswerError(f"the answer's body did not end after {ANSWER_LIMIT} bytes")
            elif isinstance(event, h11.EndOfMessage) and self._head is not None:
                headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in self._head.headers)
                return Answer(self._head.status_code, headers, bytes(self._body))
        return None

    def _next_event(self) -> object:
        try:
            event = self._protocol.next_event()
        except h11.RemoteProtocolError as error:
            said, closed = self._protocol.trailing_data
            if self._head is None and said:
                shown = said[:60].decode(errors="replace")
                raise UnreachableError(f"what answers does not speak HTTP/1.1: {error}; it said {shown!r}") from error
            raise self.broken_off(
                "the connection was closed" if closed else f"the answer is not HTTP ({error})"
            ) from error
        if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            raise self.broken_off("the connection was closed")
        return event

    def broken_off(self, reason: str) -> NoAnswerError:
        """Returns an error that says how much of the answer there is."""
        if self._head is None:
            return NoAnswerError(f"{reason} before any answer came")
        status, body_bytes = self._head.status_code, len(self._body)
        return NoAnswerError(
            f"{reason} in the middle of the answer: status {status} and {body_bytes} bytes of body came"
        )


def _converse(connection: socket.socket, events: list[h11.Event], ends_at: float) -> Answer:
    """Sends and receives at once: a server may answer, and close, before it has read a body."""
    protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20)
    outgoing = memoryview(b"".join(protocol.send(event) or b"" for event in events))
    incoming = _Incoming(protocol)
    connection.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while (answer := incoming.whole()) is None:
            remaining = ends_at - time.monotonic()
            if remaining <= 0 or not (ready := selector.select(remaining)):
                raise incoming.broken_off(OUT_OF_TIME)
            try:
                if ready[0][1] & selectors.EVENT_READ:
                    protocol.receive_data(_received(connection))
                else:
                    outgoing = outgoing[connection.send(outgoing) :]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue
            except OSError as error:
                # The server closed its side; what it said before may still be there to read.
                if not outgoing:
                    raise incoming.broken_off("the connection was reset") from error
                outgoing = memoryview(b"")
            if not outgoing:
                selector.modify(connection, selectors.EVENT_READ)
    return answer


def _received(connection: socket.socket) -> bytes:
    received = connection.recv(2**16)
    if isinstance(connection, ssl.SSLSocket):
        while received and connection.pending():
            received += connection.recv(2**16)
    return received
