"""What a model call costs in a Gym model server: on Gym's own ledger, and on a SqliteLedger through the adapter.

For the 10th, the 100th and the 1000th call of a rollout it measures what a call waits for: that its parent is found
(`resolve`), and that it is recorded durably (`record`). In between the model generates, in which time the adapter
hashes the request ahead (`ahead`). A call on one ledger is followed by the same call on the other, in one process.

"Hashing" is what Gym's own functions take when each is called once: `resolve` needs the request's fingerprint and the
context's digest, `record` the fingerprint of request and response and the request's digest.

    python bench/gym_adapter.py [--folder WHERE] [--rollouts 20] [--profile]
"""

import argparse
import asyncio
import cProfile
import gc
import hashlib
import pstats
import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from nemo_gym.token_id_capture.fingerprint import assistant_fingerprint, conversation_digest
from nemo_gym.token_id_capture.lineage import FileLineageStore
from nemo_gym.token_id_capture.staging.records import CallRecord, CaptureLedgerCommit
from rollout_control_server.gym import GymCaptureLedger

Item = dict[str, Any]

CALLS = (10, 100, 1000)


def digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


class Conversation:
    """A coding agent's: each turn is a tool call of 200 bytes, and its result of 600."""

    def __init__(self, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self.items: list[Item] = [{"role": "user", "content": f"Fix the bug in {rollout_id}. " * 20}]
        self.chain: tuple[str, ...] = ()
        self.parent: CallRecord | None = None

    def call(self, number: int) -> CaptureLedgerCommit:
        """The commit of the next call, whose request is what `items` holds."""
        call_id = digest(self.rollout_id, number)[:32]
        key = f"{self.rollout_id}/{call_id}"
        prev_len = 0 if self.parent is None else self.parent.cum_len
        record = CallRecord(
            model_call_id=call_id,
            parent_call_id=None if self.parent is None else self.parent.model_call_id,
            prev_len=prev_len,
            delta_len=220,
            cum_len=prev_len + 220,
            weight_version=3,
            digest=digest(call_id, "digest"),
            extras_digest=digest("none"),
            staging_key=key,
            mode="text" if self.parent is None else "token_in",
            chain_hash=digest(call_id, "chain"),
            cumulative_hash=digest(call_id, "cumulative"),
            response_id=f"chatcmpl-{call_id}",
            admitted_at=1764450000.0 + number,
            output_fingerprint=digest(call_id, "output"),
            continuation_fingerprint=digest(call_id, "continuation"),
            fingerprint_version=2,
        )
        self.parent, self.chain = record, (*self.chain, key)
        function = {"name": "shell", "arguments": '{"command": "%s"}' % (f"sed -n {number}p file " * 8)}
        response = [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            }
        ]
        return CaptureLedgerCommit(
            rollout_id=self.rollout_id,
            record=record,
            staging_chain=self.chain,
            request_items=list(self.items),
            response_items=response,
        )

    def go_on(self, commit: CaptureLedgerCommit) -> None:
        result = f"line {len(self.items)} of the file\n" * 24
        self.items += [
            *commit.response_items,
            {"role": "tool", "tool_call_id": commit.record.model_call_id, "content": result},
        ]


async def timed(operation: Awaitable[Any]) -> float:
    started = time.perf_counter()
    await operation
    return time.perf_counter() - started


def hashing_s(commit: CaptureLedgerCommit, context_len: int) -> tuple[float, float]:
    """Seconds that Gym's functions need for the call's resolve, and for its record, in the adapter."""
    started = time.perf_counter()
    assistant_fingerprint(commit.request_items)
    conversation_digest(commit.request_items[:context_len])
    between = time.perf_counter()
    assistant_fingerprint([*commit.request_items, *commit.response_items])
    conversation_digest(commit.request_items)
    return between - started, time.perf_counter() - between


Samples = dict[tuple[int, str, str], list[float]]


async def converse(ledgers: dict[str, Any], rollout_id: str, calls: int, around: int, samples: Samples) -> None:
    """One rollout on each ledger; samples are the calls within `around` of those asked for."""
    conversation = Conversation(rollout_id)
    context_len = 0
    for number in range(1, calls + 1):
        commit = conversation.call(number)
        sampled = [asked for asked in CALLS if asked - around < number <= asked]
        if sampled:
            resolve_s, record_s = hashing_s(commit, context_len)
            samples.setdefault((sampled[0], "resolve", "hashing"), []).append(resolve_s)
            samples.setdefault((sampled[0], "record", "hashing"), []).append(record_s)
        for name, ledger in ledgers.items():
            resolve = await timed(ledger.resolve(rollout_id, commit.request_items))
            ahead = await timed(asyncio.sleep(0))
            record = await timed(ledger.record(commit))
            for operation, took_s in (("resolve", resolve), ("ahead", ahead), ("record", record)):
                if sampled:
                    samples.setdefault((sampled[0], operation, name), []).append(took_s)
        context_len = len(conversation.items)
        conversation.go_on(commit)


def quarter_ms(samples: list[float]) -> float:
    """The lower quartile: on a machine that others use, what is slower than that is mostly theirs."""
    return statistics.quantiles(samples, n=4)[0] * 1000


async def compare(folder: Path, rollouts: int) -> None:
    ledgers = {
        "Gym's store": FileLineageStore(folder / "gym"),
        "adapter": GymCaptureLedger(f"sqlite:///{folder}/ledger.sqlite"),
    }
    samples: Samples = {}
    await converse(ledgers, "warm-up", 20, 0, {})
    gc.disable()
    for rollout in range(rollouts):
        await converse(ledgers, f"train-{rollout:04}", 100, 10, samples)
    await converse(ledgers, "train-long", 1000, 50, samples)
    print("milliseconds, of the faster quarter of the calls up to it (10 of each rollout, or 50 before the 1000th)\n")
    print(f"{'call':>6} {'operation':<9} {'gym':>12} {'adapter':>9} {'faster':>8} {'hashing':>9}")
    for call in CALLS:
        for operation in ("resolve", "ahead", "record"):
            gyms, ours = (quarter_ms(samples[call, operation, name]) for name in ledgers)
            faster = f"{gyms / ours:.1f}x" if operation != "ahead" else ""
            hashing = quarter_ms(samples.get((call, operation, "hashing"), [0, 0]))
            print(f"{call:>6} {operation:<9} {gyms:>12.3f} {ours:>9.3f} {faster:>8} {hashing:>9.3f}")
    for ledger in ledgers.values():
        await ledger.close()


async def profile(folder: Path) -> None:
    """Shows what grows between a rollout's first hundred calls and its last, inside the adapter."""
    ledger = GymCaptureLedger(f"sqlite:///{folder}/profiled.sqlite")
    conversation = Conversation("profiled")
    context: list[tuple[CaptureLedgerCommit, list[Item]]] = []
    for number in range(1, 1001):
        commit = conversation.call(number)
        context.append((commit, list(conversation.items)))
        conversation.go_on(commit)
    tables: list[dict[str, float]] = []
    for start in (0, 900):
        if start:
            for commit, _items in context[100:900]:
                await ledger.record(commit)
        profiler = cProfile.Profile()
        profiler.enable()
        for commit, items in context[start : start + 100]:
            await ledger.resolve("profiled", items)
            await asyncio.sleep(0)
            await ledger.record(commit)
        profiler.disable()
        tables.append(_by_place(pstats.Stats(profiler)))
    await ledger.close()
    print("\nmicroseconds of the event loop's thread per call, by where they are spent\n")
    print(f"{'calls 1-100':>12} {'901-1000':>9} {'growth':>8}")
    growth = {place: tables[1].get(place, 0) - tables[0].get(place, 0) for place in {*tables[0], *tables[1]}}
    for place in sorted(growth, key=lambda place: -growth[place]):
        print(f"{tables[0].get(place, 0):>12.0f} {tables[1].get(place, 0):>9.0f} {growth[place]:>8.0f}  {place}")


def _by_place(stats: pstats.Stats) -> dict[str, float]:
    """Time per call by place: what a builtin takes counts where it is called."""
    places: dict[str, float] = {}
    for (file, _line, name), (_calls, _primitive, own_s, _total, callers) in stats.stats.items():
        shares = {place_of(caller): share[2] for caller, share in callers.items()} if file == "~" else {}
        if not shares:
            shares = {place_of((file, _line, name)): own_s}
        for place, share_s in shares.items():
            places[place] = places.get(place, 0) + share_s * 1e6 / 100
    return places


def place_of(function: tuple[str, int, str]) -> str:
    file = function[0]
    for part, place in {
        "nemo_gym/token_id_capture/fingerprint": "Gym's hashing (fingerprint.py)",
        "/json/": "Gym's hashing (fingerprint.py)",
        "rollout_control_server/gym/": "the adapter",
        "rollout_control_server/": "the ledger",
        "asyncio": "asyncio: waiting for the threads of the ledger",
        "selectors": "asyncio: waiting for the threads of the ledger",
    }.items():
        if part in file:
            return place
    return "everything else"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; a temporary one if not given")
    parser.add_argument("--rollouts", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        asyncio.run(compare(Path(folder), options.rollouts))
        if options.profile:
            asyncio.run(profile(Path(folder)))


if __name__ == "__main__":
    main()
