"""What is required of a server: the list that `requirements.yaml` holds, the spec's schemas, and what a check finds."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import jsonschema_rs
import yaml
from rollout_control_spec import openapi_yaml

__all__ = [
    "ANSWERS",
    "A_BATCH_OPERATION",
    "RECORDED_ID",
    "RECORDER",
    "SPEC",
    "Outcome",
    "Requirement",
    "SchemaViolation",
    "Verdict",
    "requirements",
    "violations",
]

RECORDER: Final = "recorder"
"""In `needs`: somebody who writes rows, since the protocol has no operation for it."""

RECORDED_ID: Final = "recorder or recorded id"
"""In `needs`: a rollout that has rows, written by the check or by somebody before."""

A_BATCH_OPERATION: Final = "a batch operation"
"""In `needs`: a server that has the path of an operation that takes a batch, whether or not its ledger can do it."""

SPEC: Final = "openapi.yaml"

ANSWERS: Final = {
    "manifest": ("manifest.schema", "RolloutManifest"),
    "manifests": ("manifests.schema", "RolloutManifests"),
    "retire": ("removal.schema", "RolloutRemoval"),
    "delete": ("removal.schema", "RolloutRemoval"),
    "rollouts": ("rollouts.schema", "RolloutPage"),
    "summary": ("rollouts.schema", "RolloutSummary"),
    "retire-idle": ("removal.schema", "IdleRemoval"),
}
"""By the last segment of an operation's path: the requirement on the body of its success, and the body's schema."""


@dataclass(frozen=True)
class Requirement:
    """One thing that the contract requires of a server and that can be seen from outside.

    Attributes:
        id: Its name.
        says: The sentence that requires it.
        source: Where the sentence stands.
        needs: Requirements, and RECORDER, RECORDED_ID or A_BATCH_OPERATION, without which it cannot be checked.
        optional: Whether a server without the operation that this offers doesn't fall short.
    """

    id: str
    says: str
    source: str = SPEC
    needs: tuple[str, ...] = ()
    optional: bool = False


class Verdict(Enum):
    """What became of a requirement."""

    HOLDS = "holds"
    BROKEN = "broken"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Outcome:
    """What became of one requirement. No text of it shows the token.

    Attributes:
        verdict: Whether it holds.
        why: Why it was not checked.
        needs: The broken requirement that it needs, which is why it was not checked.
        expected: What the contract expects, where the server did something else.
        came: What came.
        commands: Shell commands that show it again, the requests that led up to it included.
        same_answer_as: The requirement that was found broken by the very same answer before.
    """

    verdict: Verdict
    why: str = ""
    needs: str = ""
    expected: str = ""
    came: str = ""
    commands: str = ""
    same_answer_as: str = ""


class SchemaViolation(NamedTuple):
    """Where a document breaks a schema.

    Attributes:
        place: Names and indices from the document's root.
        fields_differ: Whether a field is missing or is one that the schema doesn't have.
        message: What is wrong.
    """

    place: tuple[str | int, ...]
    fields_differ: bool
    message: str


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


def violations(document: object, schema: str) -> Iterator[SchemaViolation]:
    """Yields where a document breaks a schema of the spec's components."""
    for error in _validator(schema).iter_errors(document):
        keyword = error.schema_path[-1]
        place = ".".join(str(step) for step in error.instance_path) or "the body"
        yield SchemaViolation(
            tuple(error.instance_path), keyword in {"additionalProperties", "required"}, f"{place}: {error.message}"
        )


@cache
def _validator(schema: str) -> jsonschema_rs.Draft202012Validator:
    spec: dict[str, Any] = yaml.safe_load(openapi_yaml())
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": spec["components"]}
    )
