# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""Retire those rollouts of a batch that are idle.

An optional operation: a server without it answers 404, 405 or 501, and changes nothing.

Retires each rollout of the batch whose last row, record or failure, is at least `idle_for_s` seconds old by the
ledger's clock. Which ones these are is decided in the same atomic change that retires them, so a rollout that
records a row meanwhile is not retired. A rollout whose last row's time is not known is never idle. Unlike
retireRollouts, this operation fences no id without rows.

The whole batch is checked before anything changes; then it is one atomic change. An id that occurs more than once
counts once, at its first place. Repeating the request is safe.
"""

import httpx
import msgspec

from ...client import AuthenticatedClient
from ...errors import UnexpectedStatus
from ...models.idle_removal import IdleRemoval
from ...models.idle_removal_request import IdleRemovalRequest

_decoder = msgspec.json.Decoder(IdleRemoval)


def build_request(
    body: IdleRemovalRequest,
    *,
    client: AuthenticatedClient,
) -> httpx.Request:
    """Returns the request, ready to be sent with the client."""
    return client.build_request(
        "POST",
        "/training-token-capture/control/rollouts/retire-idle",
        content=msgspec.json.encode(body),
        headers={"Content-Type": "application/json"},
    )


def parse_response(response: httpx.Response) -> IdleRemoval:
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
