"""How a report is shown: a table and evidence for people, JSON for machines."""

import json
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollout_control_check.checking import Report
from rollout_control_check.examination import Outcome, Verdict
from rollout_control_check.requirements import Requirement, requirements

__all__ = ["as_json", "print_report"]

STYLES: Final = {Verdict.HOLDS: "green", Verdict.BROKEN: "bold red", Verdict.NOT_CHECKED: "yellow"}


def as_json(report: Report) -> str:
    """Returns the report as one JSON object."""
    document = {
        "base_url": report.base_url,
        "falls_short": report.falls_short,
        "complete": report.complete,
        "counts": {verdict.value: report.count(verdict) for verdict in Verdict},
        "requests": report.requests,
        "seconds": round(report.seconds, 1),
        "notes": report.notes,
        "requirements": [_line(requirements()[name], outcome) for name, outcome in report.outcomes.items()],
    }
    return json.dumps(document, indent=2)


def _line(requirement: Requirement, outcome: Outcome) -> dict[str, Any]:
    line = {
        "id": requirement.id,
        "verdict": outcome.verdict.value,
        "says": requirement.says,
        "source": requirement.source,
    }
    if outcome.verdict is Verdict.NOT_CHECKED:
        line["why"] = outcome.why
    if outcome.verdict is Verdict.BROKEN:
        line |= {"expected": outcome.expected, "came": outcome.came, "request": outcome.request}
    return line


def print_report(report: Report, console: Console) -> None:
    """Prints the table, the evidence of each requirement that is broken, and the sum."""
    table = Table(title=f"rollout-control check {report.base_url}", title_justify="left")
    table.add_column("requirement", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why")
    for requirement_id, outcome in report.outcomes.items():
        why = outcome.why if outcome.verdict is Verdict.NOT_CHECKED else f"expected {outcome.expected}"
        shown = "" if outcome.verdict is Verdict.HOLDS else why
        table.add_row(requirement_id, Text(outcome.verdict.value, STYLES[outcome.verdict]), Text(shown))
    console.print(table)
    for requirement_id, outcome in report.outcomes.items():
        if outcome.verdict is Verdict.BROKEN:
            _print_evidence(requirements()[requirement_id], outcome, console)
    for note in report.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    counts = ", ".join(f"{report.count(verdict)} {verdict.value}" for verdict in Verdict)
    console.print(f"{counts}; {report.requests} requests in {report.seconds:.1f} s", highlight=False)


def _print_evidence(requirement: Requirement, outcome: Outcome, console: Console) -> None:
    console.print()
    console.print(Text(requirement.id, STYLES[outcome.verdict]))
    says = " ".join(requirement.says.split())
    for name, text in (
        ("the contract", f"{says} ({requirement.source})"),
        ("request", outcome.request),
        ("expected", outcome.expected),
        ("came", outcome.came),
    ):
        if text:
            lines = text.replace("\n", "\n" + " " * 16)
            console.print(f"  {name + ':':<14}{lines}", markup=False, highlight=False, soft_wrap=True)
