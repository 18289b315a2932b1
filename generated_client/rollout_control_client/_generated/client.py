# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""The client that sends the requests of the endpoint modules."""

from typing import Any

import httpx


class AuthenticatedClient(httpx.AsyncClient):
    """An httpx client that sends a bearer token with every request. Redirects are not followed."""

    def __init__(self, base_url: str, token: str, **httpx_args: Any) -> None:
        super().__init__(base_url=base_url, headers={"Authorization": f"Bearer {token}"}, **httpx_args)
