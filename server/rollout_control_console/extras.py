"""Names the extra that a command needs, where its libraries are not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

__all__ = ["requires_extra"]


@contextmanager
def requires_extra(extra: str) -> Iterator[None]:
    """Turns a failed import of a library into a message that names the extra to install.

    Args:
        extra: The extra that brings the libraries imported in the block.

    Raises:
        click.UsageError: A library is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rollout_control"):
            raise
        command = click.get_current_context().info_name
        raise click.UsageError(
            f"{command} needs {error.name!r}, of the {extra} extra: pip install 'rollout-control[{extra}]'"
        ) from error
