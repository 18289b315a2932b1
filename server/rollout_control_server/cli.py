"""The command `rollout-control`."""

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import click

from rollout_control_server.app import create_app
from rollout_control_server.auth import BearerToken
from rollout_control_server.check.command import check
from rollout_control_server.control_routes import DEFAULT_ANSWER_LIMIT
from rollout_control_server.demo import run_demo
from rollout_control_server.errors import LedgerError, LedgerUnavailableError, RolloutControlError
from rollout_control_server.interruption import ENDING_SIGNALS, INTERRUPTED
from rollout_control_server.ledger import CaptureLedger, FenceCount, open_ledger, shown_ledger_url
from rollout_control_server.serving import AUTH_TOKEN_VARIABLE, run_server

DEFAULT_LEDGER: Final = "sqlite:///rollout-control.sqlite"

LEDGER_HELP: Final = "memory://, sqlite:///FILE (relative), sqlite:////FILE (absolute) or postgresql://HOST/DATABASE."

ledger_option = click.option(
    "--ledger",
    "ledger_url",
    metavar="URL",
    # A command line shows a password to everybody on the machine; the environment doesn't.
    envvar="ROLLOUT_CONTROL_LEDGER",
    show_envvar=True,
    default=DEFAULT_LEDGER,
    show_default=True,
    help=LEDGER_HELP,
)

DURATION_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> timedelta:
    """Returns the duration that somebody typed: a number and its unit."""
    found = re.fullmatch(r"([0-9]+)([smhd])", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration: write a number and s, m, h or d, such as 30d or 12h")
    try:
        return timedelta(**{DURATION_UNITS[found[2]]: int(found[1])})
    except (OverflowError, ValueError) as error:
        raise click.BadParameter(f"{text!r} is longer than {timedelta.max.days} days") from error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rollout-control")
def rollout_control() -> None:
    """The control plane between model servers and trainers: read, retire and delete capture ledgers."""


@rollout_control.command()
@ledger_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option(
    "--answer-limit",
    default=DEFAULT_ANSWER_LIMIT,
    show_default=True,
    type=click.IntRange(1),
    help="Bytes of manifests in one answer to a trainer that asks for many.",
)
def serve(ledger_url: str, host: str, port: int, answer_limit: int) -> None:
    """Serve the control plane until SIGINT or SIGTERM.

    The bearer token is read from the environment variable ROLLOUT_CONTROL_AUTH_TOKEN.

    Exits with 1 if the ledger cannot answer now or the address cannot be listened on, so that another start may go
    well; with 2 if the ledger or an option has to be changed first.
    """
    auth_token = os.environ.get(AUTH_TOKEN_VARIABLE, "")
    if not auth_token:
        raise click.UsageError(f"set {AUTH_TOKEN_VARIABLE} to the bearer token that trainers send")
    try:
        BearerToken(auth_token)
    except ValueError as error:
        raise click.UsageError(f"{AUTH_TOKEN_VARIABLE}: {error}") from error
    ledger = ledger_of(ledger_url)
    app = create_app(ledger, auth_token, answer_limit=answer_limit)
    shown = shown_ledger_url(ledger_url)

    def announce(url: str) -> None:
        click.echo(f"serving {shown} on {url}", err=True)

    try:
        with ledger_errors_told():
            run_server(app, host, port, on_listening=announce, ledger=ledger)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error}") from error


rollout_control.add_command(check)


@rollout_control.command()
@click.option("--ledger", "ledger_url", metavar="URL", help=f"{LEDGER_HELP}  [default: a new SQLite file]")
@click.option("--rollouts", default=300, show_default=True, type=click.IntRange(10, 4096), help="How many to make up.")
def demo(ledger_url: str | None, rollouts: int) -> None:
    """Show the whole life of rollouts: a model server records them, a trainer reads and retires them.

    Exits with 1 if anything is not as the contract says, and with 130 if SIGINT or SIGTERM ended it.
    """
    try:
        sys.exit(asyncio.run(demo_until_a_signal(ledger_url, rollouts)))
    except RolloutControlError as error:
        raise click.ClickException(str(error)) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("the demo was interrupted", err=True)
        sys.exit(INTERRUPTED)


async def demo_until_a_signal(ledger_url: str | None, rollouts: int) -> int:
    """Runs the demo; the first SIGINT or SIGTERM cancels it, and further ones don't disturb its cleaning up."""
    demonstration = asyncio.create_task(demo_on(ledger_url, rollouts))
    for number in ENDING_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(
            number, lambda: demonstration.cancelling() or demonstration.cancel()
        )
    return await demonstration


async def demo_on(ledger_url: str | None, rollouts: int) -> int:
    """Runs the demo on a ledger, or on a new file that is removed however the demo ends."""
    with tempfile.TemporaryDirectory(prefix="rollout-control-demo-") as folder:
        return await run_demo(ledger_url or f"sqlite:///{folder}/ledger.sqlite", rollouts)


@rollout_control.command("forget-fences")
@ledger_option
@click.option(
    "--older-than", type=duration, metavar="DURATION", help="Forget those set longer ago, such as 30d, 12h, 5m or 0s."
)
def forget_fences(ledger_url: str, older_than: timedelta | None) -> None:
    """Count the fences of retired rollouts, and forget old ones.

    Without --older-than it only counts. A rollout whose fence is forgotten is one that never was: a write that comes
    later than that starts a new ledger. So DURATION must be longer than the latest that a write can come.
    """
    ledger = ledger_of(ledger_url, create=False)
    with ledger_errors_told():
        count = asyncio.run(count_fences(ledger, timedelta.max if older_than is None else older_than))
    if older_than is not None:
        click.echo(f"forgotten: {count.forgotten:,} fences")
    click.echo(f"kept: {count.kept:,} fences, which cost about {count.kept_bytes / 1e6:,.3f} MB of storage")


async def count_fences(ledger: CaptureLedger, older_than: timedelta) -> FenceCount:
    """Forgets the fences that are older than this, and closes the ledger."""
    async with ledger:
        return await ledger.forget_fences(older_than)


def ledger_of(url: str, *, create: bool = True) -> CaptureLedger:
    """Opens the ledger of a URL that somebody typed."""
    with ledger_errors_told():
        try:
            return open_ledger(url, create=create)
        except (ValueError, ModuleNotFoundError) as error:
            raise click.BadParameter(str(error), param_hint="--ledger") from error


class LedgerUnusable(click.ClickException):
    """The ledger has to be changed before another attempt can go well."""

    exit_code = 2


@contextmanager
def ledger_errors_told() -> Iterator[None]:
    """Tells a ledger's errors to whoever typed its URL."""
    try:
        yield
    except LedgerUnavailableError as error:
        raise click.ClickException(f"the ledger cannot answer now: {error}") from error
    except LedgerError as error:
        raise LedgerUnusable(f"the ledger cannot be used: {error}") from error
