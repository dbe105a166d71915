"""The fault matrix: each fault at many seeds, and what has to come of it.

    python benchmarks/faults/run.py --seeds 20
    python benchmarks/faults/run.py --rows reset,ctrl_c --first-seed 7 --seeds 1

Everything is real: an S3 server behind a proxy that makes faults, processes that are killed, disks
that are full. The oracle is a ledger of each sample's key and pixels. A row fails where a sample
is lost, comes twice or has other bytes, where something hangs, or where a figure is beyond its
limit. Each case can be repeated by its seed. Writes docs/faults.md.
"""

from __future__ import annotations

import argparse
import os
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
            f"| {passed} |"
        )


def main() -> None:
    """Run the chosen rows; exit 1 where one did not pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", help="names of functions, by commas; default: all")
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    names = options.rows.split(",") if options.rows else [row.run.__name__ for row in ROWS]
    rows = [row for row in ROWS if row.run.__name__ in names]
    if len(rows) != len(names):
        parser.error(f"--rows: there are {', '.join(row.run.__name__ for row in ROWS)}.")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with tempfile.TemporaryDirectory() as temporary, s3_server(Path(temporary) / "s3") as server:
        os.environ.update(server.environment())
        outcomes = [run_row(row, seeds, Path(temporary), server) for row in rows]
    publish(outcomes, options)
    sys.exit(1 if any(each.failures or each.beyond() for each in outcomes) else 0)


def run_row(row: Row, seeds: range, temporary: Path, server: S3Server) -> Outcome:
    """Run a row at each of its seeds."""
    outcome = Outcome(row)
    began_s = time.monotonic()
    for seed in list(seeds)[:: row.every]:
        folder = temporary / row.run.__name__ / f"{seed}"
        folder.mkdir(parents=True)
        try:
            outcome.figures.append(row.run(Case(folder=folder, seed=seed, server=server)))
        except Exception as error:  # noqa: BLE001 - every failure is a result
            outcome.failures.append(f"seed {seed}: {type(error).__name__}: {error}")
            traceback.print_exc()
    outcome.seconds = time.monotonic() - began_s
    print(outcome.line(), f"({outcome.seconds:.0f} s)", flush=True)
    return outcome


def publish(outcomes: list[Outcome], options: argparse.Namespace) -> None:
    """Print the table, and write it to the page unless it is only a try."""
    lines = [
        "| fault | passes if | cases | failed | medians | passed |", "|---|---|---|---|---|---|",
        *(each.line() for each in outcomes), "",
        *(f"- {each.row.fault}: {why}" for each in outcomes
          for why in (*each.failures, *each.beyond())),
    ]  # fmt: skip
    command = f"python benchmarks/faults/run.py --seeds {options.seeds}"
    section = "\n".join(["## Matrix", "", f"`{command}` · {machine()}", "", *lines, ""])
    print(section)
    if options.dry or options.rows:
        return
    text = PAGE.read_text()
    before, _, after = text.partition("## Matrix\n")
    rest = after.partition("\n## ")[2]
    PAGE.write_text(before + section + (f"\n## {rest}" if rest else ""))


if __name__ == "__main__":
    main()
