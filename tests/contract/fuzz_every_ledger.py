"""Fuzzes the real server process over HTTP by the spec, on each kind of ledger, then checks its semantics.

Run by `nox -s contract`. schemathesis goes through all its phases with the configuration that others can copy, the same
way each time; `rollout-control check` then has rows recorded by a command, where the ledger can be shared.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from postgres_server import running_postgres

TOKEN = "the-token-of-the-fuzzing"
LEDGERS = ("memory", "sqlite", "postgres")
RECORDING_SERVER = Path(__file__).with_name("recording_server.py")


@contextmanager
def ledger_url(kind: str) -> Iterator[str]:
    if kind == "memory":
        yield "memory://"
    elif kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/ledger.sqlite"
    else:
        with running_postgres() as server:
            yield server.url


@contextmanager
def recording_server(url: str) -> Iterator[str]:
    command = [sys.executable, str(RECORDING_SERVER), url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        try:
            yield base_url
        finally:
            process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"the server on {url} ended with status {process.returncode}")


def fuzz(base_url: str, max_examples: int) -> int:
    with as_file(files("rollout_control_spec")) as spec, as_file(files("rollout_control_check")) as package:
        command = ["--config-file", str(package / "schemathesis.toml"), "run", str(spec / "openapi.yaml")]
        options = ["--url", base_url, "--max-examples", str(max_examples)]
        return subprocess.run([sys.executable, "-m", "schemathesis.cli", *command, *options], check=False).returncode


def check(base_url: str, url: str) -> int:
    command = ["check", base_url, "--max-examples", "0"]
    if not url.startswith("memory"):
        record = f"{sys.executable} -m rollout_control_server.record_rows {url}"
        command += ["--record-command", record]
    return subprocess.run([sys.executable, "-m", "rollout_control_console", *command], check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", action="append", choices=LEDGERS, help="one kind; all, if it is not given")
    parser.add_argument("--max-examples", type=int, default=40, help="cases for each operation and phase")
    options = parser.parse_args()
    os.environ["ROLLOUT_CONTROL_AUTH_TOKEN"] = TOKEN
    failed = []
    for kind in options.ledger or LEDGERS:
        started_at = time.monotonic()
        with ledger_url(kind) as url, recording_server(url) as base_url:
            if fuzz(base_url, options.max_examples):
                failed.append(f"fuzzing on {kind}")
            if check(base_url, url):
                failed.append(f"check on {kind}")
        print(f"{kind}: {time.monotonic() - started_at:.0f} s", flush=True)
    if failed:
        raise SystemExit(f"FAILED: {', '.join(failed)}")


if __name__ == "__main__":
    main()
