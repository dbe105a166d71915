"""What recording costs: steps recorded against steps not recorded, in turns within one process.

    python benchmarks/overhead/run.py

The switch that `headrace profile` turns is turned every second or so: off, on, on, off, off, deep,
deep, off, and so on. Each block is compared with its neighbour that was off. Likewise a run started
with `--profile off` and one of plain `python`: two processes, of which one works at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from cpu_steal import ticks  # noqa: E402 - stands above this folder
from images import make_folder  # noqa: E402 - as above
from report import Row, write_section  # noqa: E402 - as above

PAGE = HERE.parents[1] / "docs" / "overhead.md"
CASES = {
    "loader-bound": "2 workers decode JPEGs as fast as they can; both cores are full",
    "device-bound": "steps of 20 ms on an emulated device, 2 workers with little to do",
    "short-steps": "steps of half a millisecond, no workers: the worst case",
}
CUDA_CASES = {
    "cuda-short-steps": "steps of two small layers on a CUDA device, no workers",
    "cuda-steps": "steps of 48 small layers on a CUDA device, limited by launches, 2 workers",
}
"""Cases that run only where they are named, as they need a CUDA device."""
STEPS = {
    "loader-bound": 12,
    "device-bound": 40,
    "short-steps": 2000,
    "cuda-short-steps": 1000,
    "cuda-steps": 200,
}
"""Steps of a block that count: few where the speed of the cores is all that counts, as that changes
from second to second."""
TIMES_BLOCKS = {"loader-bound": 5}
"""So many times the blocks."""
TARGETS = {"on": "<= 1.01", "deep": "<= 1.05"}
ON_SHARE = 0.01
SHARES = {"loader-bound", "device-bound"}
"""Cases whose overhead is promised as a share of the step."""
FULL = {"loader-bound"}
"""Cases in which all cores are busy."""
PAIRS = ((0, 1), (3, 2), (4, 5), (7, 6))  # of 8 blocks: the one that is off, its neighbour
RECORDING = ["-m", "headrace.cli.main", "run", "--run-dir"]
NOTES = """
Each row is the time of recorded steps over that of unrecorded steps of the same process, in
alternating blocks, so that other work on the machine affects both. Two cores run the training
process, two workers and the collector process.

- **off**: switched off in a run that was started with recording. A run started with
  `--profile off` has no hooks at all: it is compared with plain `python`, as two processes of
  which one works while the other waits.
- **deep**: without the burst of four steps under torch.profiler that each call for deep recording
  makes once. The burst's cost beyond those steps, its file included, is a row of its own; the
  steps after it, whose batches were made meanwhile, do not count either.
- **CPU of all**: CPU time of a step in all processes, the recording ones included. On full cores
  it is the cost of a step, and varies far less than wall time, of which the machine's host takes
  some at will.
- **CPU us a step**: what recording adds to the training thread's CPU time, which is all that
  affects a step while cores are idle.
- **workers' CPU a step**: CPU time of the workers' processes, all threads.
- **workers' throughput**: the inverse of the first row. Where workers never wait, they make what
  is trained on.
- **recording's CPU**: that of the collector process and the threads that sample stacks, as a
  share of that of all. It is counted, not compared, so it hardly varies.
- **stolen**: CPU time that was wanted and that the machine's host gave to others. The more, the
  less comparable are blocks.
"""


def main() -> None:
    """Run all cases and write docs/overhead.md, or print some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=48)
    choices = [*CASES, *CUDA_CASES]
    parser.add_argument("--only", nargs="+", choices=choices, default=list(CASES), metavar="CASE")
    parser.add_argument("--data", type=Path, default=Path("bench-data/loader/images"))
    options = parser.parse_args()
    if "loader-bound" in options.only:
        make_folder(options.data, 2000)
    rows: list[Row] = []
    table = ["| case | what it is | step, off | stolen |", "|---|---|---|---|"]
    lengths, certain = [], []
    for case in options.only:
        with watched() as stolen:
            blocks, written_mb = switched(case, options)
            off_ratios = off_over_plain(case, options) if case in SHARES else []
        off_ms = statistics.median(each["step_ms"] for each in blocks if each["mode"] == "off")
        what = (CASES | CUDA_CASES)[case]
        table.append(f"| {case} | {what} | {off_ms:.3g} ms | {100 * stolen[0]:.0f} % |")
        lengths.append(shortest_step(case, added_us(blocks)))
        if case in SHARES:
            certain.append(how_certain(case, blocks, off_ratios))
        rows += rows_of(case, blocks)
        if off_ratios:
            rows.append(Row(f"{case}, --profile off / plain python", off_ratios, "<= 1.005"))
        rows.append(Row(f"{case}, MB written an hour", [written_mb], ""))
    if set(options.only) != set(CASES):
        print("\n".join([*lengths, *certain, *table, *(row.line() for row in rows)]))
        return
    memory = {mode: memory_mb(options, mode) for mode in ("off", "on")}
    rows.append(
        Row("memory of all processes, on minus off, MB", [memory["on"] - memory["off"]], "")
    )
    command = f"python benchmarks/overhead/run.py --blocks {options.blocks}"
    lines_out = [NOTES.strip(), "", *LENGTHS, *lengths, "", *CERTAIN, *certain, "", *table]
    write_section("Overhead", command, lines_out, rows, page=PAGE)


LENGTHS = [
    "Recording costs a step a fraction of a millisecond, whatever the step takes, so short steps",
    f"have no target as a share. By the median it is {ON_SHARE:.0%} or less of steps",
    "",
]


CERTAIN = ["90 % intervals of the medians below:", ""]


def how_certain(case: str, blocks: list[dict[str, float]], off_ratios: list[float]) -> str:
    """Say between what the medians of a case lie, by drawing its pairs again."""
    found = {f"{mode} / off": ratios(blocks, mode) for mode in TARGETS}
    found["--profile off / plain python"] = off_ratios
    parts = []
    for name, values in found.items():
        drawn = np.random.default_rng(0).choice(values, size=(2000, len(values)))
        low, high = np.percentile(np.median(drawn, axis=1), (5, 95))
        parts.append(f"{name} {low:.3f} to {high:.3f}")
    return f"- {case}: {', '.join(parts)}"


def shortest_step(case: str, costs_us: list[float]) -> str:
    """Say from which length of a step on recording takes the share that is promised."""
    cost_us = statistics.median(costs_us)
    if cost_us <= 0:
        return f"- {case}: of any length; what it costs is below what was told apart"
    return f"- {case}: from {cost_us / 1000 / ON_SHARE:.3g} ms on ({cost_us:.3g} us a step)"


def blocks_of(case: str, options: argparse.Namespace) -> int:
    """Return how many blocks a case has."""
    return int(options.blocks * TIMES_BLOCKS.get(case, 1))


def switched(case: str, options: argparse.Namespace) -> tuple[list[dict[str, float]], float]:
    """Return the blocks of a training whose recording is switched, and MB written an hour."""
    with trained(case, options, "on") as run:
        blocks = [json.loads(line) for line in run.lines]
        written = sum(file.stat().st_size for file in run.folder.glob("records/**/*.parquet"))
    recorded_s = sum(each["whole_s"] for each in blocks if each["mode"] != "off")
    return blocks, written / recorded_s * 3600 / 1e6


def rows_of(case: str, blocks: list[dict[str, float]]) -> list[Row]:
    """Return what the blocks of a case say."""
    shares = [
        Row(f"{case}, {mode} / off", ratios(blocks, mode), target if case in SHARES else "")
        for mode, target in TARGETS.items()
    ]
    probe_shares = [
        Row(f"{case}, {mode}: recording's CPU, share of all",
            [each["probe_part"] for each in blocks if each["mode"] == mode], "")
        for mode in TARGETS
    ]  # fmt: skip
    cpu_us = [on - off for off, on in neighbours(blocks, "on", "cpu_us")]
    full = [
        Row(f"{case}, {mode} / off, CPU of all", ratios(blocks, mode, "all_cpu_us"),
            target if case in FULL else "")
        for mode, target in TARGETS.items()
    ]  # fmt: skip
    return [
        *shares,
        *full,
        *probe_shares,
        *rows_of_workers(case, blocks),
        Row(f"{case}, on minus off, us a step", added_us(blocks), ""),
        Row(f"{case}, on minus off, CPU us a step", cpu_us, ""),
        Row(f"{case}, deep: a burst of torch.profiler, ms", bursts_ms(blocks), ""),
    ]


def bursts_ms(blocks: list[dict[str, float]]) -> list[float]:
    """Return what each burst took beyond its steps, in milliseconds."""
    off_ms = statistics.median(each["step_ms"] for each in blocks if each["mode"] == "off")
    return [
        each["burst_s"] * 1000 - each["burst_steps"] * off_ms
        for each in blocks
        if each["burst_steps"]
    ]


def rows_of_workers(case: str, blocks: list[dict[str, float]]) -> list[Row]:
    """Return what the blocks of a case say of its workers, where it has any."""
    if case not in SHARES:
        return []
    cpu = ratios(blocks, "on", "workers_cpu_us")
    rows = [Row(f"{case}, on / off, workers' CPU a step", cpu, "")]
    if case in FULL:
        faster = [1 / ratio for ratio in ratios(blocks, "on")]
        rows.append(Row(f"{case}, on / off, workers' throughput", faster, ">= 0.99"))
    return rows


def added_us(blocks: list[dict[str, float]]) -> list[float]:
    """Return what recording adds to a step, in microseconds, for each pair."""
    return [(on - off) * 1000 for off, on in neighbours(blocks, "on")]


def ratios(blocks: list[dict[str, float]], mode: str, key: str = "step_ms") -> list[float]:
    """Return recorded / not recorded for each pair of neighbouring blocks."""
    return [other / off for off, other in neighbours(blocks, mode, key)]


def neighbours(
    blocks: list[dict[str, float]], mode: str, key: str = "step_ms"
) -> list[tuple[float, float]]:
    """Return a step's figure without recording, and with it in the block beside."""
    return [
        (blocks[start + off][key], blocks[start + other][key])
        for start in range(0, len(blocks) - 7, 8)
        for off, other in PAIRS
        if blocks[start + other]["mode"] == mode
    ]


def off_over_plain(case: str, options: argparse.Namespace) -> list[float]:
    """Return step times of `--profile off` / plain python, of blocks made one after the other."""
    found = []
    with (
        trained(case, options, "", "--turns") as plain,
        trained(case, options, "off", "--turns") as off,
    ):
        for pair in range(blocks_of(case, options) // 2):
            order = (plain, off) if pair % 2 == 0 else (off, plain)
            step_ms = {run: run.block()["step_ms"] for run in order}
            found.append(step_ms[off] / step_ms[plain])
    return found


class Trained:
    """A training under way: what it prints, where it records, and what records it."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, threads: Path) -> None:
        self.process, self.folder, self.threads = process, folder, threads

    @property
    def output(self) -> IO[str]:
        """What it prints."""
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def lines(self) -> list[str]:
        """Everything that it prints, to its end."""
        lines = list(self.output)
        assert self.process.wait() == 0, "the training failed"
        return lines

    def block(self) -> dict[str, float]:
        """Let it make its next block; return what it says of it."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, float] = json.loads(self.output.readline())
        return found


@contextmanager
def trained(case: str, options: argparse.Namespace, profile: str, *flags: str) -> Iterator[Trained]:
    """Run the training script through `headrace run`, or without for the profile ""."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as threads:
        through = [*RECORDING, folder, "--profile", profile] if profile else []
        process = subprocess.Popen(
            [sys.executable, *through, str(HERE / "train.py"), case, "--images", str(options.data),
             "--blocks", str(blocks_of(case, options)), "--steps", str(STEPS[case]),
             "--threads", threads, *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            yield Trained(process, Path(folder), Path(threads))
        finally:
            process.kill()
            process.wait()


@contextmanager
def watched() -> Iterator[list[float]]:
    """Give a list that has, afterwards, the share of the wanted CPU time that was withheld."""
    stolen: list[float] = []
    wanted, lost = ticks()
    yield stolen
    wanted_now, lost_now = ticks()
    stolen.append((lost_now - lost) / max(wanted_now - wanted, 1))


def memory_mb(options: argparse.Namespace, profile: str) -> float:
    """Return the proportional set size of all processes below the launcher, half way."""
    with trained("device-bound", options, profile) as run:
        for _ in range(options.blocks // 2):
            run.output.readline()
        below = psutil.Process(run.process.pid).children(recursive=True)
        return sum(process.memory_full_info().pss for process in below) / 1e6


if __name__ == "__main__":
    main()
