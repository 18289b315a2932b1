"""What every operation says of a SqliteLedger's file that was damaged, beside what it says of the whole one."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path

import msgspec
from rollout_control_server.errors import LedgerConflictError, LedgerCorruptError, RolloutRetiredError
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.conformance.steps import record_all
from rollout_control_server.records import ParentLookup
from rollout_control_server.samples import changed, sample_commit, sample_conversation

__all__ = ["DAMAGED", "Answers", "answers", "fill", "wrong_answers"]

ROLLOUT_IDS = [f"r{index:03}" for index in range(200)]
CALLS = 5
CONVERSATIONS = {rollout_id: sample_conversation(rollout_id, CALLS) for rollout_id in ROLLOUT_IDS}
DAMAGED = "LedgerCorruptError"

Answers = dict[str, object]


def fill(path: Path) -> None:
    """Makes a ledger of 200 rollouts that nobody has open: records, failures, fences and lookups that several share."""

    async def record() -> None:
        async with SqliteLedger(path) as ledger:
            await asyncio.gather(*(record_all(ledger, commits) for commits in CONVERSATIONS.values()))
            for rollout_id in ROLLOUT_IDS[::4]:
                await ledger.record_failure(rollout_id, "failed", "worker_capture_failed")
            shared = ParentLookup("shared", 1, "digest")
            for call_id in "ab":
                await ledger.record(msgspec.structs.replace(sample_commit("r001", call_id), lookup=shared))
            await ledger.retire([f"fence-{index:03}" for index in range(300)])

    asyncio.run(record())


def answers(path: Path) -> Answers:
    """Returns what each operation answers on the file, by a name of the operation; DAMAGED for a LedgerCorruptError.

    Any other error is raised. Readings come first. Each write has rollouts of its own, so that what it answers does not
    depend on whether another met the damage.
    """
    found: Answers = {}
    try:
        asyncio.run(_ask_everything(path, found))
    except LedgerCorruptError:
        found["open"] = DAMAGED
    return found


def wrong_answers(found: Mapping[str, object], expected: Mapping[str, object]) -> Answers:
    """Returns the answers that are neither right nor say that the ledger is damaged."""
    return {name: answer for name, answer in found.items() if answer not in (expected[name], DAMAGED)}


async def _ask_everything(path: Path, found: Answers) -> None:
    async def ask(name: str, answer: Awaitable[object]) -> None:
        try:
            found[name] = await asyncio.wait_for(answer, 30)
        except LedgerCorruptError:
            found[name] = DAMAGED
        except (LedgerConflictError, RolloutRetiredError) as error:
            found[name] = type(error)

    async with SqliteLedger(path) as ledger:
        found["open"] = "opened"
        await ask("verify", ledger.verify())
        await ask("check_ready", ledger.check_ready())
        await ask("summary", ledger.summary())
        await ask("rollouts", ledger.rollouts())
        await ask("failing rollouts", ledger.rollouts(has_failures=True))
        await ask("idle rollouts", ledger.rollouts(idle_for_s=0, prefix="r1"))
        await ask("manifests", ledger.manifests(ROLLOUT_IDS, 10**9))
        await ask("count fences", ledger.forget_fences(timedelta.max))
        for rollout_id, commits in CONVERSATIONS.items():
            await ask(f"manifest {rollout_id}", ledger.manifest(rollout_id))
            await ask(f"has_rows {rollout_id}", ledger.has_rows(rollout_id))
            await ask(f"export {rollout_id}", ledger.export(rollout_id))
            for commit in (commits[2], commits[-1]):
                assert commit.lookup is not None
                name = f"find_parent {rollout_id} {commit.record.model_call_id}"
                await ask(name, ledger.find_parent(rollout_id, commit.lookup.fingerprint, 2))
        await ask("find_parent shared", ledger.find_parent("r001", "shared", 2))
        await ask("manifest nobody", ledger.manifest("nobody"))
        await ask("record fenced", ledger.record(sample_commit("fence-007", "c")))
        await ask("record new", ledger.record(sample_commit("new", "c")))
        await ask("forget fences", ledger.forget_fences(timedelta(0)))
        # Each on rollouts of its own, an eighth of all.
        operations: list[Callable[[str], Awaitable[object]]] = [
            lambda rollout_id: ledger.record(CONVERSATIONS[rollout_id][1]),
            lambda rollout_id: ledger.record(sample_conversation(rollout_id, CALLS + 1)[-1]),
            lambda rollout_id: ledger.record_failure(rollout_id, "another", "reason"),
            lambda rollout_id: ledger.record_failure(rollout_id, "failed", "worker_capture_failed"),
            lambda rollout_id: ledger.retire([rollout_id]),
            lambda rollout_id: ledger.delete([rollout_id]),
            lambda rollout_id: ledger.retire_idle([rollout_id], 0),
            lambda rollout_id: ledger.record(changed(CONVERSATIONS[rollout_id][1], weight_version=99)),
        ]
        for number, operation in enumerate(operations):
            for rollout_id in ROLLOUT_IDS[number :: len(operations)][:8]:
                await ask(f"write {number} {rollout_id}", operation(rollout_id))
    async with SqliteLedger(path) as ledger:
        for rollout_id in ROLLOUT_IDS:
            name = f"manifest {rollout_id} in the end"
            if not any(answer == DAMAGED for write, answer in found.items() if write.endswith(rollout_id)):
                await ask(name, ledger.manifest(rollout_id))
