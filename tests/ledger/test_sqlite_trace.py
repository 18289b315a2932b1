"""The order of system calls: a record is told as acknowledged only after the sync of the WAL that holds it.

Where strace is missing, `nox -s tests` skips this and says so, and `nox -s crash` fails.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, sys
import apsw
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.samples import sample_commit

path, synchronous = sys.argv[1:]

class Connection(apsw.Connection):
    def execute(self, sql, *parameters):
        return super().execute(sql.replace("synchronous = FULL", f"synchronous = {synchronous}"), *parameters)

apsw.Connection = Connection

async def main():
    async with SqliteLedger(path) as ledger:
        for index in range(10):
            await ledger.record(sample_commit("r", f"c{index}"))
            os.write(2, b"acknowledged c%d\\n" % index)

asyncio.run(main())
"""

WAL_WRITE = re.compile(r"(?:pwrite64|write|pwritev)\(\d+<[^>]*-wal>")
WAL_SYNC = re.compile(r"(?:fsync|fdatasync)\(\d+<[^>]*-wal>.* = 0$|(?:fsync|fdatasync) resumed.* = 0$")
ACKNOWLEDGEMENT = re.compile(r'write\(2[<,].*"acknowledged c\d')


def find_strace() -> str | None:
    """Returns where strace is, if it is installed and may trace: some containers forbid it."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    probe = subprocess.run([strace, "-o", os.devnull, sys.executable, "-c", ""], capture_output=True, check=False)
    return strace if probe.returncode == 0 else None


def trace(path: Path, synchronous: str) -> list[str]:
    """Returns the system calls of a process that records ten calls, in the order in which they were begun."""
    strace = find_strace()
    if strace is None:
        refuse = pytest.fail if "LEDGER_KILLS" in os.environ else pytest.skip
        refuse("THE SYNC BEFORE AN ACKNOWLEDGEMENT WAS NOT CHECKED: install strace, and allow it to trace (ptrace)")
    log = path.with_suffix(".trace")
    tracer = (strace, "-f", "-y", "-s", "32", "-e", "trace=write,pwrite64,pwritev,fsync,fdatasync", "-o", log)
    subprocess.run(
        [*tracer, sys.executable, "-c", PROGRAM, path, synchronous],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return log.read_text().splitlines()


def unsynced_acknowledgements(calls: list[str]) -> int:
    """Counts the acknowledgements that come while something that was written to the WAL is not synced."""
    synced = True
    early = 0
    acknowledged = 0
    for call in calls:
        if WAL_WRITE.search(call):
            synced = False
        elif WAL_SYNC.search(call):
            synced = True
        elif ACKNOWLEDGEMENT.search(call):
            acknowledged += 1
            early += not synced
    assert acknowledged == 10, "the trace does not show the acknowledgements"
    assert any(WAL_WRITE.search(call) for call in calls), "the trace does not show the writes to the WAL"
    return early


def test_the_wal_is_synced_before_a_record_is_acknowledged(tmp_path: Path) -> None:
    assert unsynced_acknowledgements(trace(tmp_path / "ledger.sqlite", "FULL")) == 0


def test_the_trace_would_show_it_if_the_wal_was_not_synced(tmp_path: Path) -> None:
    assert unsynced_acknowledgements(trace(tmp_path / "ledger.sqlite", "OFF")) == 10
