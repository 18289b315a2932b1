"""The command `rollout-control check`."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rollout_control_spec import AUTH_TOKEN_VARIABLE, validate_auth_token, validate_rollout_id

from rollout_control_console.extras import requires_extra
from rollout_control_console.signals import INTERRUPTED, InterruptionError, first_signal_raises

if TYPE_CHECKING:
    from rollout_control_check.checking import Report

__all__ = ["check"]


class _CheckCommand(click.Command):
    """Prints a JSON object also where there is no report, so that standard output can be parsed whatever happens."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _errors_as_json(asked_for="--json" in args):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_as_json(asked_for=ctx.params["as_json"]):
            return super().invoke(ctx)


@contextmanager
def _errors_as_json(*, asked_for: bool) -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if asked_for:
            _print_error_as_json(error.format_message())
        raise


def _print_error_as_json(reason: str) -> None:
    click.echo(json.dumps({"complete": False, "error": reason}, indent=2))


@click.command(cls=_CheckCommand)
@click.argument("base_url")
@click.option(
    "--record-command",
    metavar="CMD",
    help="The command that records rows in the server's ledger; it reads {rollout_id, rows} as JSON from its input.",
)
@click.option("--recorded-id", metavar="ID", help="A rollout that has rows. The check only reads it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the report for people.")
@click.option(
    "--all", "everything", is_flag=True, help="Print every requirement, and the evidence of each that is broken."
)
@click.option("--seed", type=int, help="Fuzz with other cases. Without it, the cases are the same each time.")
@click.option(
    "--max-examples",
    default=40,
    show_default=True,
    type=click.IntRange(0),
    help="Fuzzed cases for each operation and phase. 0 leaves the fuzzing out.",
)
@click.option(
    "--timeout", "timeout_s", default=10.0, show_default=True, type=click.FloatRange(0.1), help="Seconds for an answer."
)
@click.option(
    "--time-limit",
    "time_limit_s",
    default=300.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Seconds for the whole check.",
)
def check(
    base_url: str,
    *,
    record_command: str | None,
    recorded_id: str | None,
    as_json: bool,
    everything: bool,
    seed: int | None,
    max_examples: int,
    timeout_s: float,
    time_limit_s: float,
) -> None:
    """Check a running server, of any make, against the contract.

    BASE_URL is where the server is, without the control plane's own path. The bearer token is read from the environment
    variable ROLLOUT_CONTROL_AUTH_TOKEN. The check removes and records rollouts under ids of its own only, and deletes
    them in the end, also when SIGINT or SIGTERM ends it.

    Exits with 0 if no requirement is broken, though some may not have been checked; with 1 if one is broken, or the
    check could not be finished; with 2 if no HTTP answer came at all, the first run of the record command failed, or
    an option is bad; with 130 if SIGINT or SIGTERM ended it. With 2 and 130, --json prints an object whose "error" says
    why.
    """
    try:
        with first_signal_raises():
            report = _report_on(
                base_url,
                record_command=record_command,
                recorded_id=recorded_id,
                seed=seed,
                max_examples=max_examples,
                timeout_s=timeout_s,
                time_limit_s=time_limit_s,
            )
    except InterruptionError as interruption:
        message = _with_notes("the check was interrupted", interruption)
        click.echo(message, err=True)
        if as_json:
            _print_error_as_json(message)
        sys.exit(INTERRUPTED)
    from rich.console import Console
    from rollout_control_check.report import as_json as report_as_json
    from rollout_control_check.report import print_report

    if as_json:
        click.echo(report_as_json(report))
    else:
        print_report(report, Console(), everything=everything)
    sys.exit(report.falls_short or not report.complete)


def _report_on(
    base_url: str,
    *,
    record_command: str | None,
    recorded_id: str | None,
    seed: int | None,
    max_examples: int,
    timeout_s: float,
    time_limit_s: float,
) -> "Report":
    with requires_extra("check"):
        from rollout_control_check.checking import check_server
        from rollout_control_check.fuzzing import Fuzzing
        from rollout_control_check.recorder import RecordingError, command_recorder
        from rollout_control_check.wire import UnreachableError
    auth_token = os.environ.get(AUTH_TOKEN_VARIABLE, "")
    if not auth_token:
        raise click.UsageError(f"set {AUTH_TOKEN_VARIABLE} to the bearer token that the server takes")
    try:
        validate_auth_token(auth_token)
        return check_server(
            base_url,
            auth_token,
            recorder=None if record_command is None else command_recorder(record_command),
            recorded_id=None if recorded_id is None else validate_rollout_id(recorded_id),
            fuzzing=Fuzzing(max_examples, seed) if max_examples else None,
            timeout_s=timeout_s,
            time_limit_s=time_limit_s,
        )
    except (ValueError, RecordingError, UnreachableError) as error:
        raise click.UsageError(_with_notes(str(error), error)) from error


def _with_notes(message: str, error: BaseException) -> str:
    """Returns the message with the error's notes, which say what could not be cleaned up, in one line."""
    return "; ".join([message, *(" ".join(note.split()) for note in getattr(error, "__notes__", ()))])
