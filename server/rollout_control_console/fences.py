"""The command `rollout-control forget-fences`."""

import asyncio
from datetime import timedelta

import click
from rollout_control_server.ledger import CaptureLedger, FenceCount

from rollout_control_console.durations import parse_duration
from rollout_control_console.ledgers import ledger_errors_end_command, ledger_option, open_named_ledger

__all__ = ["forget_fences"]


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
