"""What recording costs where all cores are full: two trainings at once, one of them recorded.

    python benchmarks/overhead/twins.py

Both share the cores, so whatever their speed is at a moment, it is the same for both: what CPU time
differs by is what recording takes. They take turns in being recorded, so what else differs falls
out.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from run import PAGE, TARGETS, Trained, trained, watched  # noqa: E402 - beside this script
from train import PROGRESS_BYTES, below, cpu_s, probe_s  # noqa: E402 - as above

from headrace.records.live_switch import LiveSwitch  # noqa: E402
from headrace.records.run_folder import RunFolder  # noqa: E402
from images import make_folder  # noqa: E402 - above this folder
from report import Row, write_section  # noqa: E402 - as above

CASE = "loader-bound"
SETTLE_S, SPAN_S = {"on": 1.0, "deep": 3.0}, 6.0
"""What passes before a turn counts: a burst of torch.profiler is over then; how long a turn is."""
ALONE_SPANS = 4
"""So many turns is a training looked at alone, for each way to record."""
WARM_UP_STEPS = 600
"""Of each: hooks that look more often at first have come to their pace."""
NOTES = """
Two trainings of the case "loader-bound" share the cores; one is recorded and the other not, in
turns of {span:.0f} s. The speed of the cores varies by a tenth from one second to the next on
this machine, but at any moment it is the same for both. Differences between the two trainings
cancel, as each pair of turns records one and then the other. With twice the processes, caches are
colder than in a training alone, so hooks cost rather more here.

The collector process and the threads that sample stacks work at fixed time intervals. With two
trainings steps take longer, so these are a larger part of a step. "As if alone" replaces what
they took in the turns by what they take of a step while no other training runs, measured by their
own CPU time. Alone, a training makes {alone:.0f} steps a second here, and {at_once:.0f} in turns.

"CPU of all" is the CPU time of a step in all processes of a training, the recording ones
included, which on full cores is the cost of a step. "Throughput" is the steps of the recorded
training in a turn over those of the other; as the other also pays for a part of the recording
processes, it has no target. The first {warm:,} steps of each are left out, as more is sampled in
them (docs/profiling.md).
"""


@dataclass(frozen=True)
class Look:
    """A training at one moment: steps made, CPU time of all processes, and of what records."""

    steps: int
    cpu_s: float
    paid_s: float


@dataclass(frozen=True)
class Spent:
    """What a training did for a while: steps, CPU seconds in all, and of these what records."""

    steps: int
    cpu_s: float
    paid_s: float

    @property
    def a_step_s(self) -> float:
        """CPU seconds of a step."""
        return self.cpu_s / self.steps

    @property
    def paid_a_step_s(self) -> float:
        """CPU seconds of a step that what records took."""
        return self.paid_s / self.steps


Pair = tuple[Spent, Spent, Spent, Spent]
"""One recorded, the other not meanwhile; the other recorded, the first not."""
Pairs = dict[str, list[Pair]]
"""By how was recorded."""


class Twin:
    """One of the trainings, under way.

    Args:
        run: Its process and folders.
        switch: Of its recording.
        progress: Where it writes its steps, and is asked to end.
    """

    def __init__(self, run: Trained, switch: LiveSwitch, progress: memoryview) -> None:
        self._processes = [run.process.pid, *below(psutil.Process(run.process.pid))]
        self._samplers = [*run.threads.iterdir()]
        self._run = run.process
        self._switch = switch
        self.progress = progress

    def record(self, mode: str) -> None:
        """Be recorded, not ("off"), or "deep", from now on."""
        self._switch.on = mode != "off"
        self._switch.go_deep(3600 if mode == "deep" else 0)

    def look(self) -> Look:
        """Return how far it is."""
        paid_s = probe_s(self._processes, self._samplers)
        return Look(self.progress[0], cpu_s(self._processes), paid_s)

    def since(self, before: Look) -> Spent:
        """Return what it did since that moment."""
        now = self.look()
        return Spent(now.steps - before.steps, now.cpu_s - before.cpu_s, now.paid_s - before.paid_s)

    def warm_up(self) -> None:
        """Return once it has made its first steps."""
        while self.progress[0] < WARM_UP_STEPS:
            assert self._run.poll() is None, "the training failed"
            time.sleep(1.0)


def main() -> None:
    """Measure, and write the section of docs/overhead.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=24, help="of turns, for each way to record")
    parser.add_argument("--data", type=Path, default=Path("bench-data/loader/images"))
    options = parser.parse_args()
    make_folder(options.data, 2000)
    with watched() as stolen:
        alone, pairs = measured(options)
    rows = [row for mode in TARGETS for row in rows_of(mode, pairs[mode], alone)]
    certain = [f"- {row.what}: {interval(row.values)}" for row in rows]
    lines = [
        notes(alone, pairs),
        "",
        f"Stolen: {100 * stolen[0]:.0f} %. 90 % intervals of the medians:",
        "",
        *certain,
    ]
    command = f"python benchmarks/overhead/twins.py --pairs {options.pairs}"
    write_section("Two at once", command, lines, rows, page=PAGE)


def measured(options: argparse.Namespace) -> tuple[dict[str, Spent], Pairs]:
    """Return what one training alone did by how was recorded, and likewise the pairs of turns."""
    pairs: Pairs = {mode: [] for mode in TARGETS}
    with training(options) as one:
        one.warm_up()
        alone = watched_alone(one)
        measure_pairs(options, one, pairs)
    return alone, pairs


def watched_alone(one: Twin) -> dict[str, Spent]:
    """Return what it does in turns while no other training runs, by how is recorded."""
    spent: dict[str, list[Spent]] = {mode: [] for mode in ("off", *TARGETS)}
    for mode in [*spent] * ALONE_SPANS:
        one.record(mode)
        time.sleep(max(SETTLE_S.values()))
        before = one.look()
        time.sleep(SPAN_S)
        spent[mode].append(one.since(before))
    return {mode: in_all(each) for mode, each in spent.items()}


def in_all(spent: list[Spent]) -> Spent:
    """Return what was done in several turns."""
    return Spent(
        sum(one.steps for one in spent),
        sum(one.cpu_s for one in spent),
        sum(one.paid_s for one in spent),
    )


def measure_pairs(options: argparse.Namespace, one: Twin, pairs: Pairs) -> None:
    """Train another one at the same time, and let them take turns."""
    with training(options) as other:
        other.warm_up()
        for number in range(options.pairs):
            for mode in TARGETS:
                first, second = (one, other) if number % 2 == 0 else (other, one)
                pairs[mode].append((*turn(first, second, mode), *turn(second, first, mode)))


def notes(alone: dict[str, Spent], pairs: Pairs) -> str:
    """Return the notes on the figures."""
    steps = [plain.steps for each in pairs.values() for pair in each for plain in pair[1::2]]
    return NOTES.format(
        span=SPAN_S,
        warm=WARM_UP_STEPS,
        alone=alone["off"].steps / (ALONE_SPANS * SPAN_S),
        at_once=statistics.mean(steps) / SPAN_S,
    ).strip()


def turn(recorded: Twin, plain: Twin, mode: str) -> tuple[Spent, Spent]:
    """Return what both did while one of them was recorded."""
    plain.record("off")
    recorded.record(mode)
    time.sleep(SETTLE_S[mode])
    began = [recorded.look(), plain.look()]
    time.sleep(SPAN_S)
    return recorded.since(began[0]), plain.since(began[1])


def rows_of(mode: str, pairs: list[Pair], alone: dict[str, Spent]) -> list[Row]:
    """Return the ratios of a way to record: geometric means of both turns of a pair.

    Args:
        mode: How was recorded.
        pairs: What was measured.
        alone: What one training did while no other ran, by how was recorded.
    """
    at_once = [ratio([spent.a_step_s for spent in pair]) for pair in pairs]
    instead = [alone[mode].paid_a_step_s, alone["off"].paid_a_step_s] * 2
    by_itself = [
        ratio([s.a_step_s - s.paid_a_step_s + own for s, own in zip(pair, instead, strict=True)])
        for pair in pairs
    ]
    steps = [ratio([spent.steps for spent in pair]) for pair in pairs]
    return [
        Row(f"{CASE}, {mode} / off, CPU of all, as if alone", by_itself, TARGETS[mode]),
        Row(f"{CASE}, {mode} / off, CPU of all, two at once", at_once, TARGETS[mode]),
        Row(f"{CASE}, {mode} / off, throughput, two at once", steps, ""),
    ]


def ratio(of: Sequence[float]) -> float:
    """Return the geometric mean of the ratios of both turns of a pair."""
    a, b, c, d = of
    return float((a / b * c / d) ** 0.5)


def interval(values: list[float]) -> str:
    """Return between what the median lies, by drawing the pairs again."""
    drawn = np.random.default_rng(0).choice(values, size=(2000, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), (5, 95))
    return f"{statistics.median(values):.4f} ({low:.4f} to {high:.4f})"


@contextmanager
def training(options: argparse.Namespace) -> Iterator[Twin]:
    """Run a training that goes on until it is asked to end."""
    options.blocks = 0
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(PROGRESS_BYTES))
        file.flush()
        shared = mmap.mmap(file.fileno(), PROGRESS_BYTES)
        progress = memoryview(shared).cast("q")
        with trained(CASE, options, "on", "--progress", file.name) as run:
            while progress[0] < 1 + WARM_UP_STEPS // 10:  # all of its threads are there
                assert run.process.poll() is None, "the training failed"
                time.sleep(0.1)
            records = RunFolder(run.folder).records(1)
            yield Twin(run, LiveSwitch(records), progress)
            progress[1] = 1
            assert run.process.wait() == 0, "the training failed"
            traces = [*run.folder.glob("traces/*")]
            assert traces, "no burst of torch.profiler was made"


if __name__ == "__main__":
    main()
