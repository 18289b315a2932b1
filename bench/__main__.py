"""`python -m bench [PART ...]`: measures the parts, or all of them. `nox -s bench` calls it."""

import argparse
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from bench.rounds import CannotMeasureError, WrongAnswerError
from bench.results import PartReport

PARTS = {
    **{
        name: f"bench.{name}"
        for name in ("http", "record", "growth", "adapter", "memory", "imports", "client", "removal")
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="nox -s bench --", description="Measures ours beside nemo-gym and the limit.")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="measure only these")
    chosen = parser.parse_args().parts or list(PARTS)
    reports: dict[str, PartReport] = {}
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=Path.cwd()) as folder:
            reports[name] = import_module(PARTS[name]).run(Path(folder))
        for result in reports[name].results:
            print(
                result.work,
                {side: result.median(side) for side in ("ours", "peer", "limit")},
                [round(x, 2) for x in result.times_better("peer")],
                [round(x, 2) for x in result.times_better("limit")],
                result.reached,
                flush=True,
            )


if __name__ == "__main__":
    main()
