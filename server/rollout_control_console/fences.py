"""The command `rollout-control forget-fences`."""

import asyncio
import re
from datetime import timedelta
from typing import Final

import click
from rollout_control_server.ledger import CaptureLedger, FenceCount

from rollout_control_console.ledgers import ledger_errors_end_command, ledger_option, open_named_ledger

__all__ = ["forget_fences"]

DURATION_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_duration(text: str) -> timedelta:
    """Returns the duration that an option gives, a number and its unit, such as `12h`.

    Raises:
        click.BadParameter: It is none, or is longer than a timedelta can be.
    """
    found = re.fullmatch(r"([0-9]+)([smhd])", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration: write a number and s, m, h or d, such as 30d or 12h")
    try:
        return timedelta(**{DURATION_UNITS[found[2]]: int(found[1])})
    except (OverflowError, ValueError) as error:
        raise click.BadParameter(f"{text!r} is longer than {timedelta.max.days} days") from error


@click.command("forget-fences")
@ledger_option
@click.option(
    "--older-than",
    type=parse_duration,
    metavar="DURATION",
    help="Forget those set longer ago, such as 30d, 12h, 5m or 0s.",
)
def forget_fences(ledger_url: str, older_than: timedelta | None) -> None:
    """Count the fences of retired rollouts, and forget old ones.

    Without --older-than it only counts. Forgetting a fence means that a late write can start the rollout again. So
    DURATION must be longer than the time after which the latest write of a rollout can come.
    """
    ledger = open_named_ledger(ledger_url, create=False)
    with ledger_errors_end_command():
        count = asyncio.run(_forget_and_close(ledger, timedelta.max if older_than is None else older_than))
    if older_than is not None:
        click.echo(f"forgotten: {count.forgotten:,} fences")
    click.echo(f"kept: {count.kept:,} fences, which cost about {count.kept_bytes / 1e6:,.3f} MB of storage")


async def _forget_and_close(ledger: CaptureLedger, older_than: timedelta) -> FenceCount:
    async with ledger:
        return await ledger.forget_fences(older_than)
