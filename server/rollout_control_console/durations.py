"""Durations as the options of commands give them: a number and its unit, such as `12h`."""

import re
from datetime import timedelta
from typing import Final

import click

__all__ = ["parse_duration"]

DURATION_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_duration(text: str) -> timedelta:
    """Returns the duration that an option gives, a number and its unit, such as `12h`.

    Raises:
        click.BadParameter: It is none, or is longer than a timedelta can be.
    """
    found = re.fullmatch(r"([0-9]+)([smhd])", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration: write a number and s, m, h or d, such as 30d or 12h")
    try:
        return timedelta(**{DURATION_UNITS[found[2]]: int(found[1])})
    except (OverflowError, ValueError) as error:
        raise click.BadParameter(f"{text!r} is longer than {timedelta.max.days} days") from error
