"""The command `rollout-control demo`."""

import asyncio
import signal
import sys
import tempfile
from types import FrameType

import click
from rollout_control_spec import MAX_LEDGER_BATCH, RolloutControlError

from rollout_control_console.extras import requires_extra
from rollout_control_console.ledgers import LEDGER_HELP
from rollout_control_console.signals import ENDING_SIGNALS, INTERRUPTED

__all__ = ["demo"]


@click.command()
@click.option("--ledger", "ledger_url", metavar="URL", help=f"{LEDGER_HELP}  [default: a new SQLite file]")
@click.option(
    "--rollouts",
    default=300,
    show_default=True,
    type=click.IntRange(10, MAX_LEDGER_BATCH),
    help="How many to make up.",
)
def demo(ledger_url: str | None, rollouts: int) -> None:
    """Show the life of rollouts that it makes up.

    A model server's process records them; a trainer reads and retires them over HTTP; a table says what came of it.

    Exits with 1 if anything is not as the contract says, and with 130 if SIGINT or SIGTERM ended it.
    """
    try:
        sys.exit(asyncio.run(_run_until_a_signal(ledger_url, rollouts)))
    except RolloutControlError as error:
        raise click.ClickException(str(error)) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("the demo was interrupted", err=True)
        sys.exit(INTERRUPTED)


async def _run_until_a_signal(ledger_url: str | None, rollouts: int) -> int:
    """Runs the demo. The first SIGINT or SIGTERM cancels it; later ones are ignored until the process has ended."""
    loop = asyncio.get_running_loop()
    demonstration = asyncio.create_task(_run_on_ledger(ledger_url, rollouts))

    # Not by `loop.add_signal_handler`, whose handlers cannot be replaced without a moment in which a signal ends all.
    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in ENDING_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        loop.call_soon_threadsafe(demonstration.cancel)

    for number in ENDING_SIGNALS:
        signal.signal(number, interrupt)
    return await demonstration


async def _run_on_ledger(ledger_url: str | None, rollouts: int) -> int:
    """Runs the demo on a ledger, or on a new file that is removed however the demo ends."""
    with requires_extra("server"):
        from rollout_control_console.demo.trainer import run_demo
    with tempfile.TemporaryDirectory(prefix="rollout-control-demo-") as folder:
        return await run_demo(ledger_url or f"sqlite:///{folder}/ledger.sqlite", rollouts)
