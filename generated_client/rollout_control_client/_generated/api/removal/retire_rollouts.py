# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""Retire ledgers and fence their ids.

Fences each rollout of the batch, ids that never recorded a call included, and removes its rows. From the answer on,
the manifest of each is 410 and each late write is discarded, until the id is deleted.

The whole batch is checked before anything changes; then it is one atomic change. An id that occurs more than once
counts once, at its first place. Repeating the request is safe: an id that is already fenced is `absent`.
"""

import httpx
import msgspec

from ...client import AuthenticatedClient
from ...errors import UnexpectedStatus
from ...models.ledger_batch_request import LedgerBatchRequest
from ...models.rollout_removal import RolloutRemoval

_decoder = msgspec.json.Decoder(RolloutRemoval)


def build_request(
    body: LedgerBatchRequest,
    *,
    client: AuthenticatedClient,
) -> httpx.Request:
    """Returns the request, ready to be sent with the client."""
    return client.build_request(
        "POST",
        "/training-token-capture/control/rollouts/retire",
        content=msgspec.json.encode(body),
        headers={"Content-Type": "application/json"},
    )


def parse_response(response: httpx.Response) -> RolloutRemoval:
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
