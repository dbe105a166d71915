"""Records of a long run on many hosts, generated as ranks, workers and hosts would have left them.

    python benchmarks/live_page/generate.py FOLDER --hours 8 --ranks 64 --hosts 8 --cores 96

The rows go through the collector's own store, which moves, adds up and merges them as in any run.
Every tenth minute the data is late: ranks wait for most of a step, and some cores are full.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headrace.records.host_place import job_pid
from headrace.records.parquet_tables import close_store
from headrace.records.run_folder import RunFolder
from headrace.records.schema import (
    BATCHES,
    FETCHES,
    HOSTS,
    LOADERS,
    PROCESSES,
    STACKS,
    STEPS,
    RowLimits,
)
from headrace.records.store import RecordStore
from headrace.records.system_table import sorted_columns

SECOND = 1_000_000_000
STEP_NS = SECOND // 2
CHUNK_S = 30
BEGAN_NS = 100 * SECOND
LATE_EVERY_S, LATE_S = 600, 40
STACKS_EVERY_S = 300
LINES = 200
WORKERS = 4


@dataclass(kw_only=True)
class Cluster:
    """A job on several hosts.

    Attributes:
        ranks: All of them.
        hosts: How many they are spread over.
        cores: Of each host.
        store: Where its rows go.
    """

    ranks: int
    hosts: int
    cores: int
    store: RecordStore
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def __post_init__(self) -> None:
        a_host = self.ranks // self.hosts
        self.columns = sorted_columns([
            "t_ns", "host", "memory_used_bytes", "disk_read_bytes_per_s",
            "net_received_bytes_per_s",
            *(f"core_{core}_percent" for core in range(self.cores)),
            *(f"gpu_{gpu}_utilisation_percent" for gpu in range(a_host)),
        ])  # fmt: skip
        self.rank_hosts = np.arange(self.ranks) // a_host

    def begin(self) -> None:
        """Write what is written once."""
        self.store.declare_system(self.columns)
        with self.store.transaction():
            self.store.add(HOSTS, [
                (f"node-{host}", float(self.cores), 2**40, 0, 1, host, "train")
                for host in range(self.hosts)
            ])  # fmt: skip
            for rank in range(self.ranks):
                host, first = int(self.rank_hosts[rank]), self._pid(rank)
                self.store.add(PROCESSES, [
                    (first + 1 + worker, first, "rank" if worker < 0 else "worker", rank,
                     -1 if worker < 0 else 0, worker, self.ranks, BEGAN_NS, 1, host)
                    for worker in range(-1, WORKERS)
                ])  # fmt: skip
                self.store.add(LOADERS, [(
                    rank, 0, "torch", "Scenes", "map", WORKERS, 2, 32, 1, 1, 1, "fork",
                    "/home/ann/train.py", 40, BEGAN_NS,
                )])  # fmt: skip

    def _pid(self, rank: int) -> int:
        """Return the process id of a rank, which those of its workers follow."""
        return job_pid(1000 * (rank + 1), int(self.rank_hosts[rank]))

    def chunk(self, second: int) -> None:
        """Write half a minute."""
        start = BEGAN_NS + second * SECOND
        starts = start + np.arange(CHUNK_S * SECOND // STEP_NS) * STEP_NS
        is_late = second % LATE_EVERY_S < LATE_S
        with self.store.transaction():
            for rank in range(self.ranks):
                self._steps(rank, starts, is_late=is_late)
            self._ticks(start, is_late=is_late)
            if second % STACKS_EVERY_S == 0:
                self._stacks(start)
        self.store.roll_up()
        for _ in range(3):
            self.store.move_out()

    def _steps(self, rank: int, starts: np.ndarray, *, is_late: bool) -> None:
        count = len(starts)
        share = (
            self.random.uniform(0.6, 0.9, count) if is_late else self.random.uniform(0, 0.1, count)
        )
        waits = (share * STEP_NS).astype(np.int64).tolist()
        made = (self.random.uniform(0.4, 0.95, count) * STEP_NS * WORKERS).astype(np.int64).tolist()
        first = int((starts[0] - BEGAN_NS) // STEP_NS)
        steps, fetches, batches = [], [], []
        for place, (at, wait) in enumerate(zip(starts.tolist(), waits, strict=True)):
            number, work = first + place, STEP_NS - wait
            forward, sync = work // 3, work // 20
            steps.append((
                rank, number, "train", 0, at, STEP_NS, wait, 0, forward, work - forward - sync,
                sync, 0, 0, 1, 32, 1, 0, 0, 0,
            ))  # fmt: skip
            ready = 0 if is_late else 3
            fetches.append((rank, 0, 0, number, at, wait, ready, 0, -1, -1, -1))
            worker = number % WORKERS
            batches.append((
                rank, 0, worker, number // WORKERS, at, made[place], made[place], made[place], 32,
                3_000_000, 64, 0, 0, 10_000, WORKERS * STEP_NS - made[place], 0,
            ))  # fmt: skip
        self.store.add(STEPS, steps)
        self.store.add(FETCHES, fetches)
        self.store.add(BATCHES, batches)

    def _ticks(self, start: int, *, is_late: bool) -> None:
        busy = [place for place, name in enumerate(self.columns) if name.startswith("core_")]
        gpus = [place for place, name in enumerate(self.columns) if name.startswith("gpu_")]
        for tick in range(2 * CHUNK_S):
            for host in range(self.hosts):
                row = np.full(len(self.columns), 1e9)
                row[busy] = self.random.uniform(80, 100) if is_late else self.random.uniform(20, 60)
                row[gpus] = self.random.uniform(10, 30) if is_late else self.random.uniform(90, 100)
                values = row.tolist()
                values[self.columns.index("t_ns")] = start + (tick + 1) * SECOND // 2
                values[self.columns.index("host")] = host
                values[self.columns.index("memory_used_bytes")] = 2**38
                self.store.add_system(self.columns, values)

    def _stacks(self, start: int) -> None:
        rows = []
        for rank in range(self.ranks):
            first = self._pid(rank)
            for worker in range(-1, WORKERS):
                phase, loader = ("forward", -1) if worker < 0 else ("work", 0)
                rows += [
                    (first + 1 + worker, rank, loader, worker, phase, _stack(line), start, 10,
                     SECOND // 5, SECOND // 5, start + SECOND)
                    for line in self.random.integers(0, LINES, 5).tolist()
                ]  # fmt: skip
        self.store.add(STACKS, rows)


def _stack(line: int) -> str:
    outer = [f"/venv/lib/torch/worker.py:{100 + depth}:outer_{depth}" for depth in range(12)]
    return "\n".join([*outer, f"/home/ann/data.py:{line + 1}:Scenes.part_{line % 40}"])


def generate(path: Path, *, hours: float, ranks: int, hosts: int, cores: int, closes: bool) -> None:
    """Write a run into a folder; unless it `closes`, its records stay open."""
    path.mkdir(parents=True)
    run = RunFolder(path)
    attempt = run.start_attempt(command=["train.py"], argv=["train.py"], world_size=ranks)
    folder = run.records(attempt.number)
    folder.mkdir(parents=True, exist_ok=True)
    store = RecordStore(folder / "node-0.sqlite", RowLimits())
    cluster = Cluster(ranks=ranks, hosts=hosts, cores=cores, store=store)
    cluster.begin()
    for second in range(0, int(hours * 3600), CHUNK_S):
        cluster.chunk(second)
    if closes:
        close_store(store, folder)
        run.end_attempt(attempt.number, 0)
        sentence = "GPUs wait for data in 7 % of the time."
        (path / "diagnosis.json").write_text(json.dumps({"verdict": {"sentence": sentence}}))
    else:
        store.close()


def main() -> None:
    """Generate a run, and print how long that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hours", type=float, default=8)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--cores", type=int, default=96)
    parser.add_argument("--open", action="store_true", help="leave the records as they run")
    options = parser.parse_args()
    began = time.perf_counter()
    generate(
        options.folder, hours=options.hours, ranks=options.ranks, hosts=options.hosts,
        cores=options.cores, closes=not options.open,
    )  # fmt: skip
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
