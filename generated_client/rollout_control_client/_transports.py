"""Which transport sends a client's requests where none is given."""

import ssl

import httpx

__all__ = ["direct_transport"]


def direct_transport(base_url: str) -> httpx.AsyncBaseTransport:
    """Returns a transport that connects to the server itself: aiohttp's where it is installed, else httpx's.

    The environment's proxies are not used. `SSL_CERT_FILE` and `SSL_CERT_DIR` are, by either transport.
    """
    # To load the certificates that httpx trusts takes longer than everything else about a client. Where no TLS is
    # spoken none are loaded.
    is_tls = base_url.startswith("https:")
    ssl_context = httpx.create_ssl_context() if is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        # It takes longer to import than the rest of the client, and not everybody who imports the client uses it.
        from rollout_control_client._aiohttp_transport import AiohttpTransport  # noqa: PLC0415
    except ImportError:
        # The client itself decides how many requests run at a time; none of those waits for a connection, or loses it.
        return httpx.AsyncHTTPTransport(
            verify=ssl_context, limits=httpx.Limits(max_connections=None, max_keepalive_connections=None)
        )
    return AiohttpTransport(ssl_context)
