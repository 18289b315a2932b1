"""The command `rollout-control verify`."""

import asyncio
import sys
from typing import Final

import click
from rollout_control_server import CaptureLedger, LedgerCorruptError
from rollout_control_server.ledger import shown_ledger_url
from rollout_control_server.ledger.results import Verification

from rollout_control_console.ledgers import (
    LedgerUnusableError,
    ledger_errors_end_command,
    ledger_option,
    open_named_ledger,
)

__all__ = ["verify"]

_SHOWN_ROLLOUTS: Final = 20


@click.command()
@ledger_option
def verify(ledger_url: str) -> None:
    """Find what is damaged in a ledger.

    It reads everything that the ledger has stored. Others may use the ledger meanwhile. Of a SQLite file, every page
    and its checksum are read, the order of the pages, every row, staging chain and index entry; of another ledger,
    every row and chain, and what the listing says of them.

    Exits with 0 if nothing is damaged, with 1 if something is, and with 2 if the ledger cannot be read now, or an
    option is bad.
    """
    name = shown_ledger_url(ledger_url)
    try:
        ledger = open_named_ledger(ledger_url, create=False)
        with ledger_errors_end_command():
            found = asyncio.run(_verify_and_close(ledger))
    except LedgerUnusableError as error:
        if not isinstance(error.__cause__, LedgerCorruptError):
            raise
        click.echo(f"damaged: {error.__cause__}")
        click.echo(f"{name} cannot be opened or read on, so nothing is known of its rollouts")
        sys.exit(1)
    except click.UsageError:
        raise
    except click.ClickException as error:
        raise LedgerUnusableError(error.message) from error
    for damage in found.damages:
        click.echo(f"damaged: {damage.what}")
    touched = sorted({rollout_id for damage in found.damages for rollout_id in damage.rollout_ids})
    if touched:
        more = f" and {len(touched) - _SHOWN_ROLLOUTS:,} more" if len(touched) > _SHOWN_ROLLOUTS else ""
        click.echo(f"rollouts touched: {', '.join(touched[:_SHOWN_ROLLOUTS])}{more}")
    verdict = f"{len(found.damages):,} damages" if found.damages else "no damage"
    click.echo(f"{name}: {verdict} in {found.rollouts:,} rollouts with {found.rows:,} rows")
    sys.exit(1 if found.damages else 0)


async def _verify_and_close(ledger: CaptureLedger) -> Verification:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with ledger:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
            tasks: dict[str, TaskID] = {}

            def show(what: str, done: int, total: int | None) -> None:
                if what not in tasks:
                    tasks[what] = bars.add_task(what, total=total)
                bars.update(tasks[what], completed=done, total=total)

            return await ledger.verify(show)
