"""One request: sent, retried and read within its time.

This is the one seam between the client and what can go wrong outside of it: no error of httpx, of msgspec or of the
operating system gets past it.
"""

import asyncio
import email.utils
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Final, TypeVar

import httpx
import msgspec
from rollout_control_spec import REQUEST_ID_HEADER

from rollout_control_client._advice import advice_for
from rollout_control_client._generated import AuthenticatedClient
from rollout_control_client._generated.errors import UnexpectedStatus
from rollout_control_client.errors import (
    ContractBrokenError,
    RemovalRefusedError,
    RequestFailedError,
    RequestTimedOutError,
    RolloutControlError,
    ServerUnreachableError,
    ServiceUnavailableError,
)

logger = logging.getLogger("rollout_control_client")

FIRST_BACKOFF_S: Final = 0.1
LONGEST_BACKOFF_S: Final = 2.0

UNAVAILABLE_STATUSES: Final = frozenset({429, 502, 503, 504})
"""Too many requests, and what a server, or the proxy before one that restarts, answers for a while."""

LONGEST_EXCERPT: Final = 200
"""How many characters an error shows of a body in a form that we don't know, such as a proxy's HTML."""

LONGEST_DETAIL: Final = 1000
"""How many characters an error has of anything else that came from outside, such as a problem document's detail."""

SHORTEST_SECRET: Final = 8
"""From how many characters on a token is taken out of an error; a shorter one is a word that occurs by chance."""

T = TypeVar("T")
E = TypeVar("E", bound=RequestFailedError)


def backoff() -> Iterator[float]:
    """Yields the seconds to wait before each next attempt: twice as long each time, and never the same twice."""
    pause_s = FIRST_BACKOFF_S
    while True:
        yield pause_s * random.uniform(0.5, 1.0)
        pause_s = min(2 * pause_s, LONGEST_BACKOFF_S)


async def exchange(
    http: AuthenticatedClient,
    request: httpx.Request,
    read: Callable[[httpx.Response], T],
    timeout_s: float,
    turns: asyncio.Semaphore,
) -> T:
    """Returns what `read` makes of the answer to the request.

    Connection failures and the statuses 429, 502, 503 and 504, by which servers and proxies say that a later attempt
    may go well, are retried with exponential backoff and jitter, as long as the time allows. A failure that no attempt
    can mend, such as a certificate that does not verify, is raised at once.

    Args:
        http: Sends the request.
        request: What to send. Its body is bytes, so that it can be sent again. Each attempt has the same request id.
        read: Makes the result of an answer. It raises UnexpectedStatus for a status that isn't success, and
            ValueError, msgspec.DecodeError or RecursionError for an answer that breaks the contract.
        timeout_s: Seconds that the whole may take, from the wait for a turn to the last byte of the answer.
        turns: Is held while the request is under way.

    Raises:
        RequestFailedError: The request was not done.
        RolloutControlError: The client was closed meanwhile.
    """
    request.headers[REQUEST_ID_HEADER] = uuid.uuid4().hex
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    pauses = backoff()
    failure: ServerUnreachableError | ServiceUnavailableError | None = None
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                try:
                    async with turns:
                        return await _attempt(http, request, read)
                except (ServerUnreachableError, ServiceUnavailableError) as error:
                    before, failure = failure, error
                advice = advice_for(failure, before)
                if advice is not None:
                    raise _with_advice(request, failure, advice) from failure.__cause__
                delay_s = next(pauses)
                if isinstance(failure, ServiceUnavailableError) and failure.retry_after_s is not None:
                    delay_s = max(delay_s, failure.retry_after_s)
                if clock() + delay_s >= deadline:
                    raise failure
                logger.warning("trying again in %.2g s: %s", delay_s, failure)
                await asyncio.sleep(delay_s)
    except TimeoutError:
        earlier = f"; the attempt before: {failure.detail}" if failure is not None else ""
        detail = f"no whole answer from {_origin(request)} within {timeout_s:g} s{earlier}"
        raise _failed(RequestTimedOutError, request, None, detail) from failure


async def when_not_refused(remove: Callable[[], Awaitable[T]], waiting_ends: float) -> T:
    """Returns what `remove` returns, asking again as long as the server refuses for now and the time allows.

    Args:
        remove: Sends the request.
        waiting_ends: Until when it may be asked again, by the running loop's clock.

    Raises:
        RemovalRefusedError: The server has refused up to then.
        RequestFailedError: The request was not done for another reason.
    """
    for pause_s in backoff():
        try:
            return await remove()
        except RemovalRefusedError as refused:
            delay_s = max(pause_s, refused.retry_after_s or 0.0)
            if asyncio.get_running_loop().time() + delay_s >= waiting_ends:
                raise
            logger.info("waiting %.2g s for a server that removes nothing for now: %s", delay_s, refused)
        await asyncio.sleep(delay_s)
    raise AssertionError("backoff has no end")


async def _attempt(http: AuthenticatedClient, request: httpx.Request, read: Callable[[httpx.Response], T]) -> T:
    """Sends the request once, and translates whatever comes of it."""
    try:
        response = await http.send(request)
    except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, httpx.StreamError, OSError) as error:
        raise _failed(_counterpart(error), request, None, f"{_describe(error)} ({_origin(request)})") from error
    except RuntimeError as error:
        if http.is_closed:
            raise RolloutControlError("this RolloutControlClient was closed while a request was under way") from error
        raise
    logger.debug("%s %s was answered with status %d", request.method, request.url.path, response.status_code)
    try:
        return read(response)
    except UnexpectedStatus:
        raise _refused(request, response) from None
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise _failed(ContractBrokenError, request, response.status_code, _describe(error)) from error


def _counterpart(error: Exception) -> type[RequestFailedError]:
    """Returns our class for an error that came instead of an answer."""
    match error:
        case httpx.TimeoutException():
            return RequestTimedOutError
        # A connection that breaks midway is a RemoteProtocolError too, and so is what isn't HTTP at all.
        case httpx.NetworkError() | httpx.ProxyError() | httpx.RemoteProtocolError() | OSError():
            return ServerUnreachableError
        case httpx.DecodingError() | httpx.TooManyRedirects():
            return ContractBrokenError
        case _:
            return RequestFailedError


def _refused(request: httpx.Request, response: httpx.Response) -> RequestFailedError:
    """Returns the error for an answer whose status isn't success."""
    status, detail = response.status_code, _detail(request, response)
    error: RequestFailedError
    if status == 409:
        error = refused = _failed(RemovalRefusedError, request, status, detail)
        refused.retry_after_s = _retry_after_s(response)
    elif status in UNAVAILABLE_STATUSES:
        error = unavailable = _failed(ServiceUnavailableError, request, status, detail)
        unavailable.retry_after_s = _retry_after_s(response)
    else:
        if response.has_redirect_location:
            location = response.headers["Location"]
            detail = f"a redirect to {location}, which is not followed; base_url must lead to the server itself"
        elif status == 401:
            detail += ". The server does not take this client's token: give the one that the server was started with"
        error = _failed(RequestFailedError, request, status, detail)
    error.request_id = response.headers.get(REQUEST_ID_HEADER, error.request_id)
    return error


def _failed(kind: type[E], request: httpx.Request, status: int | None, detail: str) -> E:
    # The token goes first: an excerpt could end in the middle of it.
    error = kind(request.method, request.url.path, status, _excerpt(_without_token(request, detail), LONGEST_DETAIL))
    error.request_id = request.headers[REQUEST_ID_HEADER]
    return error


def _with_advice(
    request: httpx.Request, failure: ServerUnreachableError | ServiceUnavailableError, advice: str
) -> RequestFailedError:
    return _failed(type(failure), request, failure.status, f"{failure.detail}. {advice}")


def _excerpt(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + "..."


def _without_token(request: httpx.Request, text: str) -> str:
    """Returns the text without the token, which a server could have sent back to us."""
    token = request.headers["Authorization"].removeprefix("Bearer ")
    return text.replace(token, "[token]") if len(token) >= SHORTEST_SECRET else text


def _origin(request: httpx.Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc.decode()}"


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _detail(request: httpx.Request, response: httpx.Response) -> str:
    """Returns the reason that the body of an error gives.

    Problem documents (RFC 9457) and Gym's errors have it as `detail`. Of anything else, an excerpt is shown.
    """
    try:
        detail = msgspec.json.decode(response.content, type=dict[str, object]).get("detail")
    except (ValueError, msgspec.DecodeError, RecursionError):
        detail = None
    if isinstance(detail, str) and detail:
        return detail
    # The token goes first here too.
    text = _without_token(request, response.content.decode("utf-8", "replace"))[: 10 * LONGEST_EXCERPT]
    words = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return _excerpt(words, LONGEST_EXCERPT) or response.reason_phrase or "no reason given"


def _retry_after_s(response: httpx.Response) -> float | None:
    """Returns the seconds that Retry-After asks to wait, given as a number or as a date (RFC 9110, section 10.2.3)."""
    value = response.headers.get("Retry-After", "")
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        date = email.utils.parsedate_to_datetime(value).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
