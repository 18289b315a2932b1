"""The command `rollout-control retire`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import click
from rollout_control_spec import MAX_LEDGER_BATCH, validate_rollout_id_prefix

from rollout_control_console.durations import parse_duration
from rollout_control_console.rollout_source import (
    Rollout,
    RolloutSource,
    open_source,
    source_errors_end_command,
    source_options,
)

__all__ = ["retire"]


@dataclass
class Counts:
    """What the command has done so far, in rollouts."""

    removed: int = 0
    active: int = 0
    absent: int = 0


def parse_idle_time(text: str) -> timedelta:
    """Returns the duration that --idle-for gives.

    Raises:
        click.BadParameter: It is none, or is 0: that would retire rollouts which are being written.
    """
    duration = parse_duration(text)
    if not duration:
        raise click.BadParameter("a rollout is idle after at least 1s; with 0s, each live rollout would be retired")
    return duration


def parse_prefix(text: str) -> str:
    """Returns the beginning of rollout ids that --prefix gives.

    Raises:
        click.BadParameter: No rollout id begins so. It may come from a shell variable that is not set.
    """
    try:
        return validate_rollout_id_prefix(text)
    except ValueError as error:
        raise click.BadParameter(f"no rollout id begins with {text[:80]!r}") from error


@click.command()
@source_options
@click.option(
    "--idle-for",
    type=parse_idle_time,
    metavar="DURATION",
    required=True,
    help="Retire those that have had no row for so long, such as 6h, 90m or 2d.",
)
@click.option("--prefix", type=parse_prefix, metavar="TEXT", help="Of those, only the ones whose id begins with this.")
@click.option("--dry-run", is_flag=True, help="Only show which ones these are.")
def retire(url: str | None, ledger_url: str | None, *, idle_for: timedelta, prefix: str | None, dry_run: bool) -> None:
    """Retire rollouts that nobody has written for a while.

    Retiring removes a rollout's rows and fences its id, so DURATION must be longer than a rollout can wait for its next
    call. A rollout that records a row meanwhile is not retired: the ledger decides that when it retires. A rollout
    whose times the ledger does not know is never retired.

    Exits with 1 if the server or the ledger cannot answer now, and with 2 if an option, the token or the server has to
    be changed first. What was retired until then stays retired, and the command can be repeated.
    """
    source = open_source(url, ledger_url)
    with source_errors_end_command():
        if dry_run:
            asyncio.run(_show_idle(source, prefix, idle_for))
        else:
            asyncio.run(_retire_idle(source, prefix, idle_for))


async def _show_idle(
    source: AbstractAsyncContextManager[RolloutSource], prefix: str | None, idle_for: timedelta
) -> None:
    found = 0
    async with source as rollouts:
        async for rollout in _idle(rollouts, prefix, idle_for):
            found += 1
            click.echo(_described(rollout))
    click.echo(f"would retire: {found:,} rollouts")


async def _retire_idle(
    source: AbstractAsyncContextManager[RolloutSource], prefix: str | None, idle_for: timedelta
) -> None:
    counts = Counts()
    try:
        async with source as rollouts:
            batch: list[str] = []
            async for rollout in _idle(rollouts, prefix, idle_for):
                batch.append(rollout.rollout_id)
                if len(batch) == MAX_LEDGER_BATCH:
                    await _retire_batch(rollouts, batch, idle_for, counts)
                    batch = []
            await _retire_batch(rollouts, batch, idle_for, counts)
    finally:
        click.echo(f"retired: {counts.removed:,} rollouts")
        if counts.active:
            click.echo(f"left: {counts.active:,} rollouts, which recorded a row meanwhile")
        if counts.absent:
            click.echo(f"already gone: {counts.absent:,} rollouts, which somebody else removed meanwhile")


async def _retire_batch(source: RolloutSource, batch: list[str], idle_for: timedelta, counts: Counts) -> None:
    if batch:
        removal = await source.retire_idle(batch, idle_for.total_seconds())
        counts.removed += len(removal.removed)
        counts.active += len(removal.active)
        counts.absent += len(removal.absent)


def _idle(source: RolloutSource, prefix: str | None, idle_for: timedelta) -> AsyncIterator[Rollout]:
    return source.rollouts(state="live", prefix=prefix, idle_for_s=idle_for.total_seconds())


def _described(rollout: Rollout) -> str:
    described = f"{rollout.rollout_id}: {rollout.calls} calls, {rollout.failures} failures"
    if rollout.last_recorded_at is None:
        return described
    since = datetime.fromtimestamp(rollout.last_recorded_at, UTC)
    return f"{described}, no row since {since.isoformat(sep=' ', timespec='seconds')}"
