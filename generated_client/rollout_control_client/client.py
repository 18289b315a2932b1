"""RolloutControlClient: what a trainer asks of a model server's capture ledgers."""

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Literal, NoReturn, Protocol, Self, TypeVar

import httpx
from rollout_control_spec import (
    CONTROL_ROUTE_PREFIX,
    RolloutRetiredError,
    unique_rollout_ids,
    validate_auth_token,
    validate_rollout_id,
)

from rollout_control_client._exchange import exchange
from rollout_control_client._generated import AuthenticatedClient
from rollout_control_client._generated.api.listing import summarize_rollouts
from rollout_control_client._generated.api.manifests import get_rollout_manifest, get_rollout_manifests
from rollout_control_client._generated.api.removal import delete_rollouts, retire_idle_rollouts, retire_rollouts
from rollout_control_client._generated.models import (
    IdleRemoval,
    IdleRemovalRequest,
    LedgerBatchRequest,
    RolloutManifest,
    RolloutPage,
    RolloutRemoval,
    RolloutSummary,
)
from rollout_control_client._transports import direct_transport
from rollout_control_client._version import __version__
from rollout_control_client.errors import RequestFailedError, RolloutControlError
from rollout_control_client.listing import ListingFilters, RolloutIterator, check_seconds, iterate
from rollout_control_client.manifests import ManifestIterator, ManifestOutcome, ManifestReader, Part
from rollout_control_client.optional_operations import not_offered
from rollout_control_client.removals import read_removal, remove_in_batches

__all__ = ["DEFAULT_REQUEST_TIMEOUT_S", "RolloutControlClient", "environment"]

DEFAULT_REQUEST_TIMEOUT_S: Final = 60.0
"""Long enough for a server that restarts, and the limit that NeMo RL gives its requests too."""


REQUESTS_AT_A_TIME: Final = 256
"""How many requests of a client are under way at a time; further ones wait for their turn, within their time.

A process may usually have 1024 files open, and a server is not faster for having more to do at once.
"""

T = TypeVar("T")


class _Removal(Protocol):
    """What the generated modules of retire and delete have in common."""

    def build_request(self, body: LedgerBatchRequest, *, client: AuthenticatedClient) -> httpx.Request: ...

    def parse_response(self, response: httpx.Response) -> RolloutRemoval: ...


class RolloutControlClient:
    """Reads and removes the capture ledgers of a model server, from the trainer's side.

        async with RolloutControlClient("http://model-server:8000", token, request_timeout_s=30) as client:
            manifest = await client.manifest("train-0007.sample-3")
            await client.retire(["train-0007.sample-3"])

    Lost connections and the statuses 429, 502, 503 and 504 are retried within `request_timeout_s`, and repeating an
    operation is safe: ids that a lost first attempt removed are then reported as `absent`. What no further attempt can
    mend, such as a certificate that does not verify, is raised at once. The logger `rollout_control_client` tells of
    each retry and each wait.

    A client can be made anywhere, also where no event loop runs. Any number of tasks may share it; 256 requests are
    under way at a time, and `manifests` reads many manifests with far fewer than one for each. It keeps the
    connections of one event loop: when it is used in another, as by a second `asyncio.run`, it opens new ones there and
    leaves the old ones to the garbage collector. In a forked process, closing it leaves the parent's connections alone.
    It cannot be pickled: each process, such as an actor or a data loader's worker, makes a client of its own.

    Args:
        base_url: Where the control plane is served, an http or https URL. It may have a path, and end in slashes.
        auth_token: The secret that is sent as bearer token.
        request_timeout_s: Seconds that one whole request may take, with all its retries; each method takes another
            for its call.
        transport: What sends the requests instead of a direct connection to `base_url`: an `httpx.ASGITransport` in a
            test, say, or an `httpx.AsyncHTTPTransport` with a `proxy`, since the environment's are not used. It is
            closed with the client.

    Raises:
        ValueError: `base_url` is no http or https URL, the token is empty or cannot be sent in a header, or the timeout
            is not a finite number over 0.
    """

    def __init__(
        self,
        base_url: str,
        auth_token: str,
        request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        url = _checked_url(base_url)
        validate_auth_token(auth_token)
        self._request_timeout_s = _checked_seconds("request_timeout_s", request_timeout_s)
        # A closure, so that the token is in no attribute and in no repr.
        self._connect: Callable[[], AuthenticatedClient] = lambda: _connect(url, auth_token, transport)
        self._transport = transport
        self._http: AuthenticatedClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = asyncio.Semaphore(REQUESTS_AT_A_TIME)
        self._process_id = os.getpid()
        self._closed = False
        self._reader = ManifestReader(self._part, self._outcome)

    @classmethod
    def from_environment(
        cls,
        request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> Self:
        """Makes a client of the environment variables `ROLLOUT_CONTROL_URL` and `ROLLOUT_CONTROL_AUTH_TOKEN`.

        Raises:
            ValueError: One of them is not set, or cannot be what it is for.
        """
        return cls(*environment(), request_timeout_s, transport=transport)

    async def manifest(self, rollout_id: str, *, request_timeout_s: float | None = None) -> RolloutManifest:
        """Returns the rollout's manifest; empty if the rollout never recorded a call (spec, getRolloutManifest).

        Args:
            rollout_id: The rollout.
            request_timeout_s: Seconds for this request, instead of the client's.

        Raises:
            ValueError: It is not a rollout id.
            RolloutRetiredError: The rollout is retired.
            RequestFailedError: The request was not done.
        """
        http = self._connected()
        request = get_rollout_manifest.build_request(validate_rollout_id(rollout_id), client=http)
        try:
            return await self._exchange(http, request, partial(_read_manifest, rollout_id), request_timeout_s)
        except RequestFailedError as error:
            if error.status == 410:
                raise RolloutRetiredError(rollout_id) from error
            raise

    def manifests(
        self, rollout_ids: Sequence[str], *, max_concurrency: int = 32, request_timeout_s: float | None = None
    ) -> ManifestIterator:
        """Iterates over the manifests of many rollouts, as they arrive.

            async for rollout_id, outcome in client.manifests(rollout_ids):
                ...

        Each id comes exactly once, with its manifest or, if the rollout is retired, with the error that says so. Any
        other failure is raised at once. When the iteration ends, for whatever reason, no request is left running; a
        loop that may be left early closes the iterator itself, with `contextlib.aclosing`.

        Many manifests come in one answer (spec, getRolloutManifests), and the next answer is on its way while one is
        consumed. A server that lacks this operation, such as Gym's, is asked for the manifests one by one.

        Args:
            rollout_ids: The rollouts; repeated ids count once. They are checked before this method returns.
            max_concurrency: How many requests run at a time at most. At most twice as many answers are held in memory.
            request_timeout_s: Seconds for each request, instead of the client's.

        Returns:
            The iterator, whose `total` is the number of outcomes.

        Raises:
            TypeError: `rollout_ids` is no sequence of strings.
            ValueError: One of them is not a rollout id, or `max_concurrency` is less than 1.
            RequestFailedError: While iterating: a request was not done.
        """
        if not isinstance(max_concurrency, int):
            raise TypeError(f"max_concurrency is an integer, not {type(max_concurrency).__name__}")
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency is at least 1, not {max_concurrency}")
        unique = unique_rollout_ids(rollout_ids)
        timeout_s = self._timeout_s(request_timeout_s)
        return ManifestIterator(self._reader.parts(unique, max_concurrency, timeout_s), len(unique))

    async def _part(self, rollout_ids: list[str], request_timeout_s: float) -> Part:
        http = self._connected()
        request = get_rollout_manifests.build_request(LedgerBatchRequest(rollout_ids=rollout_ids), client=http)
        return await self._exchange(http, request, partial(_read_part, rollout_ids), request_timeout_s)

    async def _outcome(self, rollout_id: str, request_timeout_s: float) -> ManifestOutcome:
        try:
            return rollout_id, await self.manifest(rollout_id, request_timeout_s=request_timeout_s)
        except RolloutRetiredError as retired:
            return rollout_id, retired

    async def retire(
        self, rollout_ids: Sequence[str], *, wait_s: float = 0.0, request_timeout_s: float | None = None
    ) -> RolloutRemoval:
        """Removes the ledgers and fences the ids, so that no late write starts a new one (spec, retireRollouts).

        More than 4096 ids are sent as several requests, each with its own `request_timeout_s`, one after another.

        Args:
            rollout_ids: The rollouts; repeated ids count once. All are checked before anything is sent.
            wait_s: Seconds that the whole call may wait while the server refuses to remove anything (409), as it does
                while a checkpoint is taken: the call asks again until then, counted from its begin, however many
                requests it sends.
            request_timeout_s: Seconds for each request, instead of the client's.

        Raises:
            TypeError: `rollout_ids` is no sequence of strings.
            ValueError: One of them is not a rollout id, or a number of seconds cannot be one.
            RemovalRefusedError: The server removes nothing for now, and still did not after `wait_s`.
            RequestFailedError: A request was not done; `partial_removal` says what those before it did.
        """
        return await self._remove(retire_rollouts, rollout_ids, wait_s, request_timeout_s)

    async def delete(
        self, rollout_ids: Sequence[str], *, wait_s: float = 0.0, request_timeout_s: float | None = None
    ) -> RolloutRemoval:
        """Removes the ledgers and the fences, so that the ids can be used again (spec, deleteRollouts).

        It protects from no late write; `retire` does. Many ids, and failures, are handled as by `retire`.

        Args:
            rollout_ids: The rollouts; repeated ids count once. All are checked before anything is sent.
            wait_s: Seconds that the whole call may wait while the server refuses to remove anything (409), as it does
                while a checkpoint is taken: the call asks again until then, counted from its begin, however many
                requests it sends.
            request_timeout_s: Seconds for each request, instead of the client's.

        Raises:
            TypeError: `rollout_ids` is no sequence of strings.
            ValueError: One of them is not a rollout id, or a number of seconds cannot be one.
            RemovalRefusedError: The server removes nothing for now, and still did not after `wait_s`.
            RequestFailedError: A request was not done; `partial_removal` says what those before it did.
        """
        return await self._remove(delete_rollouts, rollout_ids, wait_s, request_timeout_s)

    async def retire_idle(
        self,
        rollout_ids: Sequence[str],
        idle_for_s: float,
        *,
        wait_s: float = 0.0,
        request_timeout_s: float | None = None,
    ) -> IdleRemoval:
        """Retires those of the rollouts that have had no row for so long (spec, retireIdleRollouts).

        The server decides which ones these are in the same change that retires them, so a rollout that records a row
        meanwhile is not retired. Unlike `retire`, it fences no id without rows. Many ids, and failures, are handled as
        by `retire`.

        Args:
            rollout_ids: The rollouts; repeated ids count once. All are checked before anything is sent.
            idle_for_s: Seconds that a rollout's last row must be old at least, by the server's clock.
            wait_s: As of `retire`.
            request_timeout_s: Seconds for each request, instead of the client's.

        Raises:
            TypeError: `rollout_ids` is no sequence of strings, or `idle_for_s` is no number.
            ValueError: One of them is not a rollout id, or a number of seconds cannot be one.
            OperationNotOfferedError: The server does not have this operation. Nothing was removed.
            RemovalRefusedError: The server removes nothing for now, and still did not after `wait_s`.
            RequestFailedError: A request was not done; `partial_removal` says what those before it did.
        """
        check_seconds("idle_for_s", idle_for_s)
        http = self._connected()

        async def remove(batch: list[str]) -> IdleRemoval:
            body = IdleRemovalRequest(rollout_ids=batch, idle_for_s=idle_for_s)
            request = retire_idle_rollouts.build_request(body, client=http)
            read = partial(read_removal, retire_idle_rollouts.parse_response, batch)
            return await self._exchange(http, request, read, request_timeout_s)

        try:
            return await remove_in_batches(remove, rollout_ids, IdleRemoval(removed=[], absent=[], active=[]), wait_s)
        except RequestFailedError as error:
            raise not_offered(error, "retire idle rollouts") from error

    def rollouts(
        self,
        *,
        state: Literal["live", "retired"] | None = None,
        prefix: str | None = None,
        idle_for_s: float | None = None,
        changed_since: float | None = None,
        has_failures: bool | None = None,
        request_timeout_s: float | None = None,
    ) -> RolloutIterator:
        """Iterates over the rollouts that there are, in the order of their ids' ASCII bytes (spec, listRollouts).

            async for rollout in client.rollouts(state="live", prefix="run-7.", idle_for_s=6 * 3600):
                ...

        It reads page after page, each when the one before it is consumed. A rollout that is there and matches all the
        time comes exactly once, whatever is recorded and removed meanwhile. A loop that may be left early closes the
        iterator itself, with `contextlib.aclosing`.

        Args:
            state: Only live rollouts (with rows and without a fence), or only retired ones; both unless given.
            prefix: Only rollouts whose id begins with this, which may not be empty; all unless given.
            idle_for_s: Only live rollouts whose last row is at least so many seconds old, by the server's clock. One
                whose times the server does not know is never idle.
            changed_since: Only rollouts that changed at this Unix time or later, or at a time that is not known.
            has_failures: Only live rollouts with a failure row, or without one.
            request_timeout_s: Seconds for each request, instead of the client's.

        Raises:
            TypeError: An argument is of another type.
            ValueError: An argument cannot be what it says.
            OperationNotOfferedError: While iterating: the server does not list rollouts.
            RequestFailedError: While iterating: a request was not done.
        """
        filters = ListingFilters(state, prefix, idle_for_s, changed_since, has_failures)

        async def page_after(after: str | None) -> RolloutPage:
            http = self._connected()
            try:
                request = filters.build_request(http, after)
                return await self._exchange(http, request, partial(filters.read_page, after), request_timeout_s)
            except RequestFailedError as error:
                raise not_offered(error, "list rollouts") from error

        return RolloutIterator(iterate(page_after))

    async def summary(self, *, request_timeout_s: float | None = None) -> RolloutSummary:
        """Returns how many rollouts and rows the server's ledger holds (spec, summarizeRollouts).

        Args:
            request_timeout_s: Seconds for this request, instead of the client's.

        Raises:
            OperationNotOfferedError: The server does not have this operation.
            RequestFailedError: The request was not done.
        """
        http = self._connected()
        request = summarize_rollouts.build_request(client=http)
        try:
            return await self._exchange(http, request, summarize_rollouts.parse_response, request_timeout_s)
        except RequestFailedError as error:
            raise not_offered(error, "summarise its ledger") from error

    async def _remove(
        self, operation: _Removal, rollout_ids: Sequence[str], wait_s: float, request_timeout_s: float | None
    ) -> RolloutRemoval:
        http = self._connected()

        async def remove(batch: list[str]) -> RolloutRemoval:
            request = operation.build_request(LedgerBatchRequest(rollout_ids=batch), client=http)
            read = partial(read_removal, operation.parse_response, batch)
            return await self._exchange(http, request, read, request_timeout_s)

        return await remove_in_batches(remove, rollout_ids, RolloutRemoval(removed=[], absent=[]), wait_s)

    def _connected(self) -> AuthenticatedClient:
        """Returns the httpx client of the running loop.

        Raises:
            RolloutControlError: The client is closed.
        """
        if self._closed:
            raise RolloutControlError("this RolloutControlClient is closed")
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            # Connections are bound to their loop. Those of another one cannot be closed from here; they are dropped.
            self._http, self._loop, self._process_id = self._connect(), loop, os.getpid()
            self._turns = asyncio.Semaphore(REQUESTS_AT_A_TIME)
        return self._http

    async def _exchange(
        self,
        http: AuthenticatedClient,
        request: httpx.Request,
        read: Callable[[httpx.Response], T],
        request_timeout_s: float | None,
    ) -> T:
        return await exchange(http, request, read, self._timeout_s(request_timeout_s), self._turns)

    def _timeout_s(self, request_timeout_s: float | None) -> float:
        """Returns the seconds that a request of one call may take."""
        if request_timeout_s is None:
            return self._request_timeout_s
        return _checked_seconds("request_timeout_s", request_timeout_s)

    async def aclose(self) -> None:
        """Closes the connections, and the transport that was handed in. The client cannot be used afterwards."""
        self._closed = True
        if self._process_id != os.getpid():
            return  # The connections are those of the process that this one was forked from, which goes on with them.
        if self._http is None and self._transport is not None:
            await self._transport.aclose()
        if self._http is not None and self._loop is asyncio.get_running_loop():
            await self._http.aclose()

    def __reduce__(self) -> NoReturn:
        # Some picklers take closures along, and the token with them.
        raise TypeError(
            "a RolloutControlClient, with its connections and token, cannot be pickled: make one in each process"
        )

    def __enter__(self) -> NoReturn:
        raise TypeError(
            "RolloutControlClient is asynchronous: write 'async with', or use SyncRolloutControlClient in code without "
            "asyncio"
        )

    def __exit__(self, *_: object) -> None:
        """Stands here so that `with` asks `__enter__`, which says what to write."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _read_manifest(rollout_id: str, response: httpx.Response) -> RolloutManifest:
    manifest = get_rollout_manifest.parse_response(response)
    if manifest.rollout_id != rollout_id:
        raise ValueError(f"the manifest is that of {manifest.rollout_id!r}")
    return manifest


def _read_part(batch: list[str], response: httpx.Response) -> Part:
    answer = get_rollout_manifests.parse_response(response)
    outcomes: list[ManifestOutcome] = [(manifest.rollout_id, manifest) for manifest in answer.manifests]
    outcomes += [(rollout_id, RolloutRetiredError(rollout_id)) for rollout_id in answer.retired]
    if sorted([rollout_id for rollout_id, _ in outcomes] + answer.remaining) != sorted(batch):
        raise ValueError("the answer does not name each id of the request exactly once")
    if not outcomes:
        raise ValueError("the answer deals with none of the ids")
    return Part(outcomes, answer.remaining)


def _connect(base_url: str, auth_token: str, transport: httpx.AsyncBaseTransport | None) -> AuthenticatedClient:
    user_agent = f"rollout-control/{__version__} python-httpx/{httpx.__version__}"
    return AuthenticatedClient(base_url, auth_token, transport or direct_transport(base_url), user_agent)


def environment() -> tuple[str, str]:
    """Returns base URL and token as the environment has them.

    Raises:
        ValueError: One of them is not set.
    """
    base_url, auth_token = (os.environ.get(f"ROLLOUT_CONTROL_{name}", "") for name in ("URL", "AUTH_TOKEN"))
    if not base_url or not auth_token:
        raise ValueError(
            "set ROLLOUT_CONTROL_URL to where the control plane is served, and ROLLOUT_CONTROL_AUTH_TOKEN to its token"
        )
    return base_url, auth_token


def _checked_seconds(name: str, seconds: float) -> float:
    if not (0 < seconds < math.inf):
        raise ValueError(f"{name} is a finite number of seconds over 0, not {seconds!r}")
    return seconds


def _checked_url(base_url: str) -> str:
    """Returns the URL without slashes at its end, if the operations' paths can follow it.

    The message does not show it whole, because it may hold a password.
    """
    try:
        url = httpx.URL(base_url)
        scheme, host, port = url.scheme, url.host, url.port
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ValueError(f"base_url is no URL: {error}") from None
    if scheme not in {"http", "https"} or not host or "%20" in host or " " in base_url:
        raise ValueError(
            f"base_url is an http:// or https:// URL with a host; its scheme is {scheme!r}, its host {host!r}"
        )
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"base_url has a port between 1 and 65535, not {port}")
    if CONTROL_ROUTE_PREFIX in url.path:
        raise ValueError(
            f"base_url ends before {CONTROL_ROUTE_PREFIX}, which the client appends itself: leave that out"
        )
    if url.userinfo or "?" in base_url or "#" in base_url:
        raise ValueError("base_url has no user, query or fragment; who asks is said by the token alone")
    return str(url).rstrip("/")
