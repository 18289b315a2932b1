"""How long to wait between attempts at something that fails for now."""

import random
from collections.abc import Iterator

__all__ = ["pauses"]


def pauses(first_s: float, longest_s: float) -> Iterator[float]:
    """Yields the seconds to wait after each attempt, without end.

    Each pause is twice as long as the one before, up to the longest. Each is shortened at random, by up to a half, so
    that processes that failed together do not try again together.

    Args:
        first_s: The first pause, before it is shortened.
        longest_s: The longest pause, before it is shortened.
    """
    pause_s = first_s
    while True:
        yield pause_s * random.uniform(0.5, 1.0)
        pause_s = min(2 * pause_s, longest_s)
