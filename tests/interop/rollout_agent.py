"""An agent in a rollout, as a model server hears it."""

from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Agent:
    """Converses with a policy behind one or more workers of a model server, which it asks in turn."""

    workers: list[str]
    rollout_id: str
    http: httpx.AsyncClient
    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0

    async def send(self, *, stream: bool = False) -> httpx.Response:
        """Sends the conversation as it is, as the first attempt and each retry of a turn do."""
        worker = self.workers[self.asked % len(self.workers)]
        self.asked += 1
        return await self.http.post(
            f"{worker}/ng-rollout/{self.rollout_id}/training-token-capture/v1/chat/completions",
            json={"model": "policy", "messages": self.messages, "stream": stream},
        )

    async def turn(self, says: str) -> dict[str, Any]:
        """Adds a user's message, and the policy's answer to it."""
        self.messages.append({"role": "user", "content": says})
        answer = await self.send()
        assert answer.status_code == 200, answer.text
        self.hear(answer.json())
        return self.answers[-1]

    def hear(self, completion: dict[str, Any]) -> None:
        self.answers.append(completion)
        self.messages.append({"role": "assistant", "content": completion["choices"][0]["message"]["content"]})
