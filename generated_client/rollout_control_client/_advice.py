"""Which failures to connect no further attempt can mend, and what to do about them."""

import socket
import ssl
from collections.abc import Iterator
from typing import Final

from rollout_control_client.errors import RequestFailedError

__all__ = ["advice_for"]

_NOT_TEXT: Final = ("illegal request line", "\\x15\\x03")
"""What h11 and aiohttp say of an answer that begins with a byte of no text, as a TLS alert does."""


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
            case ssl.SSLError(reason="WRONG_VERSION_NUMBER" | "RECORD_LAYER_FAILURE"):
                return "The port answers without TLS: base_url begins with http:// there"
            case ssl.SSLError(reason=str(reason)) if "ALERT" in reason:
                return "The server refuses the TLS connection; it may want a client certificate"
            case socket.gaierror() if before is not None and _is_unresolved(before):
                return "The host name cannot be resolved: check it in base_url"
    if any(words in failure.detail for words in _NOT_TEXT):
        return "The answer is not HTTP. If the port speaks TLS, base_url begins with https:// there"
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
