"""Reading over HTTP: manifests of 1 to 1000 calls, over 1 to 128 connections, asked for by wrk."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import httpx
from rollout_control_server import open_ledger

from bench.results import Curve, PartReport, Result, share_of_limit, times_better
from bench.rounds import alternate
from bench.rows import Rollouts, check_manifest, fill_ours, fill_peer, sample_rollouts
from bench.servers import AUTHORIZATION, Kind, ServerProcess, manifest_path, serving
from bench.wrk import Load, load, require_wrk

ROLLOUTS_OF = {1: 1000, 10: 1000, 100: 100, 1000: 4}
"""How many rollouts there are, by their number of calls."""

GOALS = {
    1: [times_better(4)],
    10: [times_better(4)],
    100: [times_better(10), share_of_limit(0.5, "half of the limit")],
    1000: [times_better(18), share_of_limit(0.5, "half of the limit")],
}
LIMIT = "a bare ASGI application that returns the same bytes"
SHORT = (
    "of about 75 us of CPU, 32 are the HTTP server's, which the bare application takes too; the peer's figure "
    "depends on how its threads share two cores with the load generator"
)
LONG = (
    "perf shows of a request's time: 12% in the preads of SQLite's pages, 15% in SQLite and in copying what it joined, "
    "30% in copying the answer into the socket, which the bare application does too, 15% in waking the load generator, "
    "which waits for ours and never for the bare application; the rest is Python, half of it uvicorn. A manifest of "
    "one call takes twice the time of the bare application's 100 already: this is missed however fast rows are read"
)
WHY_MISSED = {1: SHORT, 10: SHORT, 100: LONG, 1000: LONG}


def run(folder: Path) -> PartReport:
    require_wrk()
    rollouts = {calls: sample_rollouts(f"of-{calls}", count, calls) for calls, count in ROLLOUTS_OF.items()}
    prepare(folder, {rollout_id: commits for some in rollouts.values() for rollout_id, commits in some.items()})
    results: list[Result] = []
    by_calls: dict[str, list[tuple[float, float]]] = {kind: [] for kind in get_args(Kind)}
    by_connections: dict[str, list[tuple[float, float]]] = {kind: [] for kind in get_args(Kind)}
    with all_serving(folder) as servers:
        asks = {calls: Asking(servers, some, folder) for calls, some in rollouts.items()}
        for calls, asking in asks.items():
            rounds = asking.rates(connections=32, rounds=5)
            work = f"GET manifest, {calls} {'call' if calls == 1 else 'calls'}, 32 connections"
            results.append(Result(work, "/s", rounds, GOALS[calls], LIMIT, WHY_MISSED[calls]))
            _add(by_calls, calls, rounds)
        rounds = asks[100].p50s(rounds=5)
        results.append(
            Result(
                "p50 of GET manifest, 100 calls, one connection", "ms", rounds, [times_better(4, "a quarter")], LIMIT
            )
        )
        for connections in (1, 4, 16, 64, 256):
            _add(by_connections, connections, asks[10].rates(connections=connections, rounds=1))
        for asking in asks.values():
            asking.check(every=10)
    return PartReport(
        results,
        [
            Curve("read-by-calls", "GET manifest, 32 connections", "calls of the rollout", "requests/s", by_calls),
            Curve("read-by-connections", "GET manifest, 10 calls", "connections", "requests/s", by_connections),
            Curve(
                "read-by-rollouts",
                "GET manifest, 10 calls, 32 connections",
                "rollouts in the ledger, each asked for in turn",
                "requests/s",
                _rates_by_rollouts(folder),
            ),
        ],
    )


def _rates_by_rollouts(folder: Path) -> dict[str, list[tuple[float, float]]]:
    by_rollouts: dict[str, list[tuple[float, float]]] = {kind: [] for kind in get_args(Kind)}
    for count in (100, 1000, 4000):
        here = folder / f"{count}"
        here.mkdir()
        rollouts = sample_rollouts("r", count, 10)
        prepare(here, rollouts)
        with all_serving(here) as servers:
            _add(by_rollouts, count, Asking(servers, rollouts, here).rates(connections=32, rounds=1))
    return by_rollouts


def prepare(folder: Path, rollouts: Rollouts) -> None:
    """Gives both sides the same rows."""

    async def ours() -> None:
        async with open_ledger(f"sqlite:///{folder}/ours.sqlite") as ledger:
            await fill_ours(ledger, rollouts)

    asyncio.run(ours())
    fill_peer(folder / "peer", rollouts)
    (folder / "ids").write_text("\n".join(rollouts))


@contextmanager
def all_serving(folder: Path) -> Iterator[dict[Kind, ServerProcess]]:
    with ExitStack() as stack:
        yield {kind: stack.enter_context(serving(kind, folder)) for kind in get_args(Kind)}


@dataclass
class Asking:
    """The same rollouts, asked for from each server."""

    servers: dict[Kind, ServerProcess]
    rollouts: Rollouts
    folder: Path

    def __post_init__(self) -> None:
        sizes = self.check()
        self._body_bytes = min(sizes), max(sizes)

    def check(self, *, every: int = 1) -> list[int]:
        """Reads the manifests, or every so-manieth, from every server and looks into them; returns their sizes."""
        sizes: list[int] = []
        for server in self.servers.values():
            with httpx.Client(base_url=server.base_url, headers={"Authorization": AUTHORIZATION}, timeout=30) as http:
                for rollout_id in list(self.rollouts)[::every]:
                    answer = http.get(manifest_path(rollout_id)).raise_for_status().content
                    check_manifest(self.rollouts, rollout_id, answer)
                    sizes.append(len(answer))
        return sizes

    def rates(self, *, connections: int, rounds: int) -> list[dict[str, float]]:
        return self._alternate(lambda kind: self._load(kind, connections).requests_per_s, rounds)

    def p50s(self, *, rounds: int) -> list[dict[str, float]]:
        return self._alternate(lambda kind: self._load(kind, 1).p50_ms, rounds)

    def _alternate(self, measure: Callable[[Kind], float], rounds: int) -> list[dict[str, float]]:
        measures: dict[str, Callable[[], float]] = {kind: partial(measure, kind) for kind in self.servers}
        return alternate(measures, rounds=rounds, pids=[server.pid for server in self.servers.values()])

    def _load(self, kind: Kind, connections: int) -> Load:
        return load(
            self.servers[kind],
            list(self.rollouts),
            connections=connections,
            seconds=1,
            body_bytes=self._body_bytes,
            folder=self.folder,
        )


def _add(points: dict[str, list[tuple[float, float]]], x: float, rounds: list[dict[str, float]]) -> None:
    for side, of_side in points.items():
        of_side.append((x, sorted(each[side] for each in rounds)[len(rounds) // 2]))
