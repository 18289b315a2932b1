"""Load from outside of the server's process, by wrk, which is far from its own limit here.

Each connection sends its next request when it has the answer to the one before. So a server that stalls is asked less
often meanwhile, and the percentiles are not corrected for that (coordinated omission).
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.rounds import CannotMeasureError, WrongAnswerError
from bench.servers import AUTHORIZATION, ServerProcess, manifest_path

# Each request asks for the next rollout, so that every answer is read from the ledger anew.
_SCRIPT = """
local requests, last = {}, 0
init = function(args)
  for path in io.lines(args[1]) do requests[#requests + 1] = wrk.format("GET", path) end
end
request = function()
  last = last % #requests + 1
  return requests[last]
end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d %d %f\\n", summary.requests, summary.duration, summary.bytes,
    e.connect + e.read + e.write + e.status + e.timeout, latency:percentile(50)))
end
"""


_HEADERS_BYTES = 400


@dataclass(frozen=True)
class Load:
    requests_per_s: float
    p50_ms: float


def require_wrk() -> str:
    """Returns where wrk is.

    Raises:
        CannotMeasureError: It is not installed.
    """
    found = shutil.which("wrk")
    if found is None:
        raise CannotMeasureError("the load generator wrk is not installed: `apt-get install wrk`, then run this again")
    return found


def load(
    server: ServerProcess,
    rollout_ids: Sequence[str],
    *,
    connections: int,
    seconds: float,
    body_bytes: tuple[int, int],
    folder: Path,
) -> Load:
    """Asks for the manifests one after another, from so many connections.

    Args:
        server: Whom to ask.
        rollout_ids: Whose manifests.
        connections: How many requests are under way at any time.
        seconds: How long.
        body_bytes: The shortest and the longest body that is right.
        folder: Where wrk's script is written.

    Raises:
        WrongAnswerError: An answer was no 200, or the answers had another size than they should.
    """
    script, paths = folder / "load.lua", folder / "paths"
    script.write_text(_SCRIPT)
    paths.write_text("".join(manifest_path(rollout_id) + "\n" for rollout_id in rollout_ids))
    command = [
        *(require_wrk(), "--threads", "1", "--connections", str(connections), "--duration", f"{seconds:g}s"),
        *("--timeout", "30s", "--header", f"Authorization: {AUTHORIZATION}", "--script", str(script)),
        *(server.base_url, "--", str(paths)),
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) ([\d.]+)", output)
    if result is None:
        raise RuntimeError(f"wrk said something unexpected:\n{output}")
    requests, duration_us, received, errors, p50_us = map(float, result.groups())
    shortest, longest = body_bytes
    # The last answer of each connection is cut off.
    most = (requests + connections) * (longest + _HEADERS_BYTES)
    if errors or not requests or not requests * shortest <= received <= most:
        raise WrongAnswerError(f"wrk: {errors:g} errors in {requests:g} requests of {received:g} bytes\n{output}")
    return Load(requests / duration_us * 1e6, p50_us / 1000)
