"""The requirements list, which `requirements.yaml` holds, as objects."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

import yaml

__all__ = ["A_BATCH_OPERATION", "RECORDED_ID", "RECORDER", "Requirement", "requirements"]

RECORDER: Final = "recorder"
"""In `needs`: somebody who writes rows, since the protocol has no operation for it."""

RECORDED_ID: Final = "recorder or recorded id"
"""In `needs`: a rollout that has rows, written by us or by somebody before."""

A_BATCH_OPERATION: Final = "a batch operation"
"""In `needs`: a server that has the path of an operation that takes a batch, whether or not its ledger can do it."""

SPEC: Final = "openapi.yaml"


@dataclass(frozen=True)
class Requirement:
    """One thing that the contract requires of a server and that can be seen from outside.

    Attributes:
        id: Its name.
        says: The sentence that requires it.
        source: Where the sentence stands.
        needs: Requirements, and RECORDER or RECORDED_ID, without which it cannot be checked.
        optional: Whether a server without the operation that this offers doesn't fall short.
    """

    id: str
    says: str
    source: str = SPEC
    needs: tuple[str, ...] = ()
    optional: bool = False


@cache
def requirements() -> dict[str, Requirement]:
    """Returns all requirements by id, in the order of the list."""
    entries = yaml.safe_load(files(__package__).joinpath("requirements.yaml").read_bytes())
    listed = [
        Requirement(
            entry["id"],
            entry["says"],
            entry.get("from", SPEC),
            tuple(entry.get("needs", ())),
            entry.get("optional", False),
        )
        for entry in entries
    ]
    return {requirement.id: requirement for requirement in listed}
