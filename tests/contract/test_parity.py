"""The server's structs, held against the schemas of the spec."""

import copy
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from rollout_control_server import errors, records
from rollout_control_spec import (
    CONTROL_ROUTE_PREFIX,
    MANIFEST_SCHEMA_VERSION,
    MAX_LEDGER_BATCH,
    MAX_PAGE,
    openapi_yaml,
    validate_rollout_id,
    validate_rollout_id_prefix,
)

SPEC: dict[str, Any] = yaml.safe_load(openapi_yaml())
SCHEMAS: dict[str, Any] = SPEC["components"]["schemas"]

STRUCTS = {
    "CallFailure": records.CallFailure,
    "CallRecord": records.CallRecord,
    "IdleRemoval": records.IdleRemoval,
    "IdleRemovalRequest": records.IdleRemovalRequest,
    "LedgerBatchRequest": records.LedgerBatchRequest,
    "ListedRollout": records.ListedRollout,
    "Problem": errors.Problem,
    "RolloutManifest": records.RolloutManifest,
    "RolloutManifests": records.RolloutManifests,
    "RolloutPage": records.RolloutPage,
    "RolloutRemoval": records.RolloutRemoval,
    "RolloutSummary": records.RolloutSummary,
}

# Where a struct says less than its schema, and why.
SAID_ELSEWHERE = {
    # Both decided by validate_rollout_id, since a bad id is 400 and a bad schema 422.
    ("LedgerBatchRequest", "rollout_ids"): {"items"},
    ("IdleRemovalRequest", "rollout_ids"): {"items"},
    ("IdleRemoval", "removed"): {"items"},
    ("IdleRemoval", "absent"): {"items"},
    ("IdleRemoval", "active"): {"items"},
    ("ListedRollout", "rollout_id"): {"minLength", "maxLength", "pattern", "not"},
    ("RolloutPage", "next"): {"minLength", "maxLength", "pattern"},
    ("ListingQuery", "after"): {"minLength", "maxLength", "pattern", "not"},
    ("RolloutRemoval", "removed"): {"items"},
    ("RolloutRemoval", "absent"): {"items"},
    ("RolloutManifests", "retired"): {"items"},
    ("RolloutManifests", "remaining"): {"items"},
    ("RolloutManifest", "rollout_id"): {"minLength", "maxLength", "pattern", "not"},
    # An answer of ours, never read.
    ("Problem", "type"): {"format"},
    ("Problem", "status"): {"minimum", "maximum"},
}
# Kinds of problem that servers of other makes may have, and ours has no use for.
NOT_OURS = {"urn:rollout-control:problem:forbidden"}
# Required on the wire, and filled in for whoever makes the struct: there is one value.
CONSTANTS = {"schema_version", "digest_version", "extras_digest_version"}
# Left out on the wire where there is none.
OPTIONAL = {"CallRecord": {"capture_key"}}


def resolved(schema: Any) -> Any:
    """Returns a schema with its references replaced, without what only people read."""
    if isinstance(schema, list):
        return [resolved(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = SCHEMAS[schema["$ref"].rpartition("/")[2]]
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return {key: resolved(value) for key, value in schema.items() if key not in {"description", "examples", "format"}}


def comparable(schema: dict[str, Any], name: str, field: str) -> dict[str, Any]:
    """Brings msgspec's way of writing a schema and the spec's to one form."""
    schema = copy.deepcopy(schema)
    options = schema.pop("anyOf", None)
    if options is not None:
        (present,) = [option for option in options if option != {"type": "null"}]
        schema = {**present, "type": [present["type"], "null"]}
    if "const" in schema:
        schema = {"const": schema["const"]}
    if "enum" in schema:
        schema = {"enum": sorted(schema["enum"])} if len(schema["enum"]) > 1 else {"const": schema["enum"][0]}
    schema.pop("default", None)
    for keyword in SAID_ELSEWHERE.get((name, field), set()):
        schema.pop(keyword, None)
    return schema


def test_every_schema_of_an_object_has_a_struct() -> None:
    objects = {name for name, schema in SCHEMAS.items() if schema["type"] == "object"}
    assert objects == set(STRUCTS)


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_says_what_its_schema_says(name: str) -> None:
    (_,), components = msgspec.json.schema_components([STRUCTS[name]], ref_template="#/components/schemas/{name}")
    schema = resolved(SCHEMAS[name])
    ours = components[name]
    assert list(ours["properties"]) == list(schema["properties"]), "the fields, in the order of the wire"
    optional = {field for field in schema["properties"] if field not in schema["required"]}
    assert optional == OPTIONAL.get(name, set()), "all other fields are always sent"
    assert set(ours["required"]) == set(schema["required"]) - CONSTANTS
    assert ours.get("additionalProperties", True) == schema["additionalProperties"]
    for field, field_schema in schema["properties"].items():
        mine = resolved(ours["properties"][field]) if "$ref" not in str(ours["properties"][field]) else None
        if mine is None:
            items = SCHEMAS[name]["properties"][field]["items"]["$ref"]
            assert ours["properties"][field]["items"]["$ref"] == items
            continue
        mine = {key: value for key, value in mine.items() if not (key == "items" and name != "RolloutManifest")}
        theirs = comparable(field_schema, name, field)
        assert comparable(mine, name, field) == theirs, field


def test_the_query_of_a_listing_says_what_its_parameters_say() -> None:
    schema = msgspec.json.schema(records.ListingQuery)["$defs"]["ListingQuery"]
    assert schema["additionalProperties"] is False
    parameters = SPEC["paths"][f"{CONTROL_ROUTE_PREFIX}/rollouts"]["get"]["parameters"]
    assert [one["name"] for one in parameters] == list(schema["properties"])
    for one in parameters:
        mine = resolved(schema["properties"][one["name"]])
        assert mine["default"] == one["schema"].get("default"), one["name"]
        # A parameter that is not given is None.
        options = [option for option in mine.get("anyOf", [mine]) if option != {"type": "null"}]
        theirs = comparable(resolved(one["schema"]), "ListingQuery", one["name"])
        assert comparable(options[0], "ListingQuery", one["name"]) == theirs, one["name"]


def test_the_shared_constants_are_the_specs() -> None:
    assert SCHEMAS["LedgerBatchRequest"]["properties"]["rollout_ids"]["maxItems"] == MAX_LEDGER_BATCH
    assert SCHEMAS["RolloutPage"]["properties"]["rollouts"]["maxItems"] == MAX_PAGE
    assert SCHEMAS["RolloutManifest"]["properties"]["schema_version"]["const"] == MANIFEST_SCHEMA_VERSION
    assert all(path.startswith(f"{CONTROL_ROUTE_PREFIX}/") for path in SPEC["paths"])


@pytest.mark.parametrize("rollout_id", ["a", "A-z.0_9", "a" * 255, "...", ".a", "-", "_"])
def test_rollout_ids_that_both_take(rollout_id: str) -> None:
    jsonschema.validate(rollout_id, resolved(SCHEMAS["RolloutId"]))
    assert validate_rollout_id(rollout_id) == rollout_id


@pytest.mark.parametrize("rollout_id", ["", ".", "..", "a" * 256, "a/b", "a b", "é", "a\x00"])
def test_rollout_ids_that_neither_takes(rollout_id: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(rollout_id, resolved(SCHEMAS["RolloutId"]))
    with pytest.raises(ValueError, match="invalid rollout id"):
        validate_rollout_id(rollout_id)


@pytest.mark.parametrize("prefix", ["a", ".", "..", "a" * 255, "-._"])
def test_prefixes_that_both_take(prefix: str) -> None:
    assert msgspec.convert({"prefix": prefix}, records.ListingQuery).prefix == prefix
    assert validate_rollout_id_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["", "a" * 256, "a/b", "a ", "é", "a\n", "\n"])
def test_prefixes_that_neither_takes(prefix: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"prefix": prefix}, records.ListingQuery)
    with pytest.raises(ValueError, match="invalid rollout id"):
        validate_rollout_id_prefix(prefix)


def test_every_kind_of_problem_is_named_in_the_spec() -> None:
    described = SCHEMAS["Problem"]["properties"]["type"]["description"]
    for kind in errors.ProblemKind:
        assert f"`{kind.type.rpartition(':')[2]}`" in described


def examples() -> list[tuple[str, dict[str, Any], Any]]:
    """Returns every example of a body in the spec, with its schema."""
    found: list[tuple[str, dict[str, Any], Any]] = []

    def walk(node: Any, path: str) -> None:
        if isinstance(node, list):
            for index, item in enumerate(node):
                walk(item, f"{path}/{index}")
        elif isinstance(node, dict):
            if "schema" in node and "examples" in node:
                found.extend((f"{path}/{name}", node["schema"], one["value"]) for name, one in node["examples"].items())
            for key, value in node.items():
                walk(value, f"{path}/{key}")

    walk(SPEC, "")
    return found


@pytest.mark.parametrize(("schema", "value"), [pytest.param(s, v, id=name) for name, s, v in examples()])
def test_every_example_is_valid(schema: dict[str, Any], value: Any) -> None:
    jsonschema.validate(value, resolved(schema), cls=jsonschema.Draft202012Validator)


def test_the_problem_examples_are_what_the_server_answers() -> None:
    kinds = {kind.type: kind for kind in errors.ProblemKind}
    shown = [value for _, _, value in examples() if "type" in value and value["type"] not in NOT_OURS]
    assert {value["type"] for value in shown} >= set(kinds) - {"urn:rollout-control:problem:malformed-body"}
    for value in shown:
        assert (value["status"], value["title"]) == (kinds[value["type"]].status, kinds[value["type"]].title)


def test_the_cross_field_rules_are_the_specs() -> None:
    """A root has mode text and prev_len 0, a child mode token_in and prev_len > 0: in the schema as in the struct."""
    (record, child) = next(value for name, _, value in examples() if name.endswith("branchAndFailure"))["records"]
    schema = resolved(SCHEMAS["CallRecord"])
    for wrong in (
        {**record, "mode": "token_in"},
        {**record, "prev_len": 1, "cum_len": record["cum_len"] + 1},
        {**child, "mode": "text"},
        {**child, "prev_len": 0, "cum_len": child["delta_len"]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema, cls=jsonschema.Draft202012Validator)
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, records.CallRecord)
    with pytest.raises(msgspec.ValidationError, match="cum_len must be"):
        msgspec.convert({**record, "cum_len": 7}, records.CallRecord)
