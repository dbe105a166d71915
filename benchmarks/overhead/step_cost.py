"""What recording adds to the training thread's CPU time a step, in a job like a user's.

    python benchmarks/overhead/step_cost.py

A recorded job trains a small network on batches of two workers, and then waits some milliseconds as
for an accelerator, in which the workers take the processor's caches. Around each of the probe's
hooks, and around the function of torch's that it calls, the thread's CPU time is taken. Blocks with
the hooks alternate with blocks with empty ones, so that what the clock takes is known.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from time import thread_time_ns
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, Dataset, dataloader

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from report import Row, write_section  # noqa: E402 - above this folder

PAGE = HERE.parents[1] / "docs" / "overhead.md"
BLOCK_STEPS, SETTLING_STEPS = 10, 2
ALL = "all hooks"
BATCH, SAMPLES, PAUSE_S = 32, 1 << 30, 0.015
KINDS = {
    "map": "a map-style dataset, 2 workers, steps of {:.3g} ms with {:.3g} ms of CPU",
    "iterable": "an iterable dataset, 2 workers, steps of {:.3g} ms with {:.3g} ms of CPU",
}
NOTES = """
CPU time of the probe's hooks in the training thread, in a recorded job. A step asks two workers for
a batch, trains a network of three layers on it and waits for 15 ms, as for an accelerator, in
which the workers take the processor's caches. The thread's CPU time is taken around each hook, and
around torch's function within it, which does not count. Blocks of {steps} steps ({blocks} of each
kind, the first {settling} steps not counted) with the hooks and with empty ones alternate: a row is
the difference of the medians over steps, in each of {rounds} jobs. The threads that sample stacks
and write rows are not in it (see "By part").
"""


def main() -> None:
    """Measure in recorded jobs, and write the section of docs/overhead.md, or print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--within", choices=KINDS, help="this process is the recorded job")
    parser.add_argument("--blocks", type=int, default=60, help="of each kind, in a job")
    parser.add_argument("--rounds", type=int, default=3, help="jobs")
    parser.add_argument("--print", action="store_true", help="leave the page as it is")
    options = parser.parse_args()
    if options.within:
        print(json.dumps(measured(options.within, options.blocks)))
        return
    rows, lines = [], []
    for kind, what in KINDS.items():
        jobs = [run_job(kind, options.blocks) for _ in range(options.rounds)]
        for name in jobs[0]:
            if not name.endswith("_ms"):
                target = "<= 60" if name == ALL else ""
                took_us = [job[name] for job in jobs]
                rows.append(Row(f"{kind}: {name}, CPU us a step", took_us, target))
        sizes = [statistics.median(job[name] for job in jobs) for name in ("step_ms", "cpu_ms")]
        lines.append(f"- {kind}: {what.format(*sizes)}")
    if options.print:
        print("\n".join([*lines, *(row.line() for row in rows)]))
        return
    notes = NOTES.strip().format(
        steps=BLOCK_STEPS, settling=SETTLING_STEPS, blocks=options.blocks, rounds=options.rounds
    )
    command = f"python benchmarks/overhead/step_cost.py --blocks {options.blocks}"
    write_section("A step's CPU time", command, [notes, "", *lines], rows, page=PAGE)


def run_job(kind: str, blocks: int) -> dict[str, float]:
    """Run a recorded job and return what it has measured."""
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir", folder,
             __file__, "--within", kind, "--blocks", str(blocks)],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    found: dict[str, float] = json.loads(
        next(line for line in ended.stdout.splitlines() if line.startswith("{"))
    )
    return found


class Pictures(Dataset):
    """Noise for pictures, with some work for each as for decoding one."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = torch.rand(3, 32, 32)
        for _ in range(4):
            picture = (picture - picture.mean()) / picture.std()
        return picture, index % 10


class PictureStream(torch.utils.data.IterableDataset):
    """The same, in a stream."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        pictures = Pictures()
        return (pictures[index] for index in range(SAMPLES))


def measured(kind: str, blocks: int) -> dict[str, float]:
    """Train, and return what the hooks take, in us of CPU a step, and the length of a step."""
    torch.set_num_threads(1)
    iterator = iter(
        DataLoader(Pictures() if kind == "map" else PictureStream(), BATCH, num_workers=2)
    )
    steps = training(iterator)
    for _ in range(40):
        next(steps)
    hooks = TimedHooks(iterator)
    # By whether they are empty and by hook, CPU time of steps.
    found: dict[bool, dict[str, list[int]]] = {True: defaultdict(list), False: defaultdict(list)}
    own_ns = []
    began_s = time.perf_counter()
    for block in range(2 * blocks):
        is_empty = block % 4 in (1, 2)
        hooks.put(empty=is_empty)
        for step in range(BLOCK_STEPS):
            hooks.spent_ns.clear()
            cpu_ns = next(steps)
            if step >= SETTLING_STEPS:
                for name, spent_ns in hooks.spent_ns.items():
                    found[is_empty][name].append(spent_ns)
                found[is_empty][ALL].append(sum(hooks.spent_ns.values()))
                own_ns.append(cpu_ns)
    step_ms = (time.perf_counter() - began_s) / (2 * blocks * BLOCK_STEPS) * 1000
    added_us = {
        name: (statistics.median(spent) - statistics.median(found[True][name])) / 1000
        for name, spent in found[False].items()
    }
    return {**added_us, "step_ms": step_ms, "cpu_ms": statistics.median(own_ns) / 1e6}


def training(iterator: Iterator[Any]) -> Iterator[int]:
    """Train for ever; yield the CPU time of each step, in ns."""
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    while True:
        began_ns = thread_time_ns()
        x, y = next(iterator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        time.sleep(PAUSE_S)
        yield thread_time_ns() - began_ns


class TimedHooks:
    """The probe's hooks of a training step, each with the CPU time that it takes itself.

    Attributes:
        spent_ns: What each of them has taken since it was cleared.
    """

    def __init__(self, iterator: Any) -> None:
        self.spent_ns: dict[str, int] = defaultdict(int)
        self._began_ns: list[int] = []  # of the hooks under way
        self._places: list[tuple[Any, str, Any, Any]] = []  # owner, name, the hook, an empty one
        queue = iterator._data_queue  # noqa: SLF001 - as the probe does
        for owner, name in (
            (torch.autograd, "backward"),
            (dataloader._BaseDataLoaderIter, "__next__"),  # noqa: SLF001 - as above
            (dataloader._BaseDataLoaderIter, "_next_index"),  # noqa: SLF001 - as above
            (dataloader._MultiProcessingDataLoaderIter, "_try_get_data"),  # noqa: SLF001 - as above
            (queue, "_recv_bytes"),
        ):
            self._places.append((owner, name, *self._both(name, vars(owner)[name])))
        for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
            hooks = vars(optimizers)[name]
            timed = {key: self._around(name, hook) for key, hook in hooks.items()}
            empty = {key: self._around(name, lambda *_: None) for key in hooks}
            self._places.append((optimizers, name, timed, empty))

    def put(self, *, empty: bool) -> None:
        """Have the hooks called, or empty ones."""
        for owner, name, hook, empty_one in self._places:
            setattr(owner, name, empty_one if empty else hook)

    def _both(self, name: str, hook: Any) -> tuple[Any, Any]:
        """Return a hook, timed, and an empty one in its place."""
        cells = dict(zip(hook.__code__.co_freevars, hook.__closure__, strict=True))
        cell = cells["original" if "original" in cells else "read"]
        original = cell.cell_contents
        cell.cell_contents = within = self._within(name, original)

        def empty(*args: Any, **kwargs: Any) -> Any:
            return within(*args, **kwargs)

        return self._around(name, hook), self._around(name, empty)

    def _around(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        began_ns = self._began_ns

        def timed(*args: Any, **kwargs: Any) -> Any:
            began_ns.append(thread_time_ns())
            try:
                return hook(*args, **kwargs)
            finally:
                self.spent_ns[name] += thread_time_ns() - began_ns.pop()

        return timed

    def _within(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        began_ns = self._began_ns

        def untimed(*args: Any, **kwargs: Any) -> Any:
            self.spent_ns[name] += thread_time_ns() - began_ns[-1]
            try:
                return original(*args, **kwargs)
            finally:
                began_ns[-1] = thread_time_ns()

        return untimed


if __name__ == "__main__":
    main()
