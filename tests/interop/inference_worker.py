"""Stands in for a vLLM worker of a training framework: Gym's own RolloutTokenCapture over a dict."""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from nemo_gym.token_id_capture.adapters.vllm import VLLMCaptureAdapter
from nemo_gym.token_id_capture.staging.capture import RolloutTokenCapture
from nemo_gym.token_id_capture.staging.records import (
    CaptureAdmission,
    StagedCallBaseSnapshot,
    StagedCallRecord,
    StageResult,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

WEIGHT_VERSION = 7


def tokens_of(text: str) -> list[int]:
    return list(text.encode())


class InferenceWorker:
    """Answers chat completions, and stages the tokens of admitted calls in `staged`.

    What a completion says, and what goes wrong with it, is scripted: the next completion says what is first in `says`,
    or something of its own, and fails as the first in `fails` tells: "capture" (the sink refuses), "coordinates" (the
    answer carries none), "overflow" (vLLM's 400 for a prompt that is too long) or "" (it doesn't).
    """

    def __init__(self) -> None:
        self.staged: dict[str, StagedCallRecord] = {}
        self.says: deque[str] = deque()
        self.fails: deque[str] = deque()
        self.url = ""  # where it is served
        self.completions = 0
        # A completion waits until this is set, so that a test can do something while it is generated.
        self.proceed = asyncio.Event()
        self.proceed.set()
        self.generating = asyncio.Event()
        self._numbers = itertools.count()
        self._refuse_to_stage = False
        self._capture = RolloutTokenCapture(
            sink=self, weight_version_fn=lambda: WEIGHT_VERSION, adapter=VLLMCaptureAdapter()
        )
        self.app = Starlette(routes=[Route("/v1/chat/completions", self._chat_completions, methods=["POST"])])

    def stage(self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None) -> StageResult:
        """Gym's StagingSink."""
        if self._refuse_to_stage:
            return StageResult(ok=False, error="the data plane is full")
        self.staged[record.staging_key] = record
        return StageResult(ok=True, staging_key=record.staging_key)

    def fetch(self, staging_keys: list[str]) -> list[StagedCallBaseSnapshot]:
        """Gym's StagingSource."""
        fields = StagedCallBaseSnapshot.model_fields
        return [
            StagedCallBaseSnapshot(**{name: getattr(self.staged[key], name) for name in fields}) for key in staging_keys
        ]

    async def _chat_completions(self, request: Request) -> Response:
        payload = await request.json()
        fails = self.fails.popleft() if self.fails else ""
        self.generating.set()
        await self.proceed.wait()
        if fails == "overflow":
            return JSONResponse({"message": "maximum context length is 10 tokens", "code": 400}, status_code=400)
        self.completions += 1
        admission = None if "ng_capture" not in payload else CaptureAdmission.model_validate(payload["ng_capture"])
        prefix = [] if admission is None else self._prefix(admission)
        says = self.says.popleft() if self.says else f"answer {next(self._numbers)}"
        completion = _completion(payload["model"], prefix + tokens_of(_new_text(payload["messages"])), says)
        if admission is not None and fails != "coordinates":
            call = self._capture.begin_call(admission, prefix_token_ids=prefix or None)
            self._refuse_to_stage = fails == "capture"
            coordinates = self._capture.complete_call_from_response(call, completion)
            completion["ng_commit_coords"] = coordinates.model_dump(mode="json")
        return JSONResponse(completion)

    def _prefix(self, admission: CaptureAdmission) -> list[int]:
        return [token for key in admission.staging_chain for token in self.staged[key].token_ids_delta]


def _new_text(messages: list[dict[str, Any]]) -> str:
    """What a chat template would add to the tokens of the last answer."""
    last_answer = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    return "".join(f"<{message['role']}>{json.dumps(message['content'])}" for message in messages[last_answer + 1 :])


def _completion(model: str, prompt: list[int], says: str) -> dict[str, Any]:
    generated = [
        {"token": f"token_id:{token}", "logprob": -0.25, "bytes": None, "top_logprobs": []} for token in tokens_of(says)
    ]
    return {
        "id": f"chatcmpl-{len(prompt)}-{says.replace(' ', '-')}",
        "object": "chat.completion",
        "created": 1764450000,
        "model": model,
        "prompt_token_ids": prompt,
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": says},
                "logprobs": {"content": generated, "refusal": None},
            }
        ],
    }
