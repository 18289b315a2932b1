# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""List the rollouts that there are.

An optional operation: a server without it answers 404, 405 or 501.

A page of the rollouts that have rows or a fence and that all given filters match, in the order of their ids' ASCII
bytes. A page is one consistent reading of the ledger. `next` is what `after` has to be for the next page, and null
at the end. Whoever reads pages until `next` is null gets each rollout that is there and matches all the time
exactly once, whatever is recorded and removed meanwhile. The operation changes nothing.

`idle_for_s` and `has_failures` match live rollouts only. A live rollout whose last row's time is not known is never
idle. A misspelt filter must not widen the answer: a query parameter that is unknown, comes twice or breaks its
schema is 422. An `after` that is no rollout id is 400.
"""

import httpx
import msgspec

from ...client import AuthenticatedClient
from ...errors import UnexpectedStatus
from ...models.list_rollouts_state import ListRolloutsState
from ...models.rollout_page import RolloutPage
from ...types import UNSET, Unset

_decoder = msgspec.json.Decoder(RolloutPage)


def build_request(
    *,
    client: AuthenticatedClient,
    state: ListRolloutsState | Unset = UNSET,
    prefix: str | Unset = UNSET,
    idle_for_s: float | Unset = UNSET,
    changed_since: float | Unset = UNSET,
    has_failures: bool | Unset = UNSET,
    limit: int | Unset = UNSET,
    after: str | Unset = UNSET,
) -> httpx.Request:
    """Returns the request, ready to be sent with the client; a parameter that is UNSET is left out."""
    parameters = {
        "state": state,
        "prefix": prefix,
        "idle_for_s": idle_for_s,
        "changed_since": changed_since,
        "has_failures": has_failures,
        "limit": limit,
        "after": after,
    }
    return client.build_request(
        "GET",
        "/training-token-capture/control/rollouts",
        params={name: value for name, value in parameters.items() if not isinstance(value, Unset)},
    )


def parse_response(response: httpx.Response) -> RolloutPage:
    """Returns what an answer with status 200 says.

    Raises:
        UnexpectedStatus: It has another status.
        msgspec.DecodeError: Its body is no JSON, or not of this shape.
        UnicodeDecodeError: Its body is not UTF-8.
        RecursionError: Its body is nested too deeply.
    """
    if response.status_code != 200:
        raise UnexpectedStatus(response.status_code, response.content)
    return _decoder.decode(response.content)
