"""The command `rollout-control`: the list of its subcommands, each a module of this package."""

import click

from rollout_control_console.check import check
from rollout_control_console.copy import copy
from rollout_control_console.demo.command import demo
from rollout_control_console.fences import forget_fences
from rollout_control_console.retire import retire
from rollout_control_console.serve import serve
from rollout_control_console.verify import verify

__all__ = ["rollout_control"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rollout-control")
def rollout_control() -> None:
    """The control plane between model servers and trainers: read, retire and delete capture ledgers."""


for subcommand in (serve, check, demo, retire, forget_fences, copy, verify):
    rollout_control.add_command(subcommand)
