"""The bearer check: the first thing that any request below the control plane's prefix meets."""

import hmac
from collections.abc import Iterable

from rollout_control_spec import validate_auth_token

from rollout_control_server.errors import ProblemKind, RequestRefusedError

__all__ = ["BearerToken"]


class BearerToken:
    """The secret that trainer and server share. Its text never shows in a repr or an error."""

    def __init__(self, auth_token: str) -> None:
        """Takes the secret.

        Raises:
            TypeError: It is no string.
            ValueError: It is empty, or no header can carry it (RFC 9110, section 5.5), so that no request could match.
        """
        self._token = validate_auth_token(auth_token).encode()

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Returns if exactly one Authorization header carries the token, compared in constant time.

        The scheme is compared without regard to case (RFC 9110, section 11.1).

        Raises:
            RequestRefusedError: 401, for a request that does not carry it, whatever it carries instead.
        """
        values = [value for name, value in headers if name == b"authorization"]
        if len(values) == 1:
            scheme, _, token = values[0].partition(b" ")
            if scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(b" "), self._token):
                return
        raise RequestRefusedError(
            ProblemKind.UNAUTHORIZED,
            "send the control plane's token as 'Authorization: Bearer TOKEN'",
            {"WWW-Authenticate": "Bearer"},
        )
