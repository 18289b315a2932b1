"""Recording through the adapter for Gym, where both sides pay for Gym's hashing of the conversation."""

from pathlib import Path

from rollout_control_server.gym import GymCaptureLedger

from bench.record import CALLS, Recording, rows_per_s
from bench.results import PartReport, Result, times_better
from bench.rounds import alternate
from bench.rows import check_manifest, sample_rollouts

TASKS = 256
WHY_MISSED = (
    "cProfile shows half of our CPU in Gym's own fingerprint and digest of the conversation, for which both sides pay "
    "the same: 100 of about 190 us for a row. In Gym, where a call is resolved before it is recorded, the adapter "
    "hashes while the model generates; here nothing is generated, so it hashes when it records"
)


def run(folder: Path) -> PartReport:
    recording = RecordingThroughGym(folder, sample_rollouts("r", TASKS, CALLS), TASKS)
    rounds = alternate({side: recording.measures()[side] for side in ("ours", "peer")}, rounds=5)
    work = f"record through the adapter for Gym, {TASKS} tasks, each rollout of {CALLS} calls"
    return PartReport([Result(work, "/s", rounds, [times_better(2.5)], missed_because=WHY_MISSED)])


class RecordingThroughGym(Recording):
    async def _ours(self) -> float:
        ledger = GymCaptureLedger(f"sqlite:///{self.new_folder()}/ledger.sqlite")
        try:
            rate = await rows_per_s(self._gym_commits, ledger.record, self._tasks)
            for rollout_id in self._rollouts:
                check_manifest(self._rollouts, rollout_id, await ledger.manifest(rollout_id))
        finally:
            await ledger.close()
        return rate
