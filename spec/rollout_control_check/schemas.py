"""The spec's own schemas, as validators of what a server answers."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import jsonschema_rs
import yaml
from rollout_control_spec import openapi_yaml

__all__ = ["SchemaViolation", "violations"]


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
