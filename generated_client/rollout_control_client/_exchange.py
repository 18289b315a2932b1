"""One request: sent, retried and read within its time.

This is the one seam between the client and what can go wrong outside of it: no error of httpx, of msgspec or of the
operating system gets past it.
"""

import asyncio
import email.utils
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

import httpx
import msgspec

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

FIRST_BACKOFF_S: Final = 0.1
LONGEST_BACKOFF_S: Final = 2.0

LONGEST_EXCERPT: Final = 200
"""How many characters an error shows of a body in a form that we don't know, such as a proxy's HTML."""

LONGEST_DETAIL: Final = 1000
"""How many characters an error has of anything else that came from outside, such as a problem document's detail."""

SHORTEST_SECRET: Final = 8
"""From how many characters on a token is taken out of an error; a shorter one is a word that occurs by chance."""

T = TypeVar("T")
E = TypeVar("E", bound=RequestFailedError)


async def exchange(
    http: httpx.AsyncClient,
    request: httpx.Request,
    read: Callable[[httpx.Response], T],
    timeout_s: float,
    turns: asyncio.Semaphore,
) -> T:
    """Returns what `read` makes of the answer to the request.

    Connection failures and 503 are retried, with exponential backoff and jitter, as long as the time allows; nothing
    else is.

    Args:
        http: Sends the request.
        request: What to send. Its body is bytes, so that it can be sent again.
        read: Makes the result of an answer. It raises UnexpectedStatus for a status that isn't success, and
            ValueError, msgspec.DecodeError or RecursionError for an answer that breaks the contract.
        timeout_s: Seconds that the whole may take, from the wait for a turn to the last byte of the answer.
        turns: Is held while the request is under way.

    Raises:
        RequestFailedError: The request was not done.
        RolloutControlError: The client was closed meanwhile.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    backoff_s = FIRST_BACKOFF_S
    failure: ServerUnreachableError | ServiceUnavailableError | None = None
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                try:
                    async with turns:
                        return await _attempt(http, request, read)
                except (ServerUnreachableError, ServiceUnavailableError) as error:
                    failure = error
                delay_s = backoff_s * random.uniform(0.5, 1.0)
                if isinstance(failure, ServiceUnavailableError) and failure.retry_after_s is not None:
                    delay_s = max(delay_s, failure.retry_after_s)
                if clock() + delay_s >= deadline:
                    raise failure
                await asyncio.sleep(delay_s)
                backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
    except TimeoutError:
        before = f"; the attempt before: {failure.detail}" if failure is not None else ""
        detail = f"no whole answer from {_origin(request)} within {timeout_s:g} s{before}"
        raise _failed(RequestTimedOutError, request, None, detail) from failure


async def _attempt(http: httpx.AsyncClient, request: httpx.Request, read: Callable[[httpx.Response], T]) -> T:
    """Sends the request once, and translates whatever comes of it."""
    try:
        response = await http.send(request)
    except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, httpx.StreamError, OSError) as error:
        raise _failed(_counterpart(error), request, None, f"{_describe(error)} ({_origin(request)})") from error
    except RuntimeError as error:
        if http.is_closed:
            raise RolloutControlError("this RolloutControlClient was closed while a request was under way") from error
        raise
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
    if status == 409:
        return _failed(RemovalRefusedError, request, status, detail)
    if status == 503:
        unavailable = _failed(ServiceUnavailableError, request, status, detail)
        unavailable.retry_after_s = _retry_after_s(response)
        return unavailable
    if response.has_redirect_location:
        location = response.headers["Location"]
        detail = f"a redirect to {location}, which is not followed; base_url must lead to the server itself"
    return _failed(RequestFailedError, request, status, detail)


def _failed(kind: type[E], request: httpx.Request, status: int | None, detail: str) -> E:
    # The token goes first: an excerpt could end in the middle of it.
    return kind(request.method, request.url.path, status, _excerpt(_without_token(request, detail), LONGEST_DETAIL))


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
