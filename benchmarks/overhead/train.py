"""Trains beside a switch that goes on and off: what recording costs, within one process.

Started by run.py, through `headrace run` or without. Blocks of steps are recorded, not recorded,
deep, in turns; each block's first steps do not count: in them workers still hold what they made
before. Nor do those under torch.profiler and those after it, for which workers had time to make
batches in advance. Prints one JSON line for each block.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from headrace.core import env
from headrace.data.transforms import RandomResizedCrop, decode_image
from headrace.records.live_switch import LiveSwitch

SETTLING_STEPS, SETTLING_S = 6, 0.3
"""What passes at least before a block counts: the switch is seen by then."""


MODES = ("off", "on", "on", "off", "off", "deep", "deep", "off")
SAMPLES = 1 << 30
"""More than any run comes to, taken in their order: a run is one epoch."""


PROGRESS_BYTES = 16
"""Two numbers of 8 bytes: the steps made so far, and 1 where the training is to end."""


ON_CUDA = {"cuda-short-steps": 2, "cuda-steps": 48}
"""Cases that train on a CUDA device, and the layers of their networks."""


class Watched(Dataset):
    """Samples whose first one notes what records the process that makes it."""

    def __init__(self, threads: Path | None) -> None:
        self.threads = threads

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.threads is not None:
            note_samplers(self.threads)
            self.threads = None
        return self.sample(index)

    def sample(self, index: int) -> tuple[torch.Tensor, int]:
        """Return one sample."""
        raise NotImplementedError


class Photos(Watched):
    """JPEGs, decoded and cropped, over and over."""

    def __init__(self, threads: Path, folder: Path) -> None:
        super().__init__(threads)
        self.files = sorted(folder.rglob("*.jpg"))
        self.crop = RandomResizedCrop(224)

    def sample(self, index: int) -> tuple[torch.Tensor, int]:
        """Return one image, cropped."""
        image = decode_image(self.files[index % len(self.files)].read_bytes())
        return torch.from_numpy(self.crop(image)), index % 10


def note_samplers(folder: Path) -> None:
    """Note, by a file, the thread of this process that samples stacks, where there is one."""
    for thread in threading.enumerate():
        if thread.name == "headrace-stacks":
            (folder / f"{os.getpid()}-{thread.native_id}").touch()


class Numbers(Watched):
    """Samples that cost nothing: what is left is the price of a step."""

    def sample(self, index: int) -> tuple[torch.Tensor, int]:
        """Return one."""
        return torch.full((64,), float(index % 7)), index % 10


def main() -> None:
    """Train and time the blocks; without a recording, all of them are off."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=["loader-bound", "device-bound", "short-steps", *ON_CUDA])
    parser.add_argument("--images", type=Path)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=Path, required=True, help="gets names of what records")
    parser.add_argument("--turns", action="store_true", help="each block waits for a line")
    parser.add_argument("--progress", type=Path, help="train on; write the steps to this file")
    options = parser.parse_args()
    if options.progress:
        train_on(training(options), options.progress, options.threads)
        return
    records = env.RECORDS_DIR.get()
    switch = LiveSwitch(Path(records)) if records else None
    steps, mode = iter(training(options)), "off"
    for block in range(options.blocks):
        before, mode = mode, MODES[block % len(MODES)]
        if switch is not None and mode != before:
            switch.on = mode != "off"
            switch.go_deep(3600 if mode == "deep" else 0)
        if options.turns:
            sys.stdin.readline()
        waited = time.perf_counter()
        burst_s, burst_steps = traced(steps) if mode == "deep" else (0.0, 0)
        settle(steps)
        everyone, workers = processes(recorded=switch is not None), below(psutil.Process())
        note_samplers(options.threads)
        recorders = [*options.threads.iterdir()]
        all_began, workers_began = cpu_s(everyone), cpu_s(workers)
        probe_began = probe_s(everyone, recorders)
        finish_device_work()
        began, cpu_began = time.perf_counter(), time.thread_time()
        for _ in range(options.steps):
            next(steps)
        finish_device_work()
        took_s, own_s = time.perf_counter() - began, time.thread_time() - cpu_began
        all_s, workers_s = cpu_s(everyone) - all_began, cpu_s(workers) - workers_began
        probe_part = (probe_s(everyone, recorders) - probe_began) / all_s
        print(json.dumps({"block": block, "mode": mode, "step_ms": took_s / options.steps * 1000,
                          "cpu_us": own_s / options.steps * 1e6,
                          "all_cpu_us": all_s / options.steps * 1e6,
                          "workers_cpu_us": workers_s / options.steps * 1e6,
                          "probe_part": probe_part,
                          "burst_s": burst_s, "burst_steps": burst_steps,
                          "whole_s": time.perf_counter() - waited}), flush=True)  # fmt: skip


def finish_device_work() -> None:
    """Wait for the device, where one is in use: a block has all of its work."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def train_on(steps: Iterator[None], progress: Path, threads: Path) -> None:
    """Train until the file says that it is enough."""
    with progress.open("r+b") as file:
        shared = memoryview(mmap.mmap(file.fileno(), PROGRESS_BYTES)).cast("q")
    for _ in steps:
        if not shared[0]:
            note_samplers(threads)
        shared[0] += 1
        if shared[1]:
            return


def processes(*, recorded: bool) -> list[int]:
    """Return this process and its workers; with recording also the launcher and what records."""
    first = psutil.Process().parent() if recorded else psutil.Process()
    assert first is not None
    return [first.pid, *below(first)]


def below(process: psutil.Process) -> list[int]:
    """Return the processes that this one has started, and those that they have."""
    return [each.pid for each in process.children(recursive=True)]


def cpu_s(pids: list[int]) -> float:
    """Return the CPU time of processes, those of their threads that have ended included."""
    # The kernel's clock of a process: its number in the upper bits, and 2 for "as scheduled".
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def probe_s(everyone: list[int], samplers: list[Path]) -> float:
    """Return the CPU time of what records beside the script: a process, and threads in others."""
    hosts = [
        pid for pid in everyone if b"headrace.observe.probe.collector_process" in command_of(pid)
    ]
    threads_ns = 0
    for file in samplers:
        pid, _, thread = file.name.partition("-")
        ran_ns, *_ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text("ascii").split()
        threads_ns += int(ran_ns)
    return cpu_s(hosts) + threads_ns / 1e9


def command_of(pid: int) -> bytes:
    """Return a process's command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def traced(steps: Iterator[None]) -> tuple[float, int]:
    """Train on until the burst of torch.profiler is over; return the seconds and steps it took."""
    from headrace.observe.probe.profiler_trace import (
        PROFILER_TRACE,  # the recorder's, which is in this process
    )

    began, done = time.perf_counter(), 0
    while PROFILER_TRACE.is_due or PROFILER_TRACE.under_way:
        next(steps)
        done += 1
    return time.perf_counter() - began, done


def settle(steps: Iterator[None]) -> None:
    """Train on until what was before the block is over."""
    began = time.perf_counter()
    for done in count(1):
        next(steps)
        if done >= SETTLING_STEPS and time.perf_counter() - began >= SETTLING_S:
            return


def training(options: argparse.Namespace) -> Iterator[None]:
    """Yield after each step, for ever."""
    torch.set_num_threads(1)
    if options.case == "loader-bound":
        data: Dataset = Photos(options.threads, options.images)
        net, size = nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, 10)), slice(None, None, 14)
    else:
        data = Numbers(options.threads)
        hidden = [nn.Linear(64, 64), nn.ReLU()] * (ON_CUDA.get(options.case, 2) // 2)
        net, size = nn.Sequential(*hidden, nn.Linear(64, 10)), None
    device = "cuda" if options.case in ON_CUDA else "cpu"
    net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    workers = 0 if options.case in {"short-steps", "cuda-short-steps"} else 2
    for x, y in DataLoader(data, batch_size=32, num_workers=workers):
        inputs = (x if size is None else x[:, size, size].float() / 255).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), y.to(device)).backward()
        optimizer.step()
        if options.case == "device-bound":
            time.sleep(0.02)
        yield


if __name__ == "__main__":
    main()
