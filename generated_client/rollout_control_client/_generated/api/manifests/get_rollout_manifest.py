# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""Read a rollout's manifest.

All rows of the rollout's ledger: `records` in commit order, and `failures`. A rollout that never recorded a call
has an empty manifest, and that is a 200. A retired rollout is 410: its rows were removed, and an empty manifest
would mean that it made no calls. This is the only operation that answers 410.

Rows that were acknowledged before the request began are all in the answer. The operation changes nothing.
"""

from urllib.parse import quote

import httpx
import msgspec

from ...client import AuthenticatedClient
from ...errors import UnexpectedStatus
from ...models.rollout_manifest import RolloutManifest

_decoder = msgspec.json.Decoder(RolloutManifest)


def build_request(
    rollout_id: str,
    *,
    client: AuthenticatedClient,
) -> httpx.Request:
    """Returns the request, ready to be sent with the client."""
    return client.build_request(
        "GET",
        "/training-token-capture/control/rollouts/{rollout_id}/manifest".format(
            rollout_id=quote(rollout_id, safe=""),
        ),
    )


def parse_response(response: httpx.Response) -> RolloutManifest:
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
