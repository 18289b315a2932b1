"""What every answer is held against, whichever request it belongs to."""

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from rollout_control_check.examination import CHANGES, document_of, observer
from rollout_control_check.requirements import ANSWERS, SchemaViolation, violations
from rollout_control_check.wire import Exchange

SHOWN: Final = 3
"""How many violations of a schema the evidence names."""


LENGTHS: Final = ("prev_len", "delta_len", "cum_len")


def _is_error(exchange: Exchange) -> bool:
    """Tells whether an answer is an error with a body, which an answer to HEAD never has."""
    return exchange.answer is not None and exchange.answer.status >= 400 and exchange.request.method != "HEAD"


def _member(exchange: Exchange, name: str) -> Any:
    """Returns a member of a problem document, None where there is none."""
    document = document_of(exchange)
    return document.get(name) if isinstance(document, dict) else None


def _is_success(exchange: Exchange) -> bool:
    return exchange.answer is not None and exchange.answer.status == 200


def _has_body(exchange: Exchange) -> bool:
    return _is_success(exchange) and exchange.request.method != "HEAD"


def _path(exchange: Exchange) -> str:
    return exchange.request.path.partition("?")[0]


def _is_manifest(exchange: Exchange) -> bool:
    return _has_body(exchange) and _path(exchange).endswith("/manifest")


def _is_removal(exchange: Exchange) -> bool:
    return _has_body(exchange) and _path(exchange).endswith(("/retire", "/delete"))


def _is_bulk(exchange: Exchange) -> bool:
    return _has_body(exchange) and _path(exchange).endswith("/manifests")


def _operation(exchange: Exchange) -> str:
    """Returns the last segment of the path."""
    return _path(exchange).rpartition("/")[2]


def _schema(exchange: Exchange) -> str:
    """Returns the name of the schema that a success has."""
    return ANSWERS[_operation(exchange)][1]


def _rows(exchange: Exchange, kind: str) -> list[Any]:
    document = document_of(exchange)
    rows = document.get(kind) if isinstance(document, dict) else None
    return rows if isinstance(rows, list) else []


def _records(exchange: Exchange) -> list[dict[str, Any]]:
    return [record for record in _rows(exchange, "records") if isinstance(record, dict)]


def _broken(exchange: Exchange) -> Iterator[SchemaViolation]:
    yield from violations(document_of(exchange), _schema(exchange))


def _words(found: Iterator[SchemaViolation], schema: str) -> str | None:
    messages = [violation.message for violation in found]
    if not messages:
        return None
    rest = f"; and {len(messages) - SHOWN} more" if len(messages) > SHOWN else ""
    return f"a body that is a {schema}: {'; '.join(messages[:SHOWN])}{rest}"


# Errors


@observer("errors.media-type", when=_is_error)
def errors_media_type(exchange: Exchange) -> str | None:
    if exchange.answer is not None and exchange.answer.media_type != "application/problem+json":
        return "Content-Type: application/problem+json"
    return None


@observer("errors.members", when=_is_error)
def errors_members(exchange: Exchange) -> str | None:
    found = (v for v in violations(document_of(exchange), "Problem") if v.place != ("status",))
    return _words(found, "Problem")


@observer("errors.status-member", when=lambda exchange: _is_error(exchange) and _member(exchange, "status") is not None)
def errors_status_member(exchange: Exchange) -> str | None:
    status = exchange.answer.status if exchange.answer else 0
    return None if _member(exchange, "status") == status else f"the member status to be {status}"


@observer("errors.type", when=lambda exchange: _is_error(exchange) and isinstance(_member(exchange, "type"), str))
def errors_type(exchange: Exchange) -> str | None:
    prefix = "urn:rollout-control:problem:"
    named = _member(exchange, "type")
    return None if named.startswith(prefix) and named != prefix else f"a member type that begins with {prefix}"


@observer("errors.retry-after", when=lambda exchange: exchange.answer is not None and exchange.answer.status == 503)
def errors_retry_after(exchange: Exchange) -> str | None:
    seconds = exchange.answer and exchange.answer.header("retry-after")
    return None if seconds and seconds.isdigit() else "a header Retry-After with whole seconds"


# Success


@observer("success.media-type", when=_is_success)
def success_media_type(exchange: Exchange) -> str | None:
    if exchange.answer is not None and exchange.answer.media_type != "application/json":
        return "Content-Type: application/json"
    return None


@observer("success.exact-fields", when=lambda exchange: _has_body(exchange) and _operation(exchange) in ANSWERS)
def success_exact_fields(exchange: Exchange) -> str | None:
    return _words((violation for violation in _broken(exchange) if violation.fields_differ), _schema(exchange))


def _values(exchange: Exchange, *kinds: str) -> Iterator[SchemaViolation]:
    for violation in _broken(exchange):
        kind = violation.place[0] if len(violation.place) > 1 else ""
        if not violation.fields_differ and (kind in kinds if kinds else kind not in {"records", "failures"}):
            yield violation


@observer("manifest.schema", when=_is_manifest)
def manifest_schema(exchange: Exchange) -> str | None:
    return _words(_values(exchange), "RolloutManifest")


@observer("records.schema", when=lambda exchange: _is_manifest(exchange) and bool(_rows(exchange, "records")))
def records_schema(exchange: Exchange) -> str | None:
    return _words(_values(exchange, "records"), "RolloutManifest")


@observer("failures.schema", when=lambda exchange: _is_manifest(exchange) and bool(_rows(exchange, "failures")))
def failures_schema(exchange: Exchange) -> str | None:
    return _words(_values(exchange, "failures"), "RolloutManifest")


def _wrong_values(exchange: Exchange) -> str | None:
    return _words((violation for violation in _broken(exchange) if not violation.fields_differ), _schema(exchange))


@observer("removal.schema", when=lambda exchange: _has_body(exchange) and _operation(exchange) in CHANGES)
def removal_schema(exchange: Exchange) -> str | None:
    return _wrong_values(exchange)


@observer("manifest.rollout-id", when=_is_manifest)
def manifest_rollout_id(exchange: Exchange) -> str | None:
    asked = unquote(_path(exchange).split("/")[-2])
    document = document_of(exchange)
    named = document.get("rollout_id", asked) if isinstance(document, dict) else asked
    return None if named == asked else f"the manifest of the rollout that was asked for, {asked}"


@observer("records.sums", when=lambda exchange: _is_manifest(exchange) and bool(_records(exchange)))
def records_sums(exchange: Exchange) -> str | None:
    for record in _records(exchange):
        lengths = [value for name in LENGTHS if isinstance(value := record.get(name), int)]
        if len(lengths) == len(LENGTHS) and lengths[0] + lengths[1] != lengths[2]:
            return f"cum_len = prev_len + delta_len in call {record.get('model_call_id')!r}"
    return None


@observer("records.parent-first", when=lambda exchange: _is_manifest(exchange) and len(_records(exchange)) > 1)
def records_parent_first(exchange: Exchange) -> str | None:
    places = {record.get("model_call_id"): place for place, record in enumerate(_records(exchange))}
    for place, record in enumerate(_records(exchange)):
        if places.get(record.get("parent_call_id"), -1) > place:
            return f"call {record.get('parent_call_id')!r} before {record.get('model_call_id')!r}, its child"
    return None


# Removals


def _lists(exchange: Exchange) -> tuple[list[str], list[str], list[str]]:
    """Returns the ids of the request, each once, and the two lists of the answer."""
    asked = list(dict.fromkeys(json.loads(exchange.request.body or b"{}")["rollout_ids"]))
    return asked, _rows(exchange, "removed"), _rows(exchange, "absent")


@observer("removal.partition", when=_is_removal)
def removal_partition(exchange: Exchange) -> str | None:
    asked, removed, absent = _lists(exchange)
    if sorted(asked) != sorted(map(str, removed + absent)):
        return "each id of the request once, in removed or in absent, and no other"
    return None


@observer("removal.order", when=_is_removal)
def removal_order(exchange: Exchange) -> str | None:
    asked, removed, absent = _lists(exchange)
    places = {rollout_id: place for place, rollout_id in enumerate(asked)}
    for named in (removed, absent):
        found = [places[rollout_id] for rollout_id in named if isinstance(rollout_id, str) and rollout_id in places]
        if found != sorted(found):
            return "each list in the order in which the request names its ids first"
    return None


# Many manifests


@observer("manifests.schema", when=_is_bulk)
def manifests_schema(exchange: Exchange) -> str | None:
    return _wrong_values(exchange)


@observer(
    "rollouts.schema", when=lambda exchange: _has_body(exchange) and _operation(exchange) in {"rollouts", "summary"}
)
def rollouts_schema(exchange: Exchange) -> str | None:
    return _wrong_values(exchange)


@observer("manifests.partition", when=_is_bulk)
def manifests_partition(exchange: Exchange) -> str | None:
    asked = list(dict.fromkeys(json.loads(exchange.request.body or b"{}")["rollout_ids"]))
    manifests = [manifest.get("rollout_id") for manifest in _rows(exchange, "manifests") if isinstance(manifest, dict)]
    lists = (manifests, _rows(exchange, "retired"), _rows(exchange, "remaining"))
    in_order = all([name for name in asked if name in named] == named for named in lists)
    if not in_order or sorted(asked) != sorted(str(name) for named in lists for name in named):
        return "each id of the request once, in one of the three lists, in the order of the request"
    return None
