"""Whether `headrace cost simulate` is right: ranks, simulated and measured.

    python benchmarks/cluster/scaling.py

Runs of one and of two ranks are measured and simulated with one, two, four and eight ranks; then
each number is run. Ranks are real and synchronise by DDP over gloo; preparation and device wait and
need no core, so that eight ranks and their workers fit on a small machine. One job waits for its
device, one for its loader, one for both. Then all are simulated with 64 ranks. Writes a section of
docs/cost.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from launches import headrace  # noqa: E402

from cpu_steal import run_undisturbed  # noqa: E402 - stands above this folder
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "cost.md"
RANKS = (1, 2, 4, 8)
MEASURED = (1, 2)
FAR = 64
STEPS, STEP_MS, PREPARE_MS = 80, 400, 160
"""So long that what ranks and workers do on cores, which hosts of their own would have, is a small
part of a step."""
JOBS = {"waits for its device": 5, "waits for both": 3, "waits for its loader": 2}
"""What a job waits for, and the workers of each rank: three make a batch in a step's time."""


@dataclass(frozen=True, slots=True)
class Result:
    """A number of ranks of a job; samples a second."""

    job: str
    of_ranks: int  # of the run from which it was simulated
    ranks: int
    simulated: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """Of the simulated throughput."""
        return self.simulated / self.measured - 1.0


def main() -> None:
    """Simulate, measure, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    results: list[Result] = []
    far: list[tuple[str, dict[str, Any]]] = []
    for job in JOBS:
        with tempfile.TemporaryDirectory() as folder:
            found, jobs_of_64 = compare(job, options.rounds, Path(folder))
        results += found
        far += [(job, each) for each in jobs_of_64]
    publish(results, far, dry=options.dry)


def compare(job: str, rounds: int, folder: Path) -> tuple[list[Result], list[dict[str, Any]]]:
    """Return what was simulated and measured of a job, and what of many ranks."""
    rates = {}
    for ranks in RANKS:
        found = [
            run_undisturbed(
                lambda number, ranks=ranks, turn=turn: run(  # type: ignore[misc]
                    job, ranks, folder / f"{ranks}-{turn}-{number}"
                )
            )
            for turn in range(rounds)
        ]
        rates[ranks] = median(found)
        print(f"{job}: {ranks} ranks: {rates[ranks]:.1f}/s", flush=True)
    results, far = [], []
    for measured in MEASURED:
        latest = max(folder.glob(f"{measured}-*"), key=lambda path: path.stat().st_mtime)
        simulated = simulation_of(latest)
        for each in simulated:
            if each["ranks"] in rates:
                value = each["samples_per_s"]
                results.append(Result(
                    job, measured, each["ranks"], value["value"], value["low"], value["high"],
                    rates[each["ranks"]],
                ))  # fmt: skip
                print(results[-1], f"{results[-1].error:+.1%}", flush=True)
        far.append(simulated[-1])
    return results, far


def run(job: str, ranks: int, run_dir: Path) -> float:
    """Run a job with a number of ranks; return its samples a second after the first steps."""
    arguments = ["--steps", str(STEPS), "--workers", str(JOBS[job])]
    arguments += ["--step-ms", str(STEP_MS), "--prepare-ms", str(PREPARE_MS)]
    flags = ["--nproc-per-node", str(ranks), "--run-dir", str(run_dir)]
    (found,) = headrace("scaled.py", arguments, *flags)
    return float(found["samples"] / found["seconds"])


def simulation_of(run_folder: Path) -> list[dict[str, Any]]:
    """Return what `headrace cost simulate` says of a run, by the number of ranks."""
    command = [sys.executable, "-m", "headrace.cli.main", "cost", "simulate", str(run_folder)]
    command += ["--ranks", str(FAR), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(ended.stdout)["jobs"]
    return found


def publish(results: list[Result], far: list[tuple[str, dict[str, Any]]], *, dry: bool) -> None:
    """Print the tables and write them to the page."""
    table = [
        "| job | measured with | ranks | simulated, /s | 90 % interval | measured, /s | error |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {each.job} | {each.of_ranks} | {each.ranks} | {each.simulated:.1f} | "
            f"{each.low:.1f} to {each.high:.1f} | {each.measured:.1f} | {each.error:+.1%} |"
            for each in results
        ),
        "",
        f"| job, with {FAR} ranks | of a run of | efficiency | 90 % interval | stragglers | sync |",
        "|---|---|---|---|---|---|",
        *(
            f"| {job} | {measured} | {each['efficiency']['value']:.1%} | "
            f"{each['efficiency']['low']:.1%} to {each['efficiency']['high']:.1%} | "
            f"{each['straggler_share']:.1%} | {each['sync_share']:.1%} |"
            for (job, each), measured in zip(far, MEASURED * len(JOBS), strict=True)
        ),
        "",
    ]
    rows = []
    for measured in MEASURED:
        errors = [abs(each.error) for each in results if each.of_ranks == measured]
        held = [each.low <= each.measured <= each.high for each in results
                if each.of_ranks == measured]  # fmt: skip
        of_runs = f"simulated of runs of {measured}"
        rows += [
            Row(f"error at {len(RANKS)} numbers of ranks, {of_runs}: the worst of {len(errors)}",
                [max(errors)], "<= 0.05" if measured > 1 else ""),
            Row("... share of intervals that hold what was measured", [sum(held) / len(held)],
                ">= 0.9"),
        ]  # fmt: skip
    command = "python benchmarks/cluster/scaling.py"
    write_section("Many ranks, simulated and measured", command, table, rows, page=PAGE, dry=dry)


if __name__ == "__main__":
    main()
