"""The check of the bearer token, which is the first decision on any request to the control plane."""

import hmac
from collections.abc import Iterable

from rollout_control_spec import validate_auth_token

from rollout_control_server.errors import ProblemKind, RequestRefusedError

__all__ = ["BearerToken"]


class BearerToken:
    """The secret that trainer and server share. No repr and no error shows it."""

    def __init__(self, auth_token: str) -> None:
        """Takes the secret.

        Raises:
            TypeError: It is not a string.
            ValueError: No header can carry it; see `validate_auth_token`.
        """
        self._token = validate_auth_token(auth_token).encode()

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Refuses a request unless it has exactly one Authorization header, and that has the token.

        The scheme is compared without regard to case (RFC 9110, section 11.1), the token in constant time.

        Raises:
            RequestRefusedError: 401.
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
