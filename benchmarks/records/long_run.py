"""What does a run of a day cost: on disk, to close, to diagnose, to make a page of?

    python benchmarks/records/long_run.py --hours 1 24

    python benchmarks/records/long_run.py --hours 24 --play FOLDER    # the two halves apart
    python benchmarks/records/long_run.py --hours 24 --read FOLDER

A training is played whose rank and workers write what the probe writes of them, into real rings
that a real collector drains into a real store; only its clock runs as fast as it can. Then each
reader runs in a process of its own, which prints its time and the most memory that it held.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from headrace.records.collector import Collector
from headrace.records.ring import SUFFIX, RingWriter
from headrace.records.run_folder import RunFolder
from headrace.records.schema import (
    BATCHES,
    FETCHES,
    HOSTS,
    LOADERS,
    PROCESS_USAGE,
    PROCESSES,
    STACKS,
    STEPS,
    TRANSFORMS,
)
from report import machine

SECOND = 1_000_000_000
DRAIN_S = 10
"""Seconds of the run between two drains; a real one has four drains a second."""
LOOKS_S, TICKS_S, CORES = 50, 2, 16
LINES = 2000
"""Stacks that a process is seen in; the share of the n-th goes with 1 / n, as lines of code do."""
TRANSFORM_NAMES = ("Faces.__getitem__", "Faces.decode", "Faces.crop", "Faces.blur", "collate_fn")
DIAGNOSE = """
from headrace.observe.doctor.diagnosis import diagnose
from headrace.records.reader import open_records
print(diagnose(open_records(path)).verdict.sentence)
"""
CLOSE = """
from headrace.records.collector import Collector
from headrace.records.reader import open_records
Collector(open_records(path).folder, "host").close()
"""
PAGE = """
from headrace.report.page import write_report
print(write_report(path))
"""
FRAME = """
import headrace
print(len(headrace.open_run(path).stacks), "rows of stacks")
"""
READERS = {
    "diagnose before it is closed": DIAGNOSE,
    "close": CLOSE,
    "diagnose": DIAGNOSE,
    "diagnose and make the page": PAGE,
    "stacks as a data frame": FRAME,
}
MEASURED = """
import re, sys, time
path, began = sys.argv[1], time.perf_counter()
{}
# Not ru_maxrss: that begins with what the process held that started this one.
held_kb = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]
print(time.perf_counter() - began, time.process_time(), int(held_kb) * 1024)
"""


@dataclass(kw_only=True)
class Training:
    """A training with one loader, played second by second.

    Attributes:
        workers: Its workers.
        steps_s: Steps a second.
        one_in: One second in so many has stacks and transforms: most of the rows, which are added
            up anyway, and so most of the time that playing takes.
        rings: Where it writes: the rank's ring first, then those of the workers.
        now_ns: Its clock.
    """

    workers: int
    steps_s: int
    one_in: int
    rings: list[RingWriter]
    now_ns: int
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    step: int = 0

    def __post_init__(self) -> None:
        shares = 1.0 / np.arange(1, LINES + 1)
        looks = self.random.choice(LINES, p=shares / shares.sum(), size=(2000, LOOKS_S))
        self.seconds = [Counter(each).most_common() for each in looks.tolist()]
        self.stacks = [_stack(line) for line in range(LINES)]

    def begin(self) -> None:
        """Write what is written once."""
        for place, ring in enumerate(self.rings):
            role, worker = ("rank", -1) if place == 0 else ("worker", place - 1)
            loader = -1 if place == 0 else 0
            ring.write(PROCESSES, place, 1, role, 0, loader, worker, 1, self.now_ns, 1, 0)
        self.rings[0].write(
            LOADERS, 0, 0, "torch", "Faces", "map", self.workers, 2, 32, 0, 1, 1, "fork",
            "/home/ann/train.py", 40, self.now_ns,
        )  # fmt: skip

    def play_second(self) -> None:
        """Write what the probe writes in a second."""
        spent = self.random.normal(1.0, 0.1, (self.steps_s, 3)).clip(0.5)
        wall = SECOND // self.steps_s
        for place in range(self.steps_s):
            start = self.now_ns + place * wall
            self._play_step(start, wall, spent[place].tolist())
        if self.now_ns // SECOND % self.one_in == 0:
            self._play_lines()
        self.now_ns += SECOND

    def _play_lines(self) -> None:
        """Write where the code was, and what transforms took, in a second."""
        for place, ring in enumerate(self.rings):
            worker, phase = (-1, "forward") if place == 0 else (place - 1, "work")
            loader = -1 if place == 0 else 0
            seen = self.seconds[int(self.random.integers(len(self.seconds)))]
            for line, count in seen:
                ns = count * SECOND // LOOKS_S
                ring.write(
                    STACKS, place, 0, loader, worker, phase, self.stacks[line], self.now_ns, count,
                    ns, ns * 9 // 10, self.now_ns + SECOND,
                )  # fmt: skip
            for number, name in enumerate(TRANSFORM_NAMES if place else ()):
                ring.write(
                    TRANSFORMS, 0, 0, worker, name, "/home/ann/data.py", 10 * number + 1,
                    self.now_ns, 10, 5_000_000 * number, 4_000_000 * number, 8,
                )  # fmt: skip

    def _play_step(self, start: int, wall: int, spent: list[float]) -> None:
        wait, forward = int(0.15 * wall * spent[0]), int(0.4 * wall * spent[1])
        self.rings[0].write(FETCHES, 0, 0, 0, self.step, start, wait, 0, 0, -1, -1)
        self.rings[0].write(
            STEPS, 0, self.step, "train", 0, start, wall, wait, 0, forward, wall - wait - forward,
            0, 0, 0, 1, 32, 0, 0, 0, 0,
        )  # fmt: skip
        made = int(0.98 * wall * self.workers * spent[2])
        self.rings[1 + self.step % self.workers].write(
            BATCHES, 0, 0, self.step % self.workers, self.step // self.workers, start, made,
            int(made * 0.9), int(made * 0.9), 32, 3_000_000, 64, 0, 0, made // 50, 100_000,
            200_000,
        )  # fmt: skip
        self.step += 1


def _stack(line: int) -> str:
    """Return a stack as long as real ones are, some 20 frames."""
    library = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"
    outer = [f"{library}:{100 + depth}:outer_call_{depth}" for depth in range(18)]
    return "\n".join([*outer, f"/home/ann/data.py:{line}:Faces.part_{line % 40}"])


def main() -> None:
    """Play a run of each length, read it, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, nargs="+", default=[1, 24])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20, help="steps a second")
    parser.add_argument(
        "--one-in", type=int, default=1, help="write stacks of one second in so many"
    )
    parser.add_argument("--play", type=Path, help="only play a run, into this folder")
    parser.add_argument("--read", type=Path, help="read, and close, a run that was played there")
    options = parser.parse_args()
    if options.play:
        play(options.play, options.hours[0], options)
        return
    print(f"{machine()}\n\n| hours | what | seconds | CPU seconds | most memory, MB |")
    print("|---|---|---|---|---|")
    for hours in options.hours:
        with tempfile.TemporaryDirectory() as folder:
            path = options.read or Path(folder)
            if not options.read:
                play_apart(path, hours, options)
            for cells in measure(path):
                print(f"| {hours:g} | {' | '.join(cells)} |", flush=True)


def play_apart(path: Path, hours: float, options: argparse.Namespace) -> None:
    """Play a run in a process of its own, whose end lets go of the records."""
    playing = [f"--hours={hours}", f"--workers={options.workers}", f"--steps={options.steps}"]
    playing += [f"--one-in={options.one_in}", f"--play={path}"]
    subprocess.run([sys.executable, __file__, *playing], check=True)


def measure(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield what was done, its seconds and CPU seconds, and the most memory held meanwhile."""
    folder = RunFolder(path).records(1)
    yield f"as it runs: {_megabytes(folder)} MB", "", "", ""
    for what, code in READERS.items():
        done = subprocess.run(
            [sys.executable, "-c", MEASURED.format(code), str(path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{what}: {done.stderr}")
        *output, figures = done.stdout.splitlines()
        print(*output, sep="\n", file=sys.stderr)
        seconds, cpu_seconds, peak_bytes = map(float, figures.split())
        yield what, f"{seconds:,.1f}", f"{cpu_seconds:,.1f}", f"{peak_bytes / 1e6:,.0f}"
        if what == "close":
            yield f"closed: {_megabytes(folder)} MB", "", "", ""


def _megabytes(folder: Path) -> str:
    sizes: Counter[str] = Counter()
    for file in folder.rglob("*"):
        sizes[file.name.split("-")[0]] += file.stat().st_size if file.is_file() else 0
    print({name: round(size / 1e6, 1) for name, size in sizes.items()}, file=sys.stderr)
    return f"{sizes.total() / 1e6:,.0f}"


def play(path: Path, hours: float, options: argparse.Namespace) -> None:
    """Play a run into a folder; its records stay open, as if all had been killed."""
    run = RunFolder(path)
    attempt = run.start_attempt(command=["train.py"], argv=["train.py"], world_size=1)
    folder = run.records(attempt.number)
    collector = Collector(folder, "host")
    system = ["t_ns", *(f"core_{core}_percent" for core in range(CORES)), "memory_used_bytes"]
    collector.store.declare_system(system)
    collector.add(HOSTS, [("host", float(CORES), 2**37, 0, attempt.number, 0, "")])
    rings = [
        RingWriter(folder / "rings" / f"{place}{SUFFIX}") for place in range(1 + options.workers)
    ]
    training = Training(
        workers=options.workers, steps_s=options.steps, one_in=options.one_in, rings=rings,
        now_ns=100 * SECOND,
    )  # fmt: skip
    training.begin()
    for second in range(int(hours * 3600)):
        for tick in range(TICKS_S):
            t_ns = training.now_ns + tick * SECOND // TICKS_S
            collector.add_system(system, [t_ns, *[60.0] * CORES, 2**34])
            usage = [(t_ns, place, 90.0, 2**30, 4, 10**6) for place in range(len(rings))]
            collector.add(PROCESS_USAGE, usage)
        training.play_second()
        if second % DRAIN_S == DRAIN_S - 1:
            collector.drain()
    for ring in rings:
        assert not ring.dropped, "a ring was full"
        ring.close()
    collector.drain(last=True)
    run.end_attempt(attempt.number, 0)


if __name__ == "__main__":
    main()
