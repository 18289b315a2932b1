"""What schemathesis loads: hooks that keep removals to ids of the check's own, and write down what is found.

The process that starts schemathesis names the file to write to, and the prefix of the ids, in environment variables.
"""

import base64
import json
import os
from typing import Any, Final

import requests
import schemathesis
from rollout_control_spec import validate_rollout_id
from schemathesis.checks import CheckResult
from schemathesis.core.transport import Response

from rollout_control_server.check.fuzzing import FINDINGS_VARIABLE, PREFIX_VARIABLE

LONGEST_ID: Final = 255
PREFIX: Final = os.environ[PREFIX_VARIABLE]


def _write(line: dict[str, Any]) -> None:
    with open(os.environ[FINDINGS_VARIABLE], "a", encoding="utf-8") as findings:
        findings.write(json.dumps(line) + "\n")


def _is_valid(rollout_id: str) -> bool:
    try:
        validate_rollout_id(rollout_id)
    except ValueError:
        return False
    return True


def _of_our_own(value: Any) -> Any:
    """Returns a body with every valid rollout id in it turned into one of the check's own; invalid ones stay."""
    if isinstance(value, list):
        return [_of_our_own(item) for item in value]
    if isinstance(value, dict):
        return {name: _of_our_own(item) for name, item in value.items()}
    if isinstance(value, str) and _is_valid(value) and not value.startswith(PREFIX):
        return f"{PREFIX}{value}"[:LONGEST_ID]
    return value


def _ids_in(value: Any) -> list[str]:
    if isinstance(value, list | dict):
        return [found for item in (value.values() if isinstance(value, dict) else value) for found in _ids_in(item)]
    return [value] if isinstance(value, str) and value.startswith(PREFIX) else []


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]) -> None:
    """Keeps a removal to ids of the check's own."""
    if case.method.upper() == "GET":
        _write({"sent": 1})
        return
    case.body = _of_our_own(case.body)
    _write({"sent": 1, "touched": _ids_in(case.body)})


@schemathesis.hook
def after_validate(
    context: schemathesis.HookContext, case: schemathesis.Case[Any], response: Response, results: list[CheckResult]
) -> None:
    """Writes down what a check found."""
    for result in results:
        if result.failure is not None:
            _write(
                {
                    "check": result.name,
                    "title": result.failure.title,
                    "message": result.failure.message,
                    "status": response.status_code,
                    "headers": [[name, value] for name, values in response.headers.items() for value in values],
                    "content": base64.b64encode(response.content).decode(),
                    **_request_of(response.request),
                }
            )


@schemathesis.hook
def after_network_error(
    context: schemathesis.HookContext, case: schemathesis.Case[Any], request: requests.PreparedRequest
) -> None:
    """Writes down that no answer came."""
    _write({"check": "network", "title": "no whole answer came", "message": "", "status": 0, **_request_of(request)})


def _request_of(request: requests.PreparedRequest) -> dict[str, Any]:
    body = request.body if isinstance(request.body, str | bytes) else b""
    return {
        "method": request.method,
        "path": request.path_url,
        "request_headers": dict(request.headers),
        "body": base64.b64encode(body.encode() if isinstance(body, str) else body).decode(),
    }
