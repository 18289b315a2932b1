"""`python -m bench [PART ...]`: measures the parts that are named, or all of them and writes RESULTS.md.

`nox -s bench -- PART ...` installs what this needs and calls it.
"""

import argparse
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from bench import report
from bench.results import PartReport
from bench.rounds import CannotMeasureError, WrongAnswerError, disturbance

PARTS = ("http", "record", "adapter", "growth", "removal", "client", "memory", "imports", "held", "sustained")


def main() -> None:
    parser = argparse.ArgumentParser(prog="nox -s bench --", description="Measures ours beside nemo-gym and the limit.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"measure only these, of {', '.join(PARTS)}")
    chosen = parser.parse_args().parts
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    begun = time.monotonic()
    reports: list[PartReport] = []
    try:
        for name in chosen or PARTS:
            print(f"{name} ...", flush=True)
            reports.append(_measure(name))
            report.print_results(reports[-1].results)
    except (CannotMeasureError, WrongAnswerError) as error:
        sys.exit(f"{name}: {error}\nNothing of this run is reported.")
    if not chosen:
        report.write(reports, disturbance, time.monotonic() - begun)


def _measure(name: str) -> PartReport:
    # In the checkout, because a system's folder of temporary files may be no disk at all.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as folder:
        part: PartReport = import_module(f"bench.{name}").run(Path(folder).absolute())
        return part


if __name__ == "__main__":
    main()
