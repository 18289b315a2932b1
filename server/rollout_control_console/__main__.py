"""Runs the command `rollout-control`, also as `python -m rollout_control_console`."""

import sys

_NO_EXTRA = """\
rollout-control needs an extra, and this installation has none:
  pip install 'rollout-control[server]'  to serve, for the demo and for work on ledgers
  pip install 'rollout-control[check]'   to check a server
  pip install 'rollout-control[cli]'     for the rest\
"""


def main() -> None:
    """Runs the command; without the libraries of any extra, says what to install and exits with 1."""
    try:
        from rollout_control_console.cli import rollout_control
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.exit(_NO_EXTRA)
    rollout_control()


if __name__ == "__main__":
    main()
