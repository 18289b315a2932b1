"""Measuring alternately, and again where something else used the machine meanwhile."""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

DISTURBED_SHARE = 0.10
"""A round in which others used, or the hypervisor took, more than this share of one core is measured again."""

_BEGUN = time.monotonic()
_TIME_TO_REPEAT_S = 240
"""Once a run is as old as this, no round is measured again, so that the whole stays under fifteen minutes."""


class WrongAnswerError(RuntimeError):
    """Something that was measured answered wrong, so nothing of this run is reported."""


class CannotMeasureError(RuntimeError):
    """Something that the measurement needs is not there."""


@dataclass(frozen=True)
class Round:
    figures: dict[str, float]
    others_share: float


def alternate(
    measures: Mapping[str, Callable[[], float]],
    *,
    rounds: int = 5,
    pids: Iterable[int] = (),
    warm_up: bool = True,
) -> list[dict[str, float]]:
    """Runs the measures one after another, in rounds, and returns the figures of the least disturbed rounds.

    Disturbed rounds are repeated, at most half as many as there are.

    Beside the figure of each side, "others" is the share of one core that others used meanwhile.

    Args:
        measures: What to run, by side.
        rounds: How many rounds are returned.
        pids: Processes that work for the measures, beside this one and its children that have ended.
        warm_up: Whether a first round is thrown away.
    """
    pids = tuple(pids)
    if warm_up:
        for measure in measures.values():
            measure()
    done: list[Round] = []
    while len(done) < rounds or _worth_another(done, rounds):
        before = _Used.now(pids)
        figures = {side: measure() for side, measure in measures.items()}
        done.append(Round(figures, before.others_share_since(_Used.now(pids))))
    done.sort(key=lambda each: each.others_share)
    kept = done[:rounds]
    disturbance.note(len(done) - len(kept), sum(each.others_share > DISTURBED_SHARE for each in kept), kept)
    return [{**each.figures, "others": each.others_share} for each in kept]


def _worth_another(done: list[Round], rounds: int) -> bool:
    undisturbed = sum(each.others_share <= DISTURBED_SHARE for each in done)
    return undisturbed < rounds and len(done) < rounds + rounds // 2 and time.monotonic() < _BEGUN + _TIME_TO_REPEAT_S


@dataclass
class Disturbance:
    """How quiet the machine was, over the whole run."""

    repeated: int = 0
    kept: int = 0
    kept_disturbed: int = 0
    worst_share: float = 0.0

    def note(self, repeated: int, kept_disturbed: int, kept: list[Round]) -> None:
        self.repeated += repeated
        self.kept += len(kept)
        self.kept_disturbed += kept_disturbed
        self.worst_share = max(self.worst_share, *(each.others_share for each in kept))


disturbance = Disturbance()


@dataclass(frozen=True)
class _Used:
    """CPU seconds, so far: by everybody together, stolen by the hypervisor, and by us."""

    at: float
    by_all: float
    by_us: float

    @classmethod
    def now(cls, pids: Iterable[int]) -> "_Used":
        ticks = os.sysconf("SC_CLK_TCK")
        with open("/proc/stat") as stat:
            user, nice, system, _, _, _, _, steal = map(int, stat.readline().split()[1:9])
        ours = sum(os.times()[:4]) + sum(_ticks_of(pid) for pid in pids) / ticks
        return cls(time.perf_counter(), (user + nice + system + steal) / ticks, ours)

    def others_share_since(self, later: "_Used") -> float:
        others = (later.by_all - self.by_all) - (later.by_us - self.by_us)
        return max(0.0, others / (later.at - self.at))


def _ticks_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def median(figures: Iterable[float]) -> float:
    return statistics.median(figures)
