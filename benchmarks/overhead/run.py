"""What recording costs: steps recorded against steps not recorded, in turns within one process.

    python benchmarks/overhead/run.py

The switch that `headrace profile` turns is turned every second or so: off, on, on, off, off, deep,
deep, off, and so on. Each block is compared with its neighbour that was off.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from images import make_folder
from report import Row, write_section

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "overhead.md"
CASES = {
    "loader-bound": "2 workers decode JPEGs as fast as they can; both cores are full",
    "device-bound": "steps of 20 ms on an emulated device, 2 workers with little to do",
    "short-steps": "steps of half a millisecond, no workers: the worst there is",
}
STEPS = {"loader-bound": 40, "device-bound": 40, "short-steps": 2000}
"""Steps of a block that count."""
TARGETS = {"on": "<= 1.01", "deep": "<= 1.05"}
SHARES = {"loader-bound", "device-bound"}
"""Cases whose overhead is promised as a share of the step."""
PAIRS = ((0, 1), (3, 2), (4, 5), (7, 6))  # of 8 blocks: the one that is off, its neighbour
NOTES = """
Each row is the time of recorded steps over that of steps not recorded, in one process, in blocks
that take turns, so that other work on the machine meets both alike. Two cores run the training
process, two workers and the process that collects. "Deep" leaves out the four steps that run under
torch.profiler, which are for a trace and several times slower. Off means switched off in a run
that was started with recording; a run started with `--profile off` has no hook in it at all.

Recording costs a step a part of a millisecond, whatever the step takes; so short steps have no
target as a share, and "us a step" says from which length on it is below 1 %.
"""


def main() -> None:
    """Run all cases and write docs/overhead.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=48)
    parser.add_argument("--data", type=Path, default=Path("bench-data/loader/images"))
    options = parser.parse_args()
    make_folder(options.data, 2000)
    rows: list[Row] = []
    table = [NOTES.strip(), "", "| case | what it is | step, off |", "|---|---|---|"]
    for case, meaning in CASES.items():
        with trained(case, options, "on") as run:
            blocks = [json.loads(line) for line in run.lines]
            written = sum(file.stat().st_size for file in run.folder.glob("records/**/*.parquet"))
        seconds = sum(block["step_ms"] for block in blocks) * (STEPS[case] + 6) / 1000
        off = [block["step_ms"] for block in blocks if block["mode"] == "off"]
        table.append(f"| {case} | {meaning} | {sorted(off)[len(off) // 2]:.3g} ms |")
        rows += [
            Row(f"{case}, {mode} / off", ratios(blocks, mode), target if case in SHARES else "")
            for mode, target in TARGETS.items()
        ]
        rows.append(Row(f"{case}, on less off, us a step", costs_us(blocks), ""))
        rows.append(Row(f"{case}, MB written an hour", [written / seconds * 3600 / 1e6], ""))
    memory = {mode: memory_mb(options, mode) for mode in ("off", "on")}
    rows.append(Row("memory of all processes, on less off, MB", [memory["on"] - memory["off"]], ""))
    command = f"python benchmarks/overhead/run.py --blocks {options.blocks}"
    write_section("Overhead", command, table, rows, page=PAGE)


def ratios(blocks: list[dict[str, float]], mode: str) -> list[float]:
    """Return recorded / not recorded for each pair of neighbouring blocks."""
    return [other / off for off, other in neighbours(blocks, mode)]


def costs_us(blocks: list[dict[str, float]]) -> list[float]:
    """Return what recording adds to a step, in microseconds, for each pair."""
    return [(other - off) * 1000 for off, other in neighbours(blocks, "on")]


def neighbours(blocks: list[dict[str, float]], mode: str) -> list[tuple[float, float]]:
    """Return the milliseconds of a step without recording, and with it in the block beside."""
    return [
        (blocks[start + off]["step_ms"], blocks[start + other]["step_ms"])
        for start in range(0, len(blocks) - 7, 8)
        for off, other in PAIRS
        if blocks[start + other]["mode"] == mode
    ]


class Trained:
    """A training under way: what it prints, and where it records."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder = process, folder

    @property
    def lines(self) -> list[str]:
        """Everything that it prints, to its end."""
        assert self.process.stdout is not None
        lines = list(self.process.stdout)
        assert self.process.wait() == 0, "the training failed"
        return lines


@contextmanager
def trained(case: str, options: argparse.Namespace, profile: str) -> Iterator[Trained]:
    """Run the training script through `headrace run`."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir", folder,
             "--profile", profile, str(HERE / "train.py"), case, "--images", str(options.data),
             "--blocks", str(options.blocks), "--steps", str(STEPS[case])],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            yield Trained(process, Path(folder))
        finally:
            process.kill()
            process.wait()


def memory_mb(options: argparse.Namespace, profile: str) -> float:
    """Return the proportional set size of all processes below the launcher, half way."""
    with trained("device-bound", options, profile) as run:
        assert run.process.stdout is not None
        for _ in range(options.blocks // 2):
            run.process.stdout.readline()
        below = psutil.Process(run.process.pid).children(recursive=True)
        return sum(process.memory_full_info().pss for process in below) / 1e6


if __name__ == "__main__":
    main()
