"""The command `rollout-control copy`."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import click
from rollout_control_server import CaptureLedger
from rollout_control_server.copying import (
    CopyCounts,
    CopyJournal,
    CopySource,
    ExportFile,
    LedgerSource,
    MixedLedgersError,
    copy_rollouts,
    differing_rollouts,
    write_export_file,
)
from rollout_control_server.ledger import shown_ledger_url

from rollout_control_console.ledgers import LedgerUnusableError, ledger_errors_end_command, open_named_ledger

__all__ = ["copy"]

_FILE: Final = "file:///"
_SHOWN_IDS: Final = 20
_CAUGHT_UP: Final = 500
"""A pass that has copied fewer rollouts than this is followed by the last one: an import or two, which take seconds."""


class _Options(NamedTuple):
    into_existing: bool
    follow: bool
    verify: bool
    journal: Path | None


@click.command()
@click.argument("source")
@click.argument("destination")
@click.option("--into-existing", is_flag=True, help="Copy into a ledger that has rollouts of its own.")
@click.option("--follow", is_flag=True, help="Copy what changes until little is left, then ask to stop the writers.")
@click.option("--verify", is_flag=True, help="Compare both sides at the end.")
@click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Remember in this file what was copied, for another run of the same copy.",
)
def copy(source: str, destination: str, **given: Any) -> None:
    """Copy all rollouts of SOURCE to DESTINATION.

    Rows, fences and their times are copied. SOURCE and DESTINATION each are a ledger's URL, or file:///PATH of an
    export: JSON lines, compressed by gzip if PATH ends in .gz. An export that is there is replaced; a file of another
    kind is not.

    A copy that was interrupted can be run again. Exits with 1 if rollouts were refused or differ, or a side cannot
    answer now, and with 2 if a side cannot be used.
    """
    options = _Options(**given)
    if source == destination:
        raise click.UsageError("SOURCE and DESTINATION are the same")
    if destination.startswith(_FILE) and (options.into_existing or options.follow or options.journal is not None):
        raise click.UsageError("--into-existing, --follow and --journal are for a DESTINATION that is a ledger")
    if source.startswith(_FILE) and options.follow:
        raise click.UsageError("--follow is for a SOURCE that is a ledger: nobody writes to an export file")
    with ledger_errors_end_command():
        try:
            sys.exit(asyncio.run(_copy(source, destination, options)))
        except MixedLedgersError as error:
            raise LedgerUnusableError(
                f"{error}. Nothing was copied; --into-existing copies beside what the destination has"
            ) from error


async def _copy(source_url: str, destination_url: str, options: _Options) -> int:
    async with contextlib.AsyncExitStack() as opened:
        source, total = await opened.enter_async_context(_open_source(source_url))
        if destination_url.startswith(_FILE):
            path = _path_of(destination_url)
            if path.exists():
                ExportFile(path).check_format()
            with _progress("copy", total) as advance:
                live, rows, fences = await write_export_file(source, path, advance)
            click.echo(_copied(live, rows, fences))
            return await _verify(source, ExportFile(path), total, options) if options.verify else 0
        destination = await opened.enter_async_context(open_named_ledger(destination_url, named_by="DESTINATION"))
        refused = await _copy_to_ledger(source, total, destination, destination_url, options)
        there = LedgerSource(destination, shown_ledger_url(destination_url))
        differs = await _verify(source, there, total, options) if options.verify else 0
        return 1 if refused or differs else 0


async def _copy_to_ledger(
    source: CopySource, total: int | None, destination: CaptureLedger, destination_url: str, options: _Options
) -> list[str]:
    """Makes the passes of a copy, and returns the ids that were refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = options.journal or Path(folder) / "journal"
        journal = CopyJournal(path, source.name, shown_ledger_url(destination_url))

        async def make_pass(what: str) -> CopyCounts:
            with _progress(what, total) as advance:
                counts = await copy_rollouts(
                    source, destination, journal, into_existing=options.into_existing, advance=advance
                )
            _say(counts)
            return counts

        counts = await make_pass("copy")
        if options.follow:
            while counts.rollouts + counts.fences + counts.cleared >= _CAUGHT_UP:
                counts = await make_pass("copy what has changed")
            click.echo("Little has changed since. Stop the writers of the source now.")
            await asyncio.to_thread(click.pause, "Press any key when they have stopped, for the last pass ...")
            counts = await make_pass("last pass")
    if counts.refused:
        click.echo(f"refused, because the destination has others of these ids: {_shown(counts.refused)}", err=True)
    return counts.refused


def _copied(rollouts: int, rows: int, fences: int) -> str:
    return f"copied {rollouts:,} rollouts with {rows:,} rows, and {fences:,} fences of retired rollouts"


def _say(counts: CopyCounts) -> None:
    parts = [_copied(counts.rollouts, counts.rows, counts.fences)]
    if counts.unchanged:
        parts.append(f"{counts.unchanged:,} were there already")
    if counts.cleared:
        parts.append(f"{counts.cleared:,} were cleared, which the source has no more")
    if counts.refused:
        parts.append(f"{len(counts.refused):,} were refused")
    click.echo("; ".join(parts))


async def _verify(source: CopySource, destination: CopySource, total: int | None, options: _Options) -> int:
    differing: list[str] = []
    with _progress("verify", total) as advance:
        compared = differing_rollouts(source, destination, into_existing=options.into_existing, advance=advance)
        differing = [rollout_id async for rollout_id in compared]
    if not differing:
        click.echo("verified: both sides have the same rollouts, rows and fences")
        return 0
    click.echo(f"different on the two sides: {_shown(differing)}", err=True)
    return 1


@contextlib.asynccontextmanager
async def _open_source(url: str) -> AsyncIterator[tuple[CopySource, int | None]]:
    """Gives the source, and how many rollouts it has where that is known."""
    if url.startswith(_FILE):
        path = _path_of(url)
        if not path.is_file():
            raise click.BadParameter(f"there is no file {path}", param_hint="SOURCE")
        source = ExportFile(path)
        # Before the destination is made.
        source.check_format()
        yield source, None
        return
    async with open_named_ledger(url, create=False, named_by="SOURCE") as ledger:
        summary = await ledger.summary()
        yield LedgerSource(ledger, shown_ledger_url(url)), summary.live + summary.retired


@contextlib.contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Shows how many rollouts are done, where a terminal shows it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=total)
        yield lambda rollouts: bars.advance(task, rollouts)


def _path_of(url: str) -> Path:
    return Path("/", unquote(url.removeprefix(_FILE)))


def _shown(rollout_ids: list[str]) -> str:
    more = f" and {len(rollout_ids) - _SHOWN_IDS:,} more" if len(rollout_ids) > _SHOWN_IDS else ""
    return f"{', '.join(rollout_ids[:_SHOWN_IDS])}{more}"
