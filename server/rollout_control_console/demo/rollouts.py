"""The demo's made-up rollouts. What is in one follows from its number, so both processes know it."""

import random
from dataclasses import dataclass
from typing import Final

from rollout_control_server.records import CallFailure, CaptureCommit, RolloutManifest
from rollout_control_server.samples import sample_conversation

__all__ = ["DemoRollout", "demo_rollout"]

FAILURE_REASONS: Final = ("worker_capture_failed", "unresolved_parent", "request_finished_without_staged_coordinates")


@dataclass(frozen=True)
class DemoRollout:
    """A rollout as the model server writes it: its commits in order, and its failures."""

    rollout_id: str
    commits: list[CaptureCommit]
    failures: list[CallFailure]

    @property
    def manifest(self) -> RolloutManifest:
        """The manifest that the trainer should read."""
        return RolloutManifest(
            rollout_id=self.rollout_id, records=[commit.record for commit in self.commits], failures=self.failures
        )


def demo_rollout(run: str, number: int) -> DemoRollout:
    """Returns one rollout of a run: an agent's conversation, sometimes with a retry, sometimes with a failed capture.

    Args:
        run: The run's name, which its rollout ids begin with.
        number: The number of the rollout in its run.
    """
    rollout_id = f"{run}-{number:04d}"
    chance = random.Random(f"{run}/{number}")
    calls = chance.randint(1, 20)
    branch_at = chance.randrange(2, calls) if calls > 2 and chance.random() < 0.3 else None
    commits = sample_conversation(rollout_id, calls, branch_at=branch_at)
    failures = [
        CallFailure(model_call_id=f"failed-{index}", reason=chance.choice(FAILURE_REASONS))
        for index in range(chance.choices([0, 1, 2], [85, 12, 3])[0])
    ]
    return DemoRollout(rollout_id, commits, failures)
