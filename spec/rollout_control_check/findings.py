"""What schemathesis found, read from the events that it reports, and the requirements that it belongs to."""

import base64
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import requests

from rollout_control_check.examination import Examination
from rollout_control_check.wire import TOKEN_IN_SHELL, Answer, Credentials, Exchange, Request

__all__ = ["BY_STATUS", "REQUIREMENT_OF", "SCHEMA_REQUIREMENT", "Finding", "failure_of", "findings", "shortfall_of"]

BY_STATUS: Final = {401: "auth.challenge", 405: "methods.allow", 503: "errors.retry-after"}

SCHEMA_REQUIREMENT: Final = {
    "manifest": "manifest.schema",
    "manifests": "manifests.schema",
    "retire": "removal.schema",
    "delete": "removal.schema",
}

REQUIREMENT_OF: Final = {
    "not_a_server_error": "errors.none-internal",
    "status_code_conformance": "errors.documented",
    "content_type_conformance": "errors.media-type",
    "response_headers_conformance": "auth.challenge",
    "response_schema_conformance": "errors.members",
    "negative_data_rejection": "bodies.schema",
    "positive_data_acceptance": "ids.valid",
    "unsupported_method": "methods.not-allowed",
    "allow_header_conformance": "methods.allow",
    "ignored_auth": "auth.missing-token",
}
"""The requirement that a finding of each of schemathesis' checks belongs to, where its answer does not say more."""

Event: TypeAlias = dict[str, Any]


class Finding(NamedTuple):
    """One thing that schemathesis found.

    Attributes:
        check: The name of its check; empty where no whole answer came.
        words: What it says.
        operation: Method and path of the spec, with a space between.
        interaction: What was sent and what came; None where no whole answer came.
    """

    check: str
    words: str
    operation: str
    interaction: dict[str, Any] | None


def findings(events: list[Event]) -> Iterator[Finding]:
    """Yields what was found."""
    for event in events:
        if "ScenarioFinished" in event:
            yield from _of_scenario(event["ScenarioFinished"]["recorder"])
        elif "NonFatalError" in event and _is_of_the_network(event["NonFatalError"]):
            error = event["NonFatalError"]
            yield Finding("", error["value"]["message"], error["label"], None)


def failure_of(events: list[Event]) -> str:
    """Returns why schemathesis itself failed, in its words; empty if it did not."""
    for event in events:
        for kind in ("FatalError", "NonFatalError"):
            if kind in event and not _is_of_the_network(event[kind]):
                return f"{event[kind].get('value') or event[kind]}"
    return ""


def _is_of_the_network(error: Event) -> bool:
    kind = getattr(requests.exceptions, str((error.get("value") or {}).get("type")), None)
    return isinstance(kind, type) and issubclass(kind, requests.exceptions.RequestException)


def _of_scenario(recorder: dict[str, Any]) -> Iterator[Finding]:
    for case_id, checks in (recorder.get("checks") or {}).items():
        interaction = (recorder.get("interactions") or {}).get(case_id)
        for check in checks:
            if check["status"] != "failure":
                continue
            failure = check["failure_info"]["failure"]
            words = f"no finding of schemathesis; it found: {failure['title']}: {failure['message']}"
            words = " ".join(words.split()).rstrip(":")
            answered = interaction if interaction and interaction["response"] else None
            yield Finding(check["name"] if answered else "", words, failure["operation"], answered)


def shortfall_of(found: Finding, server: Examination) -> tuple[str, str, Exchange]:
    """Returns which requirement a finding belongs to, what the contract expects, and the exchange."""
    exchange = _exchange_of(found, server)
    answer = exchange.answer
    if answer is None:
        return "http.answers", "a whole answer", exchange
    requirement_id = REQUIREMENT_OF[found.check]
    succeeded = answer.status == 200
    reads = exchange.request.method == "GET"
    match found.check:
        case "content_type_conformance" if succeeded:
            requirement_id = "success.media-type"
        case "response_schema_conformance" if succeeded:
            requirement_id = SCHEMA_REQUIREMENT[exchange.request.path.rpartition("/")[2]]
        case "response_headers_conformance":
            requirement_id = BY_STATUS.get(answer.status, requirement_id)
        case "negative_data_rejection" if reads:
            requirement_id = "ids.invalid-in-path"
        case "positive_data_acceptance" if not reads:
            requirement_id = "ids.valid-in-batch"
        case _:
            pass
    return requirement_id, found.words, exchange


def _exchange_of(found: Finding, server: Examination) -> Exchange:
    base_url = server.wire.base_url
    if found.interaction is None:
        method, _, path = found.operation.partition(" ")
        return Exchange(base_url, Request(method, path, server.credentials), None, found.words)
    sent, came = found.interaction["request"], found.interaction["response"]
    authorization = ", ".join(_values(sent, "authorization")).replace(server.token, TOKEN_IN_SHELL)
    credentials = Credentials(b"", f'"Authorization: {authorization}"') if authorization else None
    headers = tuple(
        (name, value) for name in ("Content-Type", "Content-Encoding") for value in _values(sent, name.lower())
    )
    url = urlsplit(sent["uri"])
    path = url.path.removeprefix(urlsplit(base_url).path) + (url.query and f"?{url.query}")
    request = Request(sent["method"], path, credentials, headers, _bytes(sent.get("body")) or None)
    answer_headers = tuple((name.lower(), value) for name, values in came["headers"].items() for value in values)
    return Exchange(base_url, request, Answer(came["status_code"], answer_headers, _bytes(came.get("content"))))


def _values(message: dict[str, Any], name: str) -> list[str]:
    return [value for header, values in message["headers"].items() if header.lower() == name for value in values]


def _bytes(content: Any) -> bytes:
    return base64.b64decode(content["$base64"]) if content else b""
