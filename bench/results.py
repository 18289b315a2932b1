"""What a part reports: figures by side, a goal each, and curves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

__all__ = ["Criterion", "Curve", "PartReport", "Result", "at_most", "share_of_limit", "times_better"]


@dataclass(frozen=True)
class Result:
    """One line of the table.

    Attributes:
        work: What was done.
        unit: Of the figures: "/s" is better when higher, everything else when lower.
        rounds: The figures of each round by side: "ours", and if they were measured "peer" and "limit".
        goal: What is to be reached.
        limit: What the side "limit" is.
        missed_because: Why the goal is missed when it is, as a profiler told.
    """

    work: str
    unit: str
    rounds: Sequence[dict[str, float]]
    goal: Sequence["Criterion"]
    limit: str = ""
    missed_because: str = ""

    def median(self, side: str) -> float | None:
        figures = [each[side] for each in self.rounds if side in each]
        return median(figures) if figures else None

    def times_better(self, than: str) -> list[float]:
        """Returns, for each round, how many times better ours is than another side."""
        pairs = [(each["ours"], each[than]) for each in self.rounds if than in each]
        return [ours / other if self.unit == "/s" else other / ours for ours, other in pairs]

    @property
    def reached(self) -> bool:
        return all(criterion.met(self) for criterion in self.goal)


@dataclass(frozen=True)
class Criterion:
    text: str
    met: Callable[[Result], bool]


def times_better(times: float, text: str = "") -> Criterion:
    return Criterion(text or f"{times:g}x", lambda result: median(result.times_better("peer")) >= times)


def share_of_limit(share: float, text: str) -> Criterion:
    return Criterion(text, lambda result: median(result.times_better("limit")) >= share)


def at_most(figure: float, text: str) -> Criterion:
    return Criterion(text, lambda result: median(each["ours"] for each in result.rounds) <= figure)


@dataclass(frozen=True)
class Curve:
    """A plot of how a figure grows; both axes are logarithmic.

    Attributes:
        name: The file's name, without its ending.
        title: What is shown.
        x: What grows.
        y: The figure, with its unit.
        points: The points of each side, as pairs of x and y.
    """

    name: str
    title: str
    x: str
    y: str
    points: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class PartReport:
    results: list[Result]
    curves: list[Curve] = field(default_factory=list)
