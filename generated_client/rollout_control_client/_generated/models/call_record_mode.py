# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

from typing import Literal

CallRecordMode = Literal["text", "token_in"]

CALL_RECORD_MODE_VALUES: set[CallRecordMode] = {
    "text",
    "token_in",
}


def check_call_record_mode(value: str) -> CallRecordMode:
    if value in CALL_RECORD_MODE_VALUES:
        return value
    raise TypeError(f"Unexpected value {value!r}. Expected one of {CALL_RECORD_MODE_VALUES!r}")
