# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""The client that sends the requests of the endpoint modules."""

from typing import Any

import httpx


class AuthenticatedClient:
    """Builds requests with a bearer token, and sends them by a transport of httpx.

    An httpx.AsyncClient would also keep cookies, follow redirects and parse each URL twice, which costs more than
    sending a request of the protocol.

    Args:
        base_url: What every path is appended to; without a slash at the end.
        token: The bearer token.
        transport: Sends the requests. It is closed with the client.
        user_agent: The value of User-Agent.
    """

    def __init__(self, base_url: str, token: str, transport: httpx.AsyncBaseTransport, user_agent: str) -> None:
        self.is_closed = False
        self._base_url = base_url
        self._transport = transport
        # Not a dict, whose repr would show the token.
        self._headers = httpx.Headers(
            {
                "Accept": "application/json, application/problem+json, */*",
                "Accept-Encoding": "gzip, deflate",
                "User-Agent": user_agent,
                "Authorization": f"Bearer {token}",
            }
        )

    def build_request(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **content_or_params: Any
    ) -> httpx.Request:
        """Returns a request, whose arguments are those of httpx.Request."""
        all_headers = self._headers.copy()
        all_headers.update(headers)
        return httpx.Request(method, self._base_url + path, headers=all_headers, **content_or_params)

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Sends the request, and returns the answer with its whole body.

        Raises:
            RuntimeError: The client is closed.
        """
        if self.is_closed:
            raise RuntimeError("the client is closed")
        response = await self._transport.handle_async_request(request)
        response.request = request
        try:
            await response.aread()
        finally:
            await response.aclose()
        return response

    async def aclose(self) -> None:
        """Closes the transport."""
        self.is_closed = True
        await self._transport.aclose()
