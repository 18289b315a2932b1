# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""Count what the ledger holds.

An optional operation: a server without it answers 404, 405 or 501.

How many rollouts and rows there are, and since when the oldest rollout is live; cheap enough to be asked every ten
seconds. The operation changes nothing.
"""

import httpx
import msgspec

from ...client import AuthenticatedClient
from ...errors import UnexpectedStatus
from ...models.rollout_summary import RolloutSummary

_decoder = msgspec.json.Decoder(RolloutSummary)


def build_request(
    *,
    client: AuthenticatedClient,
) -> httpx.Request:
    """Returns the request, ready to be sent with the client."""
    return client.build_request(
        "GET",
        "/training-token-capture/control/rollouts/summary",
    )


def parse_response(response: httpx.Response) -> RolloutSummary:
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
