"""What SIGINT and SIGTERM do to a command that has to clean up before it ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

__all__ = ["ENDING_SIGNALS", "INTERRUPTED", "InterruptionError", "first_signal_raises"]

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

INTERRUPTED: Final = 130
"""The exit status that shells give for SIGINT."""


class InterruptionError(BaseException):
    """A signal came. No KeyboardInterrupt, at which `subprocess` and click do things of their own."""


@contextmanager
def first_signal_raises() -> Iterator[None]:
    """Has the first SIGINT or SIGTERM raise InterruptionError; further ones don't disturb the cleaning up.

    Nor do they disturb the process as it ends then. If none came, one that comes after this ends the process at once.
    """
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if not came:
            came = True
            raise InterruptionError(signal.Signals(number).name)

    for number in ENDING_SIGNALS:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        # A handler is taken away early in the interpreter's end, and a signal would then be the exit status.
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN if came else signal.SIG_DFL)
