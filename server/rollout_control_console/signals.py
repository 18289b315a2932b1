"""What SIGINT and SIGTERM do to a command that has to clean up before it ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

__all__ = ["ENDING_SIGNALS", "INTERRUPTED", "InterruptionError", "first_signal_raises"]

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

INTERRUPTED: Final = 130
"""The exit status of an interrupted command, which shells give for SIGINT."""


class InterruptionError(BaseException):
    """A signal came. It is no KeyboardInterrupt, because `subprocess` and click handle that one by themselves."""


@contextmanager
def first_signal_raises() -> Iterator[None]:
    """Has the first SIGINT or SIGTERM in the block raise InterruptionError. Later ones are ignored.

    They are also ignored after the block, so that the process can end with its own exit status. If no signal came in
    the block, one that comes after it ends the process at once, as usual.

    Raises:
        InterruptionError: In the block, with the signal's name.
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
        # The interpreter removes handlers of Python's early in its end. A signal after that would be the exit status.
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN if came else signal.SIG_DFL)
