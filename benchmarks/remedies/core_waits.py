"""How long processes wait for a core where there are more of them than cores, and the model of it.

    python benchmarks/remedies/core_waits.py

A process that mostly sleeps, as a rank does, and others that mostly compute, as its workers do, run
for some seconds on all cores of the host; each counts by how much longer its work took than its CPU
time. That is held against what `whatif/core_waits.py` estimates of their shares of CPU time alone.
Writes a section of docs/predictions.md. The host must have nothing else to do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
import zlib
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from headrace.observe.whatif.core_waits import core_waits  # noqa: E402 - after the path
from headrace.observe.whatif.simulation import (  # noqa: E402 - as above
    BatchCosts,
    Pipeline,
    SimulationResult,
)
from report import Row, command_line, write_section  # noqa: E402 - as above

PAGE = HERE.parents[1] / "docs" / "predictions.md"
CORES = len(os.sched_getaffinity(0))
COMPUTE_MS, RANK_MS, RANK_SLEEP_MS = 40.0, 10.0, 17.0
CASES = [
    (CORES + more, sleep_ms) for more in (0, 1, 2) for sleep_ms in (0.0, 4.0, 10.0, 20.0, 40.0)
]
"""Workers, and how long each sleeps between two pieces of work."""
TEXT = b"".join(b"%d," % (number * number % 7919) for number in range(1600))
NOTES = """
A process that computes 10 ms at a time and sleeps 17 in between, as a rank does, and some that
compute 40 ms at a time and sleep less, as its workers do, run on all cores of the host. **On a
core**: the share of its time that each has one. **Waits**: how much longer its work took than its
CPU time, over that CPU time. **Estimated**: what the model of predictions says of these shares
alone.
"""
LEAST = 0.1
"""Waits of less than this share of the CPU time are compared by their difference alone."""


@dataclass(frozen=True)
class Measured:
    """Of a process: its share of a core, and its waits for one over its CPU time."""

    share: float
    wait: float


def work(cpu_ms: float) -> float:
    """Compute for so much CPU time, and return the seconds that it took."""
    began_s, until_ns = time.perf_counter(), time.thread_time_ns() + int(cpu_ms * 1e6)
    while time.thread_time_ns() < until_ns:
        zlib.compress(TEXT, 6)
    return time.perf_counter() - began_s


def run(cpu_ms: float, sleep_ms: float, stop: Event, seed: int) -> Measured:
    """Compute and sleep in turn until the end, each for 0.6 to 1.4 times as long."""
    chance, began_s, took_s, used_s = random.Random(seed), time.perf_counter(), 0.0, 0.0
    while not stop.is_set():
        each_ms = cpu_ms * chance.uniform(0.6, 1.4)
        took_s += work(each_ms)
        used_s += each_ms / 1000
        time.sleep(sleep_ms * chance.uniform(0.6, 1.4) / 1000)
    return Measured(used_s / (time.perf_counter() - began_s), took_s / used_s - 1.0)


def worker(sleep_ms: float, stop: Event, seed: int, found: SimpleQueue[Measured]) -> None:
    """Run as a worker."""
    found.put(run(COMPUTE_MS, sleep_ms, stop, seed))


def measured(workers: int, sleep_ms: float, seconds: float) -> tuple[Measured, Measured]:
    """Return what a rank and its workers, as their mean, did beside each other."""
    context = multiprocessing.get_context("fork")
    stop, found = context.Event(), context.SimpleQueue()
    processes = [
        context.Process(target=worker, args=(sleep_ms, stop, number, found))
        for number in range(workers)
    ]
    for each in processes:
        each.start()
    timer = context.Process(target=_end, args=(seconds, stop))
    timer.start()
    rank = run(RANK_MS, RANK_SLEEP_MS, stop, workers)
    each_worker = [found.get() for _ in processes]
    for each in (*processes, timer):
        each.join()
    means = [
        float(np.mean([getattr(one, name) for one in each_worker])) for name in ("share", "wait")
    ]
    return rank, Measured(*means)


def _end(seconds: float, stop: Event) -> None:
    time.sleep(seconds)
    stop.set()


def estimated(workers: int, rank: Measured, each: Measured) -> tuple[float, float]:
    """Return the estimated waits of the rank and of a worker, by their shares of cores alone."""
    one, made = np.ones((1, 1)), np.full((1, 1), each.share * workers)
    costs = BatchCosts(
        service_ns=made, service_cpu_ns=made, demand_ns=made, consume_ns=one,
        consume_cpu_ns=one * rank.share,
    )  # fmt: skip
    result = SimulationResult(
        period_ns=one[0], consume_ns=one[0], local_share=one[0], joined_ns=0 * one[0]
    )
    waits = core_waits(Pipeline(workers=workers, cores=CORES), costs, result)
    return float(waits.consumer[0]), float(waits.workers[0])


def main() -> None:
    """Measure all cases and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each case")
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    table = [
        *NOTES.strip().splitlines(),
        "",
        "| workers | on a core | rank on one | rank waits | estimated | each waits | estimated |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios: dict[str, list[float]] = {"a rank": [], "a worker": []}
    for workers, sleep_ms in CASES:
        rank, each = measured(workers, sleep_ms, options.seconds)
        waits = estimated(workers, rank, each)
        table.append(
            f"| {workers} | {each.share:.0%} | {rank.share:.0%} | {rank.wait:.2f} |"
            f" {waits[0]:.2f} | {each.wait:.2f} | {waits[1]:.2f} |"
        )
        print(table[-1], flush=True)
        for name, found, guess in zip(ratios, (rank.wait, each.wait), waits, strict=True):
            if found >= LEAST:
                ratios[name].append((1.0 + guess) / (1.0 + found))
    rows = [
        Row(f"time of {name}'s work, estimated over measured", values, "")
        for name, values in ratios.items()
    ]
    write_section("Waits for cores", command_line(), table, rows, page=PAGE, dry=options.dry)


if __name__ == "__main__":
    main()
