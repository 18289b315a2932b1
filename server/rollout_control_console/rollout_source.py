"""What a command that looks at rollouts asks: a server over HTTP, or a ledger."""

import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar

import click
from rollout_control_server.ledger import CaptureLedger
from rollout_control_spec import AUTH_TOKEN_VARIABLE, LEDGER_VARIABLE, URL_VARIABLE

from rollout_control_console.ledgers import LEDGER_HELP, ledger_errors_end_command, open_named_ledger

if TYPE_CHECKING:
    import rollout_control_client as client
    from rollout_control_server.ledger import results

__all__ = ["Rollout", "RolloutSource", "open_source", "source_errors_end_command", "source_options"]

F = TypeVar("F", bound=Callable[..., Any])

REQUEST_TIMEOUT_S: Final = 60.0
"""Seconds for one request; a server answers the longest one, a batch of 4096 ids, in a small part of that."""


Rollout: TypeAlias = "client.ListedRollout | results.RolloutEntry"
"""A rollout of a listing, as a server or as a ledger describes it."""


class RolloutSource(Protocol):
    """Lists rollouts, and retires those that are idle. RolloutControlClient is one."""

    def rollouts(
        self, *, state: Literal["live", "retired"] | None = None, prefix: str | None, idle_for_s: float | None
    ) -> AsyncIterator[Rollout]:
        """Iterates over the rollouts that all of the filters match, in the order of their ids."""

    async def retire_idle(
        self, rollout_ids: Sequence[str], idle_for_s: float
    ) -> "client.IdleRemoval | results.IdleRemoval":
        """Retires those of the rollouts whose last row is at least so many seconds old."""


class _LedgerSource:
    """A ledger as a source."""

    def __init__(self, ledger: CaptureLedger) -> None:
        self._ledger = ledger
        self.retire_idle = ledger.retire_idle

    async def rollouts(
        self,
        *,
        state: Literal["live", "retired"] | None = None,
        prefix: str | None = None,
        idle_for_s: float | None = None,
    ) -> AsyncIterator[Rollout]:
        after = None
        while True:
            page = await self._ledger.rollouts(state=state, prefix=prefix or "", idle_for_s=idle_for_s, after=after)
            for rollout in page.rollouts:
                yield rollout
            if page.next is None:
                return
            after = page.next


def source_options(command: F) -> F:
    """Gives a command the options --url and --ledger, of which it gets one and None for the other."""
    url = click.option(
        "--url",
        metavar="URL",
        help=f"Ask this server, with the token in {AUTH_TOKEN_VARIABLE}. [env var: {URL_VARIABLE}]",
    )
    ledger = click.option(
        "--ledger",
        "ledger_url",
        metavar="URL",
        help=f"Open this ledger instead: {LEDGER_HELP} [env var: {LEDGER_VARIABLE}]",
    )
    return url(ledger(command))


def open_source(url: str | None, ledger_url: str | None) -> AbstractAsyncContextManager[RolloutSource]:
    """Returns the source that the options name, or the environment where neither option is given.

    Raises:
        click.UsageError: Both are named, or none, or what is named cannot be asked.
    """
    where = "options"
    if url is None and ledger_url is None:
        where = "environment variables"
        url, ledger_url = os.environ.get(URL_VARIABLE) or None, os.environ.get(LEDGER_VARIABLE) or None
    if url is not None and ledger_url is not None:
        raise click.UsageError(
            f"both a server and a ledger are named by {where}; name one of them with --url or --ledger"
        )
    if url is not None:
        return _server(url)
    if ledger_url is not None:
        return _ledger(open_named_ledger(ledger_url, create=False))
    raise click.UsageError(
        f"name a server with --url or {URL_VARIABLE}, or a ledger with --ledger or {LEDGER_VARIABLE}"
    )


def _server(url: str) -> AbstractAsyncContextManager[RolloutSource]:
    from rollout_control_client import RolloutControlClient

    auth_token = os.environ.get(AUTH_TOKEN_VARIABLE, "")
    if not auth_token:
        raise click.UsageError(f"set {AUTH_TOKEN_VARIABLE} to the bearer token that the server takes")
    try:
        return RolloutControlClient(url, auth_token, REQUEST_TIMEOUT_S)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@asynccontextmanager
async def _ledger(ledger: CaptureLedger) -> AsyncIterator[RolloutSource]:
    async with ledger:
        yield _LedgerSource(ledger)


class SourceUnusableError(click.ClickException):
    """The server, the token or the URL has to be changed before another attempt can succeed."""

    exit_code = 2


@contextmanager
def source_errors_end_command() -> Iterator[None]:
    """Ends the command with an error of a source: exit status 1 where another attempt may succeed, else 2.

    Raises:
        click.ClickException: For each LedgerError and RequestFailedError that is raised in the block.
    """
    from rollout_control_client import (
        RemovalRefusedError,
        RequestFailedError,
        RequestTimedOutError,
        ServerUnreachableError,
        ServiceUnavailableError,
    )

    try:
        with ledger_errors_end_command():
            yield
    except (RemovalRefusedError, RequestTimedOutError, ServerUnreachableError, ServiceUnavailableError) as error:
        raise click.ClickException(str(error)) from error
    except RequestFailedError as error:
        raise SourceUnusableError(str(error)) from error
