"""How findings are shown: the shell commands that show one again, the report for people, and the report as JSON.

The commands are for bash. They read the token from `ROLLOUT_CONTROL_AUTH_TOKEN`, and run what was given as
`--record-command` from `RECORD_COMMAND`. Their rollout ids are new: none that the check itself used.
"""

import base64
import json
import re
import secrets
import shlex
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rich.console import Console
from rich.text import Text
from rollout_control_spec import AUTH_TOKEN_VARIABLE

from rollout_control_check.recorder import Recording
from rollout_control_check.requirements import Outcome, Requirement, Verdict, requirements
from rollout_control_check.wire import Exchange, Request

if TYPE_CHECKING:
    from rollout_control_check.checking import Report

__all__ = ["Step", "as_json", "came", "commands", "new_prefix", "print_report", "without_token"]

Step: TypeAlias = Exchange | Recording
"""What a check did: it sent a request, or had rows recorded."""

SHOWN_BYTES: Final = 600
"""How many bytes of a body are shown."""

SHOWN_HEADERS: Final = ("content-type", "www-authenticate", "allow", "retry-after", "location")

LONG_TOKEN: Final = 8
"""Characters; a shorter token is hidden behind `Bearer` only, since it may be a word that occurs by chance."""

SHOWN_FINDINGS: Final = 8
"""How many broken requirements the short report lists: with the counts and the first evidence they fit a screen."""

SHOWN_LINES: Final = 10
"""Lines that the short report shows of one text."""

STYLES: Final = {Verdict.HOLDS: "green", Verdict.BROKEN: "bold red", Verdict.NOT_CHECKED: "yellow"}

_PREFIX: Final = re.compile("rollout-control-check-[0-9a-f]{12}-")


def new_prefix() -> str:
    """Returns what the ids of one check begin with, or those of one evidence; all have the same length."""
    return f"rollout-control-check-{secrets.token_hex(6)}-"


# Evidence


def commands(steps: Sequence[Step], base_url: str, timeout_s: float) -> str:
    """Returns the commands that do the same again, one below the other, with new rollout ids.

    Args:
        steps: What led up to the answer, and the exchange with the answer itself.
        base_url: The server.
        timeout_s: Seconds for each answer.
    """
    prefix = new_prefix()
    lines = []
    for number, step in enumerate(steps):
        if isinstance(step, Recording):
            rows = json.dumps({"rollout_id": step.rollout_id, "rows": step.rows})
            line = f'printf %s {shlex.quote(rows)} | sh -c "$RECORD_COMMAND"'
        else:
            body = step.request.body and _PREFIX.sub(prefix, step.request.body.decode("latin-1")).encode("latin-1")
            request = replace(step.request, body=body)
            line = _curl(request, base_url, timeout_s, f"/tmp/{prefix}body-{number}")
        lines.append(_PREFIX.sub(prefix, line))
    return "\n".join(lines)


def _curl(request: Request, base_url: str, timeout_s: float, body_file: str) -> str:
    words = [f"curl -sS -i --path-as-is --max-time {timeout_s:g}"]
    words.append("--head" if request.method == "HEAD" else f"-X {request.method}")
    if request.credentials is not None:
        words.append(f"-H {request.credentials.in_shell}")
    words += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in request.headers]
    made = ""
    if request.withheld:
        words.append(f"-H 'Content-Length: {request.withheld}'")
    elif request.body is not None:
        if not any(name.lower() == "content-type" for name, _ in request.headers):
            words.append("-H 'Content-Type:'")
        if _can_be_quoted(request.body):
            words.append(f"--data-raw {shlex.quote(request.body.decode())}")
        else:
            made = f"{request.body_in_shell or _printing(request.body)} > {body_file} && "
            words.append(f"--data-binary @{body_file}")
    return f"{made}{' '.join(words)} {shlex.quote(base_url + request.path)}"


def _can_be_quoted(body: bytes) -> bool:
    """Tells whether a body can be an argument that a person can read."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return False
    return len(body) <= SHOWN_BYTES and all(character.isprintable() or character == "\n" for character in text)


def _printing(body: bytes) -> str:
    """Returns shell commands that print any bytes."""
    if len(body) <= SHOWN_BYTES:
        return f"printf %s {base64.b64encode(body).decode()} | base64 -d"
    packed = base64.b64encode(zlib.compress(body, 9, wbits=31)).decode()
    return f"printf %s {packed} | base64 -d | gunzip"


def came(exchange: Exchange) -> str:
    """Returns what came back, shortened."""
    answer = exchange.answer
    if answer is None:
        return exchange.failure
    shown = answer.body[:SHOWN_BYTES].decode(errors="replace")
    rest = f" ... ({len(answer.body)} bytes)" if len(answer.body) > SHOWN_BYTES else ""
    headers = "".join(f"\n{name}: {value}" for name, value in answer.headers if name in SHOWN_HEADERS)
    return f"{answer.status}{headers}\n{shown}{rest}".strip()


def without_token(text: str, auth_token: str) -> str:
    """Returns a text that came from the server with the token in it hidden, and with what the checks make of it."""
    text = text.replace(f"Bearer {auth_token}", "Bearer [token]")
    if len(auth_token) < LONG_TOKEN:
        return text
    for secret in (auth_token, auth_token[:-1], auth_token.swapcase()):
        text = text.replace(secret, "[token]")
    return text


# For machines


def as_json(report: "Report") -> str:
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
    details = {
        "why": outcome.why,
        "needs": outcome.needs,
        "expected": outcome.expected,
        "came": outcome.came,
        "commands": outcome.commands,
        "same_answer_as": outcome.same_answer_as,
    }
    return line | {name: text for name, text in details.items() if text}


# For people


def print_report(report: "Report", console: Console, *, everything: bool = False) -> None:
    """Prints the counts, what is broken, and the evidence of the first finding.

    Args:
        report: What a check found.
        console: Where it is printed.
        everything: Print the evidence of each finding too, and each requirement with its verdict.
    """
    if report.token_refused and not everything:
        _print(console, f"The server answers 401 to the token in {AUTH_TOKEN_VARIABLE}. Is it this server's token?")
        _print(console, report.outcomes["auth.accepted"].commands)
        return
    _print_counts(report, console)
    findings = [
        name for name, one in report.outcomes.items() if one.verdict is Verdict.BROKEN and not one.same_answer_as
    ]
    if findings:
        console.print()
    for name in findings if everything else findings[:SHOWN_FINDINGS]:
        _print_finding(name, report, console)
    if findings[SHOWN_FINDINGS:] and not everything:
        _print(console, f"  and {len(findings) - SHOWN_FINDINGS} more")
    for name in findings if everything else findings[:1]:
        _print_evidence(requirements()[name], report.outcomes[name], console, everything=everything)
    if everything:
        console.print()
        for name, outcome in report.outcomes.items():
            why = f"  {outcome.why}" if outcome.why else ""
            console.print(Text(f"{outcome.verdict.value:<12}", STYLES[outcome.verdict]) + Text(f"{name}{why}"))
    console.print()
    for note in report.notes:
        _print(console, note)
    if not everything:
        _print(console, "every requirement, and the evidence of each finding: --all")


def _print_counts(report: "Report", console: Console) -> None:
    counts = ", ".join(f"{report.count(verdict)} {verdict.value}" for verdict in Verdict)
    _print(console, f"{report.base_url}: {counts}; {report.requests} requests in {report.seconds:.1f} s")
    reasons = Counter(one.why for one in report.outcomes.values() if one.verdict is Verdict.NOT_CHECKED)
    for reason, count in reasons.most_common(4):
        _print(console, f"  {count} not checked: {reason}")


def _print_finding(name: str, report: "Report", console: Console) -> None:
    outcome = report.outcomes[name]
    console.print(Text(f"  {name}", STYLES[outcome.verdict]), end="")
    _print(console, f"  expected {outcome.expected}; came {_first_line(outcome.came)}")
    also = [other for other, one in report.outcomes.items() if one.same_answer_as == name]
    if also:
        _print(console, f"    the same answer breaks {', '.join(also)}")


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:80]


def _print_evidence(requirement: Requirement, outcome: Outcome, console: Console, *, everything: bool) -> None:
    console.print()
    console.print(Text(requirement.id, STYLES[outcome.verdict]))
    says = " ".join(requirement.says.split())
    for title, text in (
        ("the contract", f"{says} ({requirement.source})"),
        ("expected", outcome.expected),
        ("came", outcome.came),
    ):
        lines = text.split("\n")
        if not everything:
            lines = [line if len(line) <= 2 * 80 else f"{line[: 2 * 80]} ..." for line in lines[:SHOWN_LINES]]
        _print(console, f"  {title + ':':<14}" + f"\n{' ' * 16}".join(lines))
    if outcome.commands:
        _print(console, f"  to see it again, with the token in {AUTH_TOKEN_VARIABLE}:")
        # From the first column, so that they can be copied.
        _print(console, outcome.commands)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
