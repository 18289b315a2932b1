# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Annotated

import msgspec


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem document of RFC 9457. It may have further members.

    Attributes:
        type_: Names the kind of problem: `urn:rollout-control:problem:` and one of `invalid-rollout-id`,
            `malformed-body`, `unauthorized`, `forbidden`, `not-found`, `method-not-allowed`, `removal-refused`,
            `rollout-retired`, `body-too-large`, `unsupported-media-type`, `invalid-body`, `invalid-query`,
            `internal`, `not-implemented` and `unavailable`. The set is open.
        title: The kind of problem, for people. The same for every occurrence.
        status: The HTTP status, once more.
        detail: What went wrong this time, and what to do about it.
    """

    type_: str = msgspec.field(name="type")
    title: str
    status: Annotated[int, msgspec.Meta(ge=400, le=599)]
    detail: str
