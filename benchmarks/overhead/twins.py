"""What recording costs where all cores are full: two trainings at once, one of them recorded.

    python benchmarks/overhead/twins.py

Both share the cores, so whatever their speed is at a moment, it is the same for both: what differs
is what recording takes. They take turns in being recorded, so what else differs falls out.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from run import PAGE, TARGETS, trained, watched  # noqa: E402 - beside this script
from train import PROGRESS_BYTES, below, cpu_s  # noqa: E402 - likewise

from headrace.records.run_folder import RunFolder  # noqa: E402
from headrace.records.switch import Switch  # noqa: E402
from images import make_folder  # noqa: E402 - above this folder
from report import Row, write_section  # noqa: E402 - likewise

CASE = "loader-bound"
SETTLE_S, SPAN_S = 3.0, 6.0
"""What passes before a turn counts: a burst of torch.profiler is over then; how long a turn is."""
WARM_UP_STEPS = 200
"""Of each: hooks that look more often at first have come to their pace."""
NOTES = """
Two trainings of the case "loader-bound" share the cores, one recorded and one not, by turns of
{span:.0f} s. The speed of the cores, which moves by a tenth from one second to the next on this
machine, is the same for both at every moment; what differs between the two falls out, as each pair
of turns has the one recorded and then the other. With twice the processes, caches are colder than
in a training by itself: hooks cost rather more here.

"CPU of all" is the CPU time of a step in all processes of a training, those that record included:
where all cores are full it says what a step takes. "Throughput" is the steps that the recorded
training made in a turn over those that the other made meanwhile.
"""


@dataclass(frozen=True)
class Look:
    """A training at one moment: steps made, and the CPU time of all of its processes."""

    steps: int
    cpu_s: float


@dataclass(frozen=True)
class Spent:
    """What a training did in a turn."""

    steps: int
    cpu_s: float

    @property
    def a_step_s(self) -> float:
        """CPU seconds of a step."""
        return self.cpu_s / self.steps


class Twin:
    """One of the trainings, under way.

    Args:
        launcher: Its process.
        switch: Of its recording.
        progress: Where it tells its steps, and is told to end.
    """

    def __init__(self, launcher: int, switch: Switch, progress: memoryview) -> None:
        self._processes = [launcher, *below(psutil.Process(launcher))]
        self._switch = switch
        self.progress = progress

    def record(self, mode: str) -> None:
        """Be recorded, not ("off"), or "deep", from now on."""
        self._switch.on = mode != "off"
        self._switch.go_deep(3600 if mode == "deep" else 0)

    def look(self) -> Look:
        """Return how far it is."""
        return Look(self.progress[0], cpu_s(self._processes))


def main() -> None:
    """Measure, and write the section of docs/overhead.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=24, help="of turns, for each way to record")
    parser.add_argument("--data", type=Path, default=Path("bench-data/loader/images"))
    options = parser.parse_args()
    make_folder(options.data, 2000)
    with watched() as stolen:
        pairs = measured(options)
    rows = [row for mode in TARGETS for row in rows_of(mode, pairs[mode])]
    certain = [f"- {row.what}: {interval(row.values)}" for row in rows]
    said = [
        NOTES.format(span=SPAN_S).strip(),
        "",
        f"Stolen: {100 * stolen[0]:.0f} %. How certain the medians are, by 90 % intervals:",
        "",
        *certain,
    ]
    command = f"python benchmarks/overhead/twins.py --pairs {options.pairs}"
    write_section("Two at once", command, said, rows, page=PAGE)


def measured(options: argparse.Namespace) -> dict[str, list[tuple[Spent, Spent, Spent, Spent]]]:
    """Return each pair of turns by how was recorded: recorded, not; the other recorded, not."""
    pairs: dict[str, list[tuple[Spent, Spent, Spent, Spent]]] = {mode: [] for mode in TARGETS}
    with training(options) as one, training(options) as other:
        while min(one.look().steps, other.look().steps) < WARM_UP_STEPS:
            time.sleep(SPAN_S)
        for number in range(options.pairs):
            for mode in TARGETS:
                first, second = (one, other) if number % 2 == 0 else (other, one)
                pairs[mode].append((*turn(first, second, mode), *turn(second, first, mode)))
    return pairs


def turn(recorded: Twin, plain: Twin, mode: str) -> tuple[Spent, Spent]:
    """Return what both did while one of them was recorded."""
    plain.record("off")
    recorded.record(mode)
    time.sleep(SETTLE_S)
    began = [recorded.look(), plain.look()]
    time.sleep(SPAN_S)
    ended = [recorded.look(), plain.look()]
    with_it, without = (
        Spent(after.steps - before.steps, after.cpu_s - before.cpu_s)
        for before, after in zip(began, ended, strict=True)
    )
    return with_it, without


def rows_of(mode: str, pairs: list[tuple[Spent, Spent, Spent, Spent]]) -> list[Row]:
    """Return the ratios of a way to record: geometric means of both turns of a pair."""
    cpu = [(a.a_step_s / b.a_step_s * c.a_step_s / d.a_step_s) ** 0.5 for a, b, c, d in pairs]
    steps = [(a.steps / b.steps * c.steps / d.steps) ** 0.5 for a, b, c, d in pairs]
    least = 1 - (float(TARGETS[mode].split()[-1]) - 1)
    return [
        Row(f"{CASE}, {mode} / off, CPU of all, two at once", cpu, TARGETS[mode]),
        Row(f"{CASE}, {mode} / off, throughput, two at once", steps, f">= {least:g}"),
    ]


def interval(values: list[float]) -> str:
    """Return between what the median lies, by drawing the pairs again."""
    drawn = np.random.default_rng(0).choice(values, size=(2000, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), (5, 95))
    return f"{statistics.median(values):.4f} ({low:.4f} to {high:.4f})"


@contextmanager
def training(options: argparse.Namespace) -> Iterator[Twin]:
    """Run a training that goes on until it is told to end."""
    options.blocks = 0
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(PROGRESS_BYTES))
        file.flush()
        shared = mmap.mmap(file.fileno(), PROGRESS_BYTES)
        progress = memoryview(shared).cast("q")
        with trained(CASE, options, "on", "--progress", file.name) as run:
            while not progress[0]:
                assert run.process.poll() is None, "the training failed"
                time.sleep(0.1)
            records = RunFolder(run.folder).records(1)
            yield Twin(run.process.pid, Switch(records), progress)
            progress[1] = 1
            assert run.process.wait() == 0, "the training failed"
            traces = [*run.folder.glob("traces/*")]
            assert traces, "no burst of torch.profiler was made"


if __name__ == "__main__":
    main()
