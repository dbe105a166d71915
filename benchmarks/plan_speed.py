"""What does the plan's arithmetic take in time and memory, and how many shards does a rank read?

python benchmarks/plan_speed.py           # prints the last two tables of docs/shuffle.md
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.sampling import Plan
from headrace.sampling.seeds import sample_seed
from report import machine

GLOBAL_BATCH = 256
ROUNDS = 5
WORLDS = (2, 4, 8, 16, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One dataset to plan."""

    name: str
    num_samples: int
    shard_sizes: np.ndarray | None

    def plan(self) -> Plan:
        """Return the plan of its first epoch."""
        return Plan(
            fingerprint="speed", num_samples=self.num_samples, shard_sizes=self.shard_sizes,
            seed=0, epoch=0, global_batch=GLOBAL_BATCH,
        )  # fmt: skip


CASES = (
    Case(name="1.2 million, 1,000 shards", num_samples=1_200_000, shard_sizes=np.full(1000, 1200)),
    Case(name="10^9, 100,000 shards", num_samples=10**9, shard_sizes=np.full(100_000, 10_000)),
    Case(name="10^9, each its own shard", num_samples=10**9, shard_sizes=None),
)


def seconds(work: Callable[[], object]) -> float:
    """Return the median of a few runs."""
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most memory allocated at once while working."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def batch_us(plan: Plan, world: int) -> float:
    """Return the microseconds that one call of batch takes, called for one batch at a time."""
    calls = 400
    first = plan.num_batches(world) // 2
    return seconds(lambda: [plan.batch(first + g, 0, world) for g in range(calls)]) / calls * 1e6


def row(case: Case) -> str:
    """Return the case's row of the table."""
    plan = case.plan()
    count = 1_000_000
    rate = count / seconds(lambda: plan.samples(0, count)) / 1e6
    cells = (
        case.name,
        f"{rate:.1f}",
        f"{batch_us(plan, 1):.0f}",
        f"{batch_us(plan, 8):.0f}",
        f"{seconds(case.plan) * 1e3:.2f}",
        f"{peak_bytes(case.plan) / 1e3:,.0f}",
        f"{peak_bytes(lambda: plan.batch(1000, 0, 1)) / 1e3:,.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def shard_ratios(global_batch: int, lanes: int | None) -> str:
    """Return a row: shards that a rank reads, as a multiple of its part, mean (most) of the ranks.

    Counted from the samples of a whole epoch over 1,024 shards of 900 to 1,500 samples.
    """
    sizes = np.random.default_rng(0).integers(900, 1501, size=1024)
    plan = Plan(
        fingerprint="ratio", num_samples=int(sizes.sum()), shard_sizes=sizes, seed=0, epoch=0,
        global_batch=global_batch, lanes=lanes, drop_last=True,
    )  # fmt: skip
    # A rank's part of a batch is a slice of the global batch at every world size.
    samples = np.stack([plan.batch(g, 0, 1) for g in range(plan.num_batches())])
    shards = np.repeat(np.arange(len(sizes)), sizes)[samples]
    cells = [f"{plan.lanes} lanes, global batch {global_batch}"]
    for world in WORLDS:
        if global_batch % world:
            cells.append("-")
            continue
        parts = np.split(shards, world, axis=1)
        ratios = np.array([len(np.unique(part)) for part in parts]) * world / len(sizes)
        cells.append(f"{ratios.mean():.2f} ({ratios.max():.2f})")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the tables."""
    columns = (
        "dataset", "million positions/s", "batch of 256, us", "1/8 of it, us", "plan built in, ms",
        "peak memory to build, kB", "peak memory of a batch, kB",
    )  # fmt: skip
    print(f"{machine()}\n")
    print("| " + " | ".join(columns) + " |\n|---" + "|---:" * (len(columns) - 1) + "|")
    for case in CASES:
        print(row(case), flush=True)
    each = seconds(lambda: [sample_seed(0, 0, sample) for sample in range(100_000)]) / 100_000
    print(f"\nOne sample_seed: {each * 1e6:.2f} us.\n")
    print("| shards a rank reads, x 1/R | " + " | ".join(f"R = {world}" for world in WORLDS) + " |")
    print("|---" + "|---:" * len(WORLDS) + "|")
    for global_batch, lanes in ((256, None), (1024, None), (16, None), (100, None), (256, 60)):
        print(shard_ratios(global_batch, lanes), flush=True)


if __name__ == "__main__":
    main()
