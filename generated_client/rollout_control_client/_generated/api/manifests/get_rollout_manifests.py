# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""Read the manifests of many rollouts.

An optional operation: a server without it answers 404, 405 or 501, and clients then read the manifests one by one.

Deals with the ids of the batch in their order, until the answer has reached the server's size limit. The manifest
of a retired rollout is gone, and its id is in `retired`. Ids that were left out for the answer's size are in
`remaining`, to be asked for again; at least one id is always dealt with, however large its manifest. Each id of the
request is in exactly one of the three lists, once, in the order of its first appearance.

The manifests of one answer have together no more bytes than the server's size limit, unless the first one alone has
more. The server chooses the limit; it should be between 64 KiB, so that few requests are enough, and 64 MiB,
because a client holds a whole answer in memory.

The answer is one consistent reading of the ledger: no two of its manifests are from different moments. A server
whose ledger can only be read rollout by rollout may read one after the other. The operation changes nothing.
"""

import httpx
import msgspec

from ...client import AuthenticatedClient
from ...errors import UnexpectedStatus
from ...models.ledger_batch_request import LedgerBatchRequest
from ...models.rollout_manifests import RolloutManifests

_decoder = msgspec.json.Decoder(RolloutManifests)


def build_request(
    body: LedgerBatchRequest,
    *,
    client: AuthenticatedClient,
) -> httpx.Request:
    """Returns the request, ready to be sent with the client."""
    return client.build_request(
        "POST",
        "/training-token-capture/control/rollouts/manifests",
        content=msgspec.json.encode(body),
        headers={"Content-Type": "application/json"},
    )


def parse_response(response: httpx.Response) -> RolloutManifests:
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
