# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated, Literal

import msgspec

from ..models.call_record_mode import CallRecordMode


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model call whose tokens are staged. `cum_len` is always `prev_len + delta_len`. A root has no parent, mode
    `text` and `prev_len` 0; a child has a parent, mode `token_in` and `prev_len` > 0. A record may have further
    fields (see "Extension"). `capture_key` is one. Digests, hashes and fingerprints are opaque to this protocol:
    a server returns them as they were recorded and compares them with nothing. NeMo Gym's inference worker
    computes `digest`, `extras_digest`, `chain_hash` and `cumulative_hash` when it stages the call, and its model
    server computes the fingerprints. A trainer that verifies what was staged uses NeMo Gym's algorithms, of the
    version that stands in the record.

    Attributes:
        schema_version: The version of this layout.
        digest_version: The version of the algorithm behind `digest`, `chain_hash` and `cumulative_hash`.
        extras_digest_version: The version of the algorithm behind `extras_digest`.
        model_call_id: Names the call within its rollout.
        parent_call_id: The call that this one continues; null for a root.
        prev_len: Tokens before this call, that is the parent's `cum_len`; 0 for a root.
        delta_len: Tokens that this call added.
        cum_len: Tokens up to and with this call, `prev_len + delta_len`.
        weight_version: The version of the policy's weights that generated the call.
        digest: SHA-256 over the call's staged tokens with its place in the chain, by the inference worker. Opaque
            to this protocol.
        extras_digest: SHA-256 over what was staged beside the tokens, by the inference worker. Opaque to this
            protocol.
        staging_key: Where the tokens are staged; by default the rollout's id, a slash and the call's id.
        mode: How the prompt reached the inference worker, as text or as the parent's tokens.
        chain_hash: SHA-256 over the parent's `chain_hash` and the tokens that this call added, by the inference
            worker. Opaque to this protocol.
        cumulative_hash: SHA-256 over all tokens from the root to this call, by the inference worker. Opaque to
            this protocol.
        response_id: The id of the response that the agent received.
        admitted_at: When the model server admitted the call, in seconds of Unix time; finite.
        output_fingerprint: Fingerprint of the call's output, a SHA-256 in hexadecimal, by the model server.
            Opaque to this protocol.
        continuation_fingerprint: Fingerprint of the request followed by its output, a SHA-256 in hexadecimal, by
            the model server. Opaque to this protocol.
        fingerprint_version: The version of the fingerprints' algorithm; 0 when none was recorded.
        capture_key: The id of the attempt under which the call's tokens were staged, where that is another one
            than this rollout's. The digest covers that id, so the tokens can be verified only with it. Absent where
            there is none.
    """

    schema_version: Literal[2]
    digest_version: Literal[2]
    extras_digest_version: Literal[1]
    model_call_id: Annotated[str, msgspec.Meta(min_length=1)]
    parent_call_id: Annotated[str, msgspec.Meta(min_length=1)] | None
    prev_len: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)]
    delta_len: Annotated[int, msgspec.Meta(ge=1, le=9223372036854775807)]
    cum_len: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)]
    weight_version: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)]
    digest: Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
    extras_digest: Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
    staging_key: Annotated[str, msgspec.Meta(min_length=1)]
    mode: CallRecordMode
    chain_hash: Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
    cumulative_hash: Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
    response_id: Annotated[str, msgspec.Meta(min_length=1)]
    admitted_at: float | None
    output_fingerprint: Annotated[str, msgspec.Meta(min_length=64, max_length=64)] | None
    continuation_fingerprint: Annotated[str, msgspec.Meta(min_length=64, max_length=64)] | None
    fingerprint_version: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)]
    capture_key: Annotated[str, msgspec.Meta(min_length=1)] | None = msgspec.field(default=None)
