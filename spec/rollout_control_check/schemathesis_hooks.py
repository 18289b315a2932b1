"""What schemathesis loads: a hook that keeps removals to ids of the check's own, and writes down which.

The process that starts schemathesis names the file to write to, and the prefix of the ids, in environment variables.
"""

import json
import os
from typing import Any, Final

import schemathesis
from rollout_control_spec import MAX_ROLLOUT_ID_LENGTH, validate_rollout_id

from rollout_control_check.fuzzing import PREFIX_VARIABLE, SENT_VARIABLE

PREFIX: Final = os.environ[PREFIX_VARIABLE]


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
        return f"{PREFIX}{value}"[:MAX_ROLLOUT_ID_LENGTH]
    return value


def _ids_in(value: Any) -> list[str]:
    if isinstance(value, list | dict):
        return [found for item in (value.values() if isinstance(value, dict) else value) for found in _ids_in(item)]
    return [value] if isinstance(value, str) and value.startswith(PREFIX) else []


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]) -> None:
    """Keeps a removal to ids of the check's own."""
    touched = []
    if case.method.upper() != "GET":
        case.body = _of_our_own(case.body)
        touched = _ids_in(case.body)
    with open(os.environ[SENT_VARIABLE], "a", encoding="utf-8") as sent:
        sent.write(json.dumps({"touched": touched}) + "\n")
