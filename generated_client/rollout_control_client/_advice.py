"""Which failures to connect no further attempt can mend, and what to do about them."""

import socket
import ssl
from collections.abc import Iterator

from rollout_control_client.errors import RequestFailedError

__all__ = ["advice_for"]

_TLS_RECORD = ("\\x15\\x03", "\\x16\\x03")
"""How h11 shows the first bytes of a TLS alert or handshake that came in place of an answer."""


def advice_for(failure: RequestFailedError, before: RequestFailedError | None) -> str | None:
    """Returns what to do about a failure that stays the same however often it is tried, or None for any other.

    Args:
        failure: How the last attempt failed.
        before: How the one before it failed, if there was one.
    """
    for error in _causes(failure):
        match error:
            case ssl.SSLCertVerificationError():
                return (
                    "The server's certificate cannot be verified. If a private authority has signed it, name that "
                    "authority's certificate in the environment variable SSL_CERT_FILE"
                )
            case ssl.SSLError() if error.reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}:
                return "The port answers without TLS: base_url begins with http:// there"
            case ssl.SSLError() if error.reason is not None and "ALERT" in error.reason:
                return "The server refuses the TLS connection; it may want a client certificate"
            case socket.gaierror() if before is not None and _is_unresolved(before):
                return "The host name cannot be resolved: check it in base_url"
    if any(record in failure.detail for record in _TLS_RECORD):
        return "The port speaks TLS: base_url begins with https:// there"
    return None


def _is_unresolved(failure: RequestFailedError) -> bool:
    return any(isinstance(error, socket.gaierror) for error in _causes(failure))


def _causes(failure: RequestFailedError) -> Iterator[BaseException]:
    """Yields the errors behind a failure: of httpx, of what httpx stands on, and at last of the system."""
    error: BaseException | None = failure.__cause__
    while error is not None:
        yield error
        # aiohttp keeps the system's error in an attribute.
        system: object = getattr(error, "os_error", None)
        error = error.__cause__ or error.__context__ or (system if isinstance(system, BaseException) else None)
