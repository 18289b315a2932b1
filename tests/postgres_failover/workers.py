"""Processes that write a ledger, and what they noted of it: every acknowledgement, as a line of JSON."""

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from rollout_control_server import RolloutRetiredError
from rollout_control_server.errors import LedgerError
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.records import RolloutManifest
from rollout_control_server.samples import sample_commit

CALLS = 12
"""Of each rollout; then every second rollout is retired."""
TASKS = 4
"""Of each writer."""


class Note(msgspec.Struct):
    """What an operation came to: `record`, `retire` or `read` was acknowledged, or `error`."""

    at: float
    kind: str
    rollout_id: str
    call_id: str = ""
    detail: str = ""


@dataclass
class Counts:
    """What became of a scenario's operations."""

    acknowledged: int = 0
    missing: int = 0
    twice: int = 0
    fences_gone: int = 0
    wrong_manifests: int = 0
    errors: int = 0
    longest_gap_s: float = 0.0
    most_connections: int = 0
    remarks: list[str] = field(default_factory=list)


def write(url: str, notes: str, name: str, stop: Any) -> None:
    """Writes and reads until the event is set."""
    asyncio.run(_write(url, Path(notes), name, stop))


async def _write(url: str, notes: Path, name: str, stop: Any) -> None:
    encoder = msgspec.json.Encoder()
    with notes.open("ab", buffering=0) as file:

        def note(kind: str, rollout_id: str, call_id: str = "", detail: str = "") -> None:
            file.write(encoder.encode(Note(time.time(), kind, rollout_id, call_id, detail)) + b"\n")

        async def attempt(kind: str, rollout_id: str, call_id: str, operation: Any) -> Any:
            """Repeats an operation until it is acknowledged, as Gym's adapter and a trainer do."""
            while not stop.is_set():
                try:
                    outcome = await operation()
                except LedgerError as error:
                    note("error", rollout_id, call_id, f"{type(error).__name__}: {error}")
                else:
                    note(kind, rollout_id, call_id)
                    return outcome
            return None

        async def task(number: int) -> None:
            turn = 0
            while not stop.is_set():
                rollout_id = f"{name}-{number}-{turn}"
                for call in range(CALLS):
                    commit = sample_commit(rollout_id, f"c{call}")
                    await attempt("record", rollout_id, f"c{call}", partial(ledger.record, commit))
                manifest = await attempt("read", rollout_id, "", partial(ledger.manifest, rollout_id))
                if manifest is not None and calls_of(manifest) != [f"c{call}" for call in range(CALLS)]:
                    note("wrong", rollout_id)
                if turn % 2:
                    await attempt("retire", rollout_id, "", partial(ledger.retire, [rollout_id]))
                turn += 1

        async with open_ledger(url) as ledger:
            await asyncio.gather(*(task(number) for number in range(TASKS)))


def calls_of(manifest: bytes) -> list[str]:
    return [record.model_call_id for record in msgspec.json.decode(manifest, type=RolloutManifest).records]


@contextmanager
def writers(url: str, directory: Path, name: str, count: int) -> Iterator[list[Path]]:
    """Runs writer processes; yields where they write their notes."""
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    notes = [directory / f"{name}-{number}" for number in range(count)]
    processes = [
        spawn.Process(target=write, args=(url, str(path), f"{name}-{number}", stop))
        for number, path in enumerate(notes)
    ]
    for path, process in zip(notes, processes, strict=True):
        path.touch()
        process.start()
    try:
        yield notes
    finally:
        stop.set()
        for process in processes:
            process.join()
            if process.exitcode:
                raise RuntimeError(f"a writer ended with {process.exitcode}")


def read_notes(notes: list[Path]) -> list[Note]:
    decoder = msgspec.json.Decoder(Note)
    found = [decoder.decode(line) for path in notes for line in path.read_bytes().splitlines(keepends=True)
             if line.endswith(b"\n")]  # fmt: skip
    return sorted(found, key=lambda note: note.at)


def acknowledgements(notes: list[Path]) -> int:
    """Returns how many writes were acknowledged."""
    return sum(note.kind in ("record", "retire") for note in read_notes(notes))


async def judge(ledger: CaptureLedger, notes: list[Path], counts: Counts) -> None:
    """Compares what was acknowledged with what there is."""
    found = read_notes(notes)
    retired = {note.rollout_id for note in found if note.kind == "retire"}
    recorded: dict[str, set[str]] = {}
    for note in found:
        if note.kind == "record":
            recorded.setdefault(note.rollout_id, set()).add(note.call_id)
    tried = {note.rollout_id for note in found if note.kind == "read"}
    for rollout_id, calls in recorded.items():
        try:
            there = Counter(calls_of(await ledger.manifest(rollout_id)))
        except RolloutRetiredError:
            # A retirement whose acknowledgement was lost may have happened.
            counts.missing += 0 if rollout_id in tried else len(calls)
            continue
        if rollout_id in retired:
            counts.fences_gone += 1
            continue
        counts.missing += len(calls - there.keys())
        counts.twice += sum(number - 1 for number in there.values())
    for rollout_id in retired - recorded.keys():
        try:
            await ledger.manifest(rollout_id)
        except RolloutRetiredError:
            continue
        counts.fences_gone += 1
    writes = [note.at for note in found if note.kind in ("record", "retire")]
    counts.acknowledged += len(writes)
    counts.wrong_manifests += sum(note.kind == "wrong" for note in found)
    counts.errors += sum(note.kind == "error" for note in found)
    gaps = [after - before for before, after in pairwise(writes)]
    counts.longest_gap_s = max(counts.longest_gap_s, *gaps, 0.0)
