"""Retiring 4096 rollouts of 10 calls over HTTP, and what somebody who reads another rollout meanwhile notices of it.

The times of reading are those of one connection that asks again as soon as it has an answer; they are not corrected for
coordinated omission.
"""

import http.client
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from rollout_control_server.ledger.sqlite.connections import connect
from rollout_control_spec import CONTROL_ROUTE_PREFIX

from bench.http import prepare
from bench.results import PartReport, Result, at_most
from bench.rounds import WrongAnswerError, alternate
from bench.rows import check_manifest, sample_rollouts
from bench.servers import AUTHORIZATION, Kind, ServerProcess, manifest_path, serving

BATCH, CALLS, READS = 4096, 10, 2000
OTHER = "other-00000"
SLOW_RETIRE = (
    "12 to 17 ms of CPU, of which 10 are SQLite's: 4096 searches by id for each of the three statements, in one "
    "transaction; the rest is waiting for a processor and for the disk"
)
NOTICED = (
    "the purge's thread works a twentieth of the time, in steps of 1 ms, on the same two cores as server, reader and "
    "all else that ran; where it had the interpreter or the processor the reader waited"
)


def run(folder: Path) -> PartReport:
    batches = [sample_rollouts(name, BATCH, CALLS) for name in ("first", "second")]
    others = sample_rollouts("other", 1, CALLS)
    prepared = folder / "prepared"
    prepared.mkdir()
    prepare(prepared, batches[0] | batches[1] | others)
    noticed: dict[Kind, list[float]] = {"ours": [], "peer": []}

    def measure(kind: Kind) -> float:
        here = Path(tempfile.mkdtemp(dir=folder))
        if kind == "ours":
            shutil.copy(prepared / "ours.sqlite", here)
        else:
            shutil.copytree(prepared / "peer", here / "peer")
        with serving(kind, here) as server:
            retire_ms = _retire_ms(server, list(batches[0]))
            _wait_until(lambda: _is_purged(kind, here))
            with closing(_Reading(server)) as reading:
                check_manifest(others, OTHER, reading.expected)
                idle = _p99([reading.ms() for _ in range(READS)])
                retiring = threading.Thread(target=_retire_ms, args=(server, list(batches[1])))
                retiring.start()
                busy = [reading.ms() for _ in range(READS)]
                retiring.join()
            _wait_until(lambda: _is_purged(kind, here))
            noticed[kind].append(_p99(busy) / idle)
        shutil.rmtree(here)
        return retire_ms

    rounds = alternate({"ours": lambda: measure("ours"), "peer": lambda: measure("peer")}, rounds=3, warm_up=False)
    notices = [{"ours": ours, "peer": peer} for ours, peer in zip(noticed["ours"], noticed["peer"], strict=True)]
    read = f"GET of another rollout during a retire of {BATCH} and its purge, p99 of {READS}, against idle"
    return PartReport(
        [
            Result(
                f"retire {BATCH} rollouts of {CALLS} calls",
                "ms",
                rounds,
                [at_most(25, "25 ms")],
                missed_because=SLOW_RETIRE,
            ),
            Result(read, "x", notices, [at_most(2, "2x idle")], missed_because=NOTICED),
        ]
    )


class _Reading:
    """One connection that reads one rollout's manifest again and again."""

    def __init__(self, server: ServerProcess) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.port)
        self.expected = self._get()

    def ms(self) -> float:
        begun = time.perf_counter()
        answer = self._get()
        ended = time.perf_counter()
        if answer != self.expected:
            raise WrongAnswerError("the manifest of another rollout changed while some were retired")
        return 1000 * (ended - begun)

    def close(self) -> None:
        self._connection.close()

    def _get(self) -> bytes:
        self._connection.request("GET", manifest_path(OTHER), headers={"Authorization": AUTHORIZATION})
        return self._connection.getresponse().read()


def _retire_ms(server: ServerProcess, rollout_ids: Sequence[str]) -> float:
    body = json.dumps({"rollout_ids": rollout_ids})
    headers = {"Authorization": AUTHORIZATION, "Content-Type": "application/json"}
    with closing(http.client.HTTPConnection(server.host, server.port)) as connection:
        connection.connect()
        begun = time.perf_counter()
        connection.request("POST", f"{CONTROL_ROUTE_PREFIX}/rollouts/retire", body, headers)
        answer = connection.getresponse().read()
        ended = time.perf_counter()
    if json.loads(answer) != {"removed": list(rollout_ids), "absent": []}:
        raise WrongAnswerError(f"retire did not remove what it should: {answer[:200]!r}")
    return 1000 * (ended - begun)


def _is_purged(kind: Kind, folder: Path) -> bool:
    """Tells whether the rows are gone from the disk; the peer's are when its retire has answered."""
    if kind == "peer":
        return True
    with closing(connect(folder / "ours.sqlite")) as connection:
        return not connection.execute("SELECT 1 FROM purge_queue LIMIT 1").fetchall()


def _wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise WrongAnswerError("retired rows were not removed from the disk")
        time.sleep(0.05)


def _p99(milliseconds: list[float]) -> float:
    return statistics.quantiles(milliseconds, n=100)[98]
