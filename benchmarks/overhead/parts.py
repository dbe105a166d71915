"""What recording costs by part: the probe's hooks around batches, its threads and processes.

    python benchmarks/overhead/parts.py

A recorded process calls each hook as a worker would, and takes its thread's CPU time around it: in
a tight loop, and after pauses of 20 ms, in which other work takes the processor's caches. For what
threads and processes take it trains, with and without such pauses. The hooks of a training step
are measured in `step_cost.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from train import Numbers  # noqa: E402 - beside this script

from report import Row, write_section  # noqa: E402 - above this folder

PAGE = HERE.parents[1] / "docs" / "overhead.md"
STEPS, PAUSE_S = 400, 0.02
BATCH = 32
NOTES = """
CPU time of each hook of a batch, called in a tight loop ("warm"), and with the thread asleep for
20 ms before each ("cold"). The thread that samples stacks turns the reports of a training step's
hooks into rows, five times a second; their own time is below ("A step's CPU time").
"""


def main() -> None:
    """Measure in a recorded process, and write the section of docs/overhead.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--within", action="store_true", help="this process is recorded")
    if parser.parse_args().within:
        print(json.dumps(measured()))
        return
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir", folder,
             __file__, "--within"],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    rows = json.loads(next(line for line in ended.stdout.splitlines() if line.startswith("[")))
    found = [Row(what, values, "") for what, values in rows]
    write_section(
        "By part", "python benchmarks/overhead/parts.py", [NOTES.strip()], found, page=PAGE
    )


class Spans:
    """CPU times of this thread, by part, in nanoseconds."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = defaultdict(list)
        began = time.thread_time_ns()
        for _ in range(1000):
            time.thread_time_ns()
        self._own_ns = (time.thread_time_ns() - began) / 1000

    def take(self, part: str, call: Callable[[], Any]) -> Any:
        """Call it, and add what it took."""
        began = time.thread_time_ns()
        result = call()
        self.found[part].append(time.thread_time_ns() - began - self._own_ns)
        return result

    def parts_us(self) -> list[tuple[str, list[float]]]:
        """Return the parts with what each of their calls took, in microseconds."""
        return [(part, [ns / 1000 for ns in found]) for part, found in self.found.items()]


def measured() -> list[tuple[str, list[float]]]:
    """Return what each part takes, warm and cold, in microseconds."""
    torch.set_num_threads(1)
    rows = []
    for how, pause_s in (("warm", 0.0), ("cold", PAUSE_S)):
        in_worker = Spans()
        others = cpu_of_others(lambda pause_s=pause_s: train(pause_s))
        batches(in_worker, pause_s)
        rows += [(f"{part}, {how}, us a batch", times) for part, times in in_worker.parts_us()]
        rows += [(f"{part}, {how}, us a second", [taken]) for part, taken in others.items()]
    return [*rows, ("rank: a call of Tensor.to that copies nothing, us", to_us())]


def train(pause_s: float) -> None:
    """Train for some steps, each after a pause."""
    net = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    iterator = iter(DataLoader(Numbers(None), batch_size=BATCH, num_workers=1))
    for _ in range(STEPS):
        if pause_s:
            time.sleep(pause_s)
        x, _ = next(iterator)
        net(x).sum().backward()
        optimizer.step()


def batches(spans: Spans, pause_s: float) -> None:
    """Call what is called at each batch, in a worker or here."""
    from headrace.observe.probe.batch_recorder import BATCH_RECORDER
    from headrace.observe.probe.transform_timer import TRANSFORM_TIMER

    data = Numbers(None)
    for number in range(STEPS // 2):
        if pause_s:
            time.sleep(pause_s)
            data[number]
        began = spans.take("batch: begins", lambda: BATCH_RECORDER.began(0))
        spans.take("batch: whether it is timed", lambda: TRANSFORM_TIMER.is_due(0))
        spans.take("batch: ends", lambda: BATCH_RECORDER.ended(began, 0, BATCH))  # noqa: B023
        if number % 8 == 0:
            began_ns = time.thread_time_ns()
            with TRANSFORM_TIMER.timing(data, 0):
                made = [data[each] for each in range(BATCH)]
            timed_ns = time.thread_time_ns() - began_ns
            began_ns = time.thread_time_ns()
            made = [data[each] for each in range(BATCH)]
            plain_ns = time.thread_time_ns() - began_ns
            spans.found[f"batch: a timed one, {len(made)} calls"].append(timed_ns - plain_ns)


def cpu_of_others(work: Callable[[], None]) -> dict[str, float]:
    """Return microseconds of CPU a second that threads and processes take beside the work."""
    host = next(
        process.pid
        for ancestor in psutil.Process().parents()  # the launcher is not the next one
        for process in ancestor.children()
        if "headrace.observe.probe.collector_process" in process.cmdline()
    )
    before: dict[str, int] = {}
    began_s = time.monotonic()
    for after in (False, True):
        if after:
            work()
        now = {"collector process": ran_ns(host, host)}
        sampler = next((t for t in threading.enumerate() if t.name == "headrace-stacks"), None)
        if sampler is not None:
            now["rank: stack sampler and rows"] = ran_ns(psutil.Process().pid, sampler.native_id)
        if not after:
            before = now
    spent_s = time.monotonic() - began_s
    return {part: (now[part] - before.get(part, 0)) / spent_s / 1000 for part in now}


def ran_ns(process: int, thread: int) -> int:
    """Return the CPU time of a thread."""
    return int(Path(f"/proc/{process}/task/{thread}/schedstat").read_text().split()[0])


def to_us() -> list[float]:
    """Return what the watch over `Tensor.to` adds to a call that copies nothing."""
    tensor, original = torch.zeros(3), torch.Tensor.to
    found = []
    for _ in range(20):
        began = time.thread_time_ns()
        for _ in range(500):
            tensor.to(torch.float32)
        watched_ns = time.thread_time_ns() - began
        began = time.thread_time_ns()
        for _ in range(500):
            original(tensor, torch.float32)
        found.append((watched_ns - (time.thread_time_ns() - began)) / 500 / 1000)
    return found


if __name__ == "__main__":
    main()
