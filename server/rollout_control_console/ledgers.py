"""What the commands that open a ledger share: the option `--ledger`, and how a ledger's errors end a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click
from rollout_control_server import CaptureLedger, LedgerError, LedgerUnavailableError, open_ledger
from rollout_control_spec import LEDGER_VARIABLE

__all__ = ["LEDGER_HELP", "ledger_errors_end_command", "ledger_option", "open_named_ledger"]

DEFAULT_LEDGER: Final = "sqlite:///rollout-control.sqlite"

LEDGER_HELP: Final = "memory://, sqlite:///FILE (relative), sqlite:////FILE (absolute) or postgresql://HOST/DATABASE."

ledger_option = click.option(
    "--ledger",
    "ledger_url",
    metavar="URL",
    # A command line shows a password to everybody on the machine; the environment doesn't.
    envvar=LEDGER_VARIABLE,
    show_envvar=True,
    default=DEFAULT_LEDGER,
    show_default=True,
    help=LEDGER_HELP,
)


class LedgerUnusableError(click.ClickException):
    """The ledger has to be changed before another attempt can succeed."""

    exit_code = 2


def open_named_ledger(url: str, *, create: bool = True, named_by: str = "--ledger") -> CaptureLedger:
    """Opens the ledger that an option or an argument names.

    Args:
        url: The value.
        create: Whether a ledger that is not there yet is made.
        named_by: The option or argument, as a message about the value names it.

    Raises:
        click.ClickException: The ledger cannot be opened; exit status 1 where another attempt may succeed, else 2.
    """
    with ledger_errors_end_command():
        try:
            return open_ledger(url, create=create)
        except (ValueError, ModuleNotFoundError) as error:
            raise click.BadParameter(str(error), param_hint=named_by) from error


@contextmanager
def ledger_errors_end_command() -> Iterator[None]:
    """Ends the command with a ledger's error: exit status 1 where another attempt may succeed, else 2.

    Raises:
        click.ClickException: For each LedgerError that is raised in the block.
    """
    try:
        yield
    except LedgerUnavailableError as error:
        raise click.ClickException(f"the ledger cannot answer now: {error}") from error
    except LedgerError as error:
        raise LedgerUnusableError(f"the ledger cannot be used: {error}") from error
