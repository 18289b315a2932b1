"""Sends httpx's requests by aiohttp, whose parser is compiled: the transport that the extra `fast` brings.

Everything that aiohttp raises leaves as the error of httpx that means the same, so that `_exchange` sees one family of
errors. The package httpx-aiohttp is such a transport too, but turns a refused and a lost connection into time-outs,
which are not retried.
"""

import io
import os
import ssl
from typing import Any, Final

import aiohttp
import httpx
from yarl import URL

__all__ = ["AiohttpTransport"]

LONGEST_BYTES_BODY: Final = 2**20
"""aiohttp warns of a longer body unless it comes as a file."""

KEEP_ALIVE_S: Final = 5.0
"""How long a connection waits for its next request; httpx's own transport has the same."""


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Answers requests by aiohttp. It opens its connections in the loop of the first request, and belongs to that loop.

    Args:
        ssl_context: What certificates are verified by, and the client's own certificate.
    """

    def __init__(self, ssl_context: ssl.SSLContext) -> None:
        self._ssl_context = ssl_context
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends one request, and returns the answer when it has arrived whole."""
        if self._session is None:
            self._session = _open_session(self._ssl_context)
        content = request.content
        failure: httpx.RequestError | None = None
        try:
            async with self._session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=request.headers.multi_items(),
                data=io.BytesIO(content) if len(content) > LONGEST_BYTES_BODY else content or None,
                allow_redirects=False,
            ) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            failure = _error_of_httpx(error)
        if failure is not None:
            raise failure
        return httpx.Response(
            answer.status,
            headers=answer.raw_headers,
            content=body,
            request=request,
            extensions={"reason_phrase": (answer.reason or "").encode("latin-1", "replace")},
        )

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()

    def __del__(self) -> None:
        # The connections warn of themselves if they are open. The session would write to asyncio's log besides.
        if self._session is not None and not self._session.closed:
            self._session.detach()


class _Connector(aiohttp.TCPConnector):
    """Connections that a forked process leaves alone.

    When such a process drops them, closing them would remove them from the selector, which it shares with its parent.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._process_id = os.getpid()

    def __del__(self, *arguments: Any) -> None:
        if self._process_id == os.getpid():
            super().__del__(*arguments)


def _open_session(ssl_context: ssl.SSLContext) -> aiohttp.ClientSession:
    # The client itself decides how many requests run at a time, and how long each may take.
    return aiohttp.ClientSession(
        connector=_Connector(ssl=ssl_context, limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
    )


def _error_of_httpx(error: aiohttp.ClientError | OSError) -> httpx.RequestError:
    """Returns the error of httpx that means the same, with the one of aiohttp as its cause."""
    text = str(error) or type(error).__name__
    same: httpx.RequestError
    match error:
        case aiohttp.ClientResponseError():
            # Not as a cause: it has the request's headers in its repr, and with them the token.
            return httpx.RemoteProtocolError(" ".join(error.message.split()))
        case aiohttp.ClientPayloadError():
            same = httpx.RemoteProtocolError(text)
        case aiohttp.ClientProxyConnectionError():
            same = httpx.ProxyError(text)
        case aiohttp.ClientConnectorError():
            same = httpx.ConnectError(text)
        case aiohttp.ClientConnectionError() | OSError():
            same = httpx.ReadError(text)
        case _:
            same = httpx.RequestError(text)
    same.__cause__ = error
    return same
