"""The command `rollout-control`, also as `python -m rollout_control_server`."""

import sys


def main() -> None:
    """Runs the command, or says what to install where only the client is."""
    try:
        from rollout_control_server.cli import rollout_control
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rollout_control"):
            raise
        sys.exit(f"rollout-control needs {error.name!r}, of the server extra: pip install 'rollout-control[server]'")
    rollout_control()


if __name__ == "__main__":
    main()
