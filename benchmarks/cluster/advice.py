"""Whether `headrace cost advise` is right: other hosts, predicted and measured.

    python benchmarks/cluster/advice.py

One run on a g5.xlarge is measured, and asked for advice; then each of the mixes below is run.
Hosts are emulated: preparation and device wait and need no core, a host has as many workers as its
type has cores, and prices are EC2's. Two devices: of 250 and of 500 samples a second. Writes a
section of docs/cost.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from launches import headrace, rate  # noqa: E402

from cpu_steal import run_undisturbed  # noqa: E402 - stands above this folder
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "cost.md"
BATCH, PREPARE_MS = 8, 40.0
EPOCH_S = 15.0
SMALL = "g5.xlarge"
MIXES = (
    "g5.2xlarge", "g5.4xlarge", "g5.8xlarge",
    f"{SMALL} + c5.large", f"{SMALL} + c5.xlarge", f"{SMALL} + 2 x c5.xlarge",
    f"{SMALL} + c5.2xlarge", f"{SMALL} + 2 x c5.2xlarge", f"{SMALL} + c5.4xlarge",
)  # fmt: skip
STEPS_MS = (32.0, 16.0)
"""Of a batch of 8: a device of 250 samples/s, and one of 500."""
CORES = {
    "xlarge": 4, "2xlarge": 8, "4xlarge": 16, "8xlarge": 32, "large": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hosts:
    """A mix, read from its name."""

    name: str

    @property
    def groups(self) -> list[tuple[int, str]]:
        """(hosts, type) of the group that trains, and of auxiliary hosts."""
        parts = (re.fullmatch(r"(?:(\d+) x )?(\S+)", part) for part in self.name.split(" + "))
        return [(int(part[1] or 1), part[2]) for part in parts if part is not None]

    @property
    def cores(self) -> list[int]:
        """Of all hosts of each group together."""
        return [hosts * CORES[kind.split(".")[1]] for hosts, kind in self.groups]

    def flags(self) -> list[str]:
        """Those of `headrace run`."""
        found = ["--engine", "ray"]
        for group, (hosts, kind) in zip(("gpu", "cpu"), self.groups, strict=False):
            found += ["--group", f"{group}={hosts}x{kind}"]
        return [*found, "--offload", "cpu"] if len(self.groups) > 1 else found


def main() -> None:
    """Predict, measure, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps-ms", type=float, nargs="+", default=STEPS_MS)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    results = [
        result for step_ms in options.steps_ms for result in compare(step_ms, options.rounds)
    ]
    publish(results, dry=options.dry)


@dataclass(frozen=True, slots=True)
class Result:
    """A mix for a device; rates in samples a second, and dollars for 1,000 samples."""

    step_ms: float
    name: str
    predicted: float
    measured: float
    held: bool  # within the interval
    predicted_usd: float
    measured_usd: float

    @property
    def error(self) -> float:
        """Of the predicted throughput."""
        return self.predicted / self.measured - 1.0


def compare(step_ms: float, rounds: int) -> list[Result]:
    """Return what was predicted of each mix for a device, and measured."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder, "base")
        alone = run_undisturbed(lambda number: run(Hosts(SMALL), step_ms, base / str(number)))
        print(f"{step_ms} ms: {SMALL}: {alone:.1f}", flush=True)
        latest = max(base.iterdir(), key=lambda path: path.stat().st_mtime)
        advice = advice_of(latest)
        found = []
        for name in (SMALL, *MIXES):
            rates = [
                run_undisturbed(lambda _, name=name: run(Hosts(name), step_ms))  # type: ignore[misc]
                for _ in range(rounds)
            ]
            found.append(result_of(step_ms, name, median(rates), advice))
            print(found[-1], flush=True)
    return found


def run(hosts: Hosts, step_ms: float, run_dir: Path | None = None) -> float:
    """Run the script on hosts; return its samples a second after the first epoch."""
    cores = hosts.cores
    ideal = min(sum(cores) * 1000 / PREPARE_MS, BATCH * 1000 / step_ms)
    samples = int(EPOCH_S * ideal) // BATCH * BATCH
    arguments = ["--samples", str(samples), "--batch", str(BATCH), "--workers", str(cores[0])]
    arguments += ["--step-ms", str(step_ms), "--prepare-ms", str(PREPARE_MS)]
    with tempfile.TemporaryDirectory() as folder:
        place = run_dir or Path(folder, "run")
        return rate(headrace("advised.py", arguments, *hosts.flags(), "--run-dir", str(place)))


def advice_of(run_folder: Path) -> dict[str, Any]:
    """Return what `headrace cost advise` says of a run."""
    command = [sys.executable, "-m", "headrace.cli.main", "cost", "advise", str(run_folder)]
    ended = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def result_of(step_ms: float, name: str, measured: float, advice: dict[str, Any]) -> Result:
    """Return a mix's result."""
    # With its number of workers behind it, where that changes.
    mix = next(each for each in advice["mixes"] if each["name"].split(",")[0] == name)
    rates = mix["samples_per_s"]
    return Result(
        step_ms=step_ms,
        name=name,
        predicted=rates["value"],
        measured=measured,
        held=rates["low"] <= measured <= rates["high"],
        predicted_usd=mix["usd_per_1k_samples"]["value"],
        measured_usd=mix["usd_per_hour"] / 3.6 / measured,
    )


def advised_among(results: list[Result]) -> Result:
    """Return the mix whose samples are predicted to be the cheapest, of those that were run."""
    return min(results, key=lambda result: result.predicted_usd)


def publish(results: list[Result], *, dry: bool) -> None:
    """Print the table and write it to the page."""
    others = [result for result in results if result.name != SMALL]
    table = [
        "| device | hosts | predicted, /s | measured, /s | error | $/1,000, predicted | measured |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {BATCH * 1000 / each.step_ms:.0f}/s | {each.name} | {each.predicted:.0f} | "
            f"{each.measured:.0f} | {each.error:+.1%} | {each.predicted_usd:.5f} | "
            f"{each.measured_usd:.5f} |"
            for each in results
        ),
        "",
    ]
    errors = [abs(each.error) for each in others]
    choices = []
    for step_ms in dict.fromkeys(each.step_ms for each in results):
        own = [each for each in results if each.step_ms == step_ms]
        best = min(each.measured_usd for each in own)
        choices.append(advised_among(own).measured_usd / best)
    rows = [
        Row(f"error of predicted throughput, median of {len(errors)} mixes", [median(errors)],
            "<= 0.05"),
        Row("... the worst", [max(errors)], "<= 0.1"),
        Row("... share of intervals that hold what was measured",
            [sum(each.held for each in others) / len(others)], ">= 0.9"),
        Row("$ per 1,000 samples of the mix that is predicted to be the cheapest / of the cheapest",
            choices, "<= 1.05"),
    ]  # fmt: skip
    command = "python benchmarks/cluster/advice.py"
    write_section("Advice against measurement", command, table, rows, page=PAGE, dry=dry)


if __name__ == "__main__":
    main()
