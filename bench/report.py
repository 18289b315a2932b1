"""Writes bench/RESULTS.md and its plots, and prints a table."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import apsw
from matplotlib.figure import Figure

from bench.results import Curve, PartReport, Result
from bench.rounds import DISTURBED_SHARE, Disturbance

HERE = Path(__file__).parent
STYLES = {"ours": "C0o-", "peer": "C1s-", "limit": "k--"}
LIBRARIES = (
    "nemo-gym",
    "litestar",
    "uvicorn",
    "uvloop",
    "httptools",
    "msgspec",
    "httpx",
    "fastapi",
    "pydantic",
    "aiohttp",
)

INTRODUCTION = """\
# Results

Written by `nox -s bench`, whole, and never by hand. Absolute figures are those of one machine on one day; the ratios
are what to look at. Ours, the peer (nemo-gym's released ledger, routes and client) and the limit (what the machine
allows) were measured alternately, on the same rows, each in its turn in every round, and every answer was checked: a
run with a wrong one is not reported. Ours is one server process with a SqliteLedger, and keeps no manifest in memory.

- *ratio*: how many times better ours is than the peer; the median of the rounds, and in brackets the lowest and the
  highest round.
- *share*: how much of the limit ours reaches; likewise.
- *others*: how much of one core other processes used meanwhile. Where that is much, the figures are theirs as well.
- Percentiles are those of connections that ask again as soon as they have an answer. They are not corrected for
  coordinated omission.
"""


def print_results(results: Sequence[Result]) -> None:
    for result in results:
        figures = ", ".join(f"{side} {_figure(result, side)}" for side in ("ours", "peer", "limit"))
        print(
            f"{'reached' if result.reached else 'MISSED '}  {result.work}: {figures}; goal: {_goal(result)}", flush=True
        )


def write(reports: Sequence[PartReport], disturbance: Disturbance, seconds: float) -> None:
    results = [result for report in reports for result in report.results]
    curves = [curve for report in reports for curve in report.curves]
    plots = HERE / "plots"
    plots.mkdir(exist_ok=True)
    for curve in curves:
        _plot(curve).savefig(plots / f"{curve.name}.png", dpi=100)
    (HERE / "RESULTS.md").write_text(
        "\n".join(
            [
                INTRODUCTION,
                *_table(results),
                "",
                *_limits(results),
                *_missed(results),
                "## How it grows",
                "",
                *(f"![{curve.title}](plots/{curve.name}.png)" for curve in curves),
                "",
                *_conditions(disturbance, seconds),
            ]
        )
        + "\n"
    )


def _table(results: Sequence[Result]) -> list[str]:
    lines = [
        "| work | ours | peer | ratio | goal | | limit | share | others |",
        "|---|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    for result in results:
        cells = (
            *(result.work, _figure(result, "ours"), _figure(result, "peer"), _spread(result, "peer", "x")),
            *(_goal(result), _verdict(result)),
            *(_figure(result, "limit"), _spread(result, "limit", ""), _others(result)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _figure(result: Result, side: str) -> str:
    figure = result.median(side)
    if figure is None:
        return ""
    text = f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
    return f"{text}{'' if result.unit in ('/s', 'x') else ' '}{result.unit}"


def _spread(result: Result, than: str, unit: str) -> str:
    ratios = sorted(result.times_better(than))
    if not ratios:
        return ""
    middle = ratios[len(ratios) // 2] if len(ratios) % 2 else sum(ratios[len(ratios) // 2 - 1 :][:2]) / 2
    return f"{middle:.2g}{unit} ({ratios[0]:.2g} to {ratios[-1]:.2g})"


def _goal(result: Result) -> str:
    return ", ".join(criterion.text for criterion in result.goal)


def _others(result: Result) -> str:
    share = result.median("others")
    return "" if share is None else f"{share:.0%}"


def _verdict(result: Result) -> str:
    return "" if not result.goal else "reached" if result.reached else "MISSED"


def _limits(results: Sequence[Result]) -> list[str]:
    lines: dict[str, list[str]] = {}
    for result in results:
        if result.limit:
            lines.setdefault(result.limit, []).append(result.work)
    return ["The limit is:", "", *(f"- {limit} ({'; '.join(works)})." for limit, works in lines.items()), ""]


def _missed(results: Sequence[Result]) -> list[str]:
    missed = [result for result in results if not result.reached]
    if not missed:
        return []
    reasons = [
        f"- {result.work} (goal: {_goal(result)}): {result.missed_because or 'not known yet'}" for result in missed
    ]
    return ["## Missed, and why", "", *reasons, ""]


def _conditions(disturbance: Disturbance, seconds: float) -> list[str]:
    with open("/proc/cpuinfo") as cpuinfo:
        model = next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), "unknown")
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    wrk = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False).stdout
    return [
        "## Conditions",
        "",
        f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; the whole run took {seconds / 60:.1f} minutes.",
        f"- {os.cpu_count()} cores of {model}, {memory_gb:.0f} GB, {platform.system()} {platform.release()}.",
        f"- Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}; "
        + ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
        + f"; {wrk.partition(' [')[0]}.",
        f"- A round in which other processes, or the hypervisor, took more than {DISTURBED_SHARE:.0%} of one core is "
        f"measured again, if there is time: {disturbance.repeated} were, and of the {disturbance.kept} rounds that "
        f"count {disturbance.kept_disturbed} are disturbed nevertheless (the worst by {disturbance.worst_share:.0%}).",
    ]


def _plot(curve: Curve) -> Figure:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for side, points in curve.points.items():
        axes.plot([x for x, _ in points], [y for _, y in points], STYLES[side], label=side)
    axes.set(title=curve.title, xlabel=curve.x, ylabel=curve.y, xscale="log", yscale="log")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend()
    return figure
