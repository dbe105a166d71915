"""The fault matrix: each fault at many seeds, and what has to come of it.

    python benchmarks/faults/run.py --seeds 20
    python benchmarks/faults/run.py --seeds 20 --go-on  # after an interruption
    python benchmarks/faults/run.py --rows resets,ctrl_c --first-seed 7 --seeds 1

Everything is real: an S3 server behind a proxy that makes faults, processes that are killed, disks
that are full. The oracle is a ledger of each sample's key and pixels. A row fails where a sample
is lost, comes twice or has other bytes, where something hangs, or where a figure is beyond its
limit. Each case can be repeated by its seed. Each result is written to bench-data/ at once, and
docs/faults.md after each row.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "exactness"))

import exposure_rows
import process_rows
import sample_rows
import storage_rows
from matrix import Case, Figures, Row
from s3_server import S3Server, s3_server

from case_results import CaseResults
from report import ROOT, machine

PAGE = ROOT / "docs" / "faults.md"
ROWS = (*storage_rows.ROWS, *sample_rows.ROWS, *process_rows.ROWS, *exposure_rows.ROWS)


@dataclass(slots=True)
class Outcome:
    """How a row went at all its seeds."""

    row: Row
    figures: list[Figures] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def medians(self) -> dict[str, float]:
        """Return the median of each figure."""
        values: dict[str, list[float]] = defaultdict(list)
        for figures in self.figures:
            for name, value in figures.items():
                values[name].append(value)
        return {name: statistics.median(each) for name, each in values.items()}

    def beyond(self) -> list[str]:
        """Return the figures whose median is beyond the row's limit."""
        medians = self.medians()
        return [
            f"{name}: {medians[name]:.3g}, at most {limit:.3g}"
            for name, limit in self.row.limits.items()
            if medians.get(name, limit) > limit
        ]

    def line(self) -> str:
        """Return the row of the table."""
        figures = "; ".join(f"{name}: {value:.3g}" for name, value in self.medians().items())
        cases = len(self.figures) + len(self.failures)
        passed = "yes" if not self.failures and not self.beyond() else "**no**"
        return (
            f"| {self.row.fault} | {self.row.passes} | {cases} | {len(self.failures)} | {figures} "
            f"| {self.seconds / 60:.1f} | {passed} |"
        )


def main() -> None:
    """Run the chosen rows; exit 1 where one did not pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", help="names of functions, by commas; default: all")
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    parser.add_argument("--go-on", action="store_true", help="cases with a result are not repeated")
    options = parser.parse_args()
    # A shell starts what runs in its background with ctrl-C ignored, and jobs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    names = options.rows.split(",") if options.rows else [row.run.__name__ for row in ROWS]
    rows = [row for row in ROWS if row.run.__name__ in names]
    if len(rows) != len(names):
        parser.error(f"--rows: there are {', '.join(row.run.__name__ for row in ROWS)}.")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    results = CaseResults("faults", go_on=options.go_on)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as temporary, s3_server(Path(temporary) / "s3") as server:
        os.environ.update(server.environment())
        for row in rows:
            outcomes.append(run_row(row, seeds, Path(temporary), server, results))
            if not (options.dry or options.rows):
                write_page(outcomes, options)
    print(section_of(outcomes, options))
    sys.exit(1 if any(each.failures or each.beyond() for each in outcomes) else 0)


def run_row(
    row: Row, seeds: range, temporary: Path, server: S3Server, results: CaseResults
) -> Outcome:
    """Run a row at each of its seeds, but for cases that have a result."""
    outcome = Outcome(row)
    for seed in seeds:
        case = f"{row.run.__name__} {seed}"
        if results.get(case) is None:
            folder = temporary / row.run.__name__ / f"{seed}"
            folder.mkdir(parents=True)
            results.add(case, run_case(row, Case(folder=folder, seed=seed, server=server)))
            shutil.rmtree(folder, ignore_errors=True)  # twenty seeds would fill a small disk
        result = results.get(case)
        if result["failure"]:
            outcome.failures.append(f"seed {seed}: {result['failure']}")
        else:
            outcome.figures.append(result["figures"])
        outcome.seconds += result["seconds"]
    print(outcome.line(), flush=True)
    return outcome


def run_case(row: Row, case: Case) -> dict[str, object]:
    """Run a row at one seed; return its figures, failure ("" for none) and duration."""
    figures: Figures = {}
    failure = ""
    began_s = time.monotonic()
    try:
        figures = row.run(case)
    except Exception as error:  # noqa: BLE001 - every failure is a result
        failure = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    return {"figures": figures, "failure": failure, "seconds": time.monotonic() - began_s}


def section_of(outcomes: list[Outcome], options: argparse.Namespace) -> str:
    """Return the section of the page: the table, and what has failed."""
    lines = [
        "| fault | passes if | cases | failed | medians | minutes | passed |",
        "|---|---|---|---|---|---|---|",
        *(each.line() for each in outcomes), "",
        *(f"- {each.row.fault}: {why.splitlines()[0]}" for each in outcomes
          for why in (*each.failures, *each.beyond())),
    ]  # fmt: skip
    command = f"python benchmarks/faults/run.py --seeds {options.seeds}"
    return "\n".join(["## Matrix", "", f"`{command}` · {machine()}", "", *lines, ""])


def write_page(outcomes: list[Outcome], options: argparse.Namespace) -> None:
    """Write the section to the page, with the rows that have been run."""
    text = PAGE.read_text()
    before, _, after = text.partition("## Matrix\n")
    rest = after.partition("\n## ")[2]
    section = section_of(outcomes, options)
    PAGE.write_text(before + section + (f"\n## {rest}" if rest else ""))


if __name__ == "__main__":
    main()
