"""Importing a client and making its first request, in a new process each time."""

import subprocess
import sys
from functools import partial
from pathlib import Path

from bench.http import prepare
from bench.results import PartReport, Result, times_better
from bench.rounds import alternate
from bench.rows import sample_rollouts
from bench.servers import serving


def run(folder: Path) -> PartReport:
    rollouts = sample_rollouts("r", 1, 20)
    prepare(folder, rollouts)
    with serving("ours", folder) as server:
        measures = {side: partial(_first_request_ms, side, server.base_url) for side in ("ours", "peer", "limit")}
        rounds = alternate(measures, rounds=7, pids=[server.pid])
    work = "import of the client and its first request, together"
    return PartReport(
        [Result(work, "ms", rounds, [times_better(4, "a quarter")], "import httpx and a request of its own")]
    )


def _first_request_ms(side: str, base_url: str) -> float:
    command = [sys.executable, "-m", "bench.first_request", side, base_url, "r-00000"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return 1000 * float(output.split()[-1])
