"""Tables of a run, as the probe would record it: a small pipeline played through batch by batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.records.schema import PHASES, TABLES, TABLES_BY_NAME, Table

MS = 1_000_000
SCRIPT = "/home/ann/train.py"
AUGMENT = "/home/ann/augment.py"
PIL = "/venv/lib/python3.11/site-packages/PIL/ImageFilter.py"
WORKER_LOOP = (
    "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py:349:_worker_loop"
)
_ARROW = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}


def row_of(table: Table, **values: Any) -> tuple[Any, ...]:
    """Return a row of a table: these values, and nothing in its other columns."""
    nothing = {"int": 0, "float": 0.0, "text": ""}
    known = {each.name: nothing[each.kind] for each in table.fields}
    assert values.keys() <= known.keys(), values.keys() - known.keys()
    return tuple({**known, **values}.values())


class RunTables:
    """Rows by table, and the Arrow tables made of them."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {table.name: [] for table in TABLES}
        self.system: dict[str, list[Any]] = {"t_ns": []}

    def add(self, table: str, **values: Any) -> None:
        known = TABLES_BY_NAME[table]
        self.rows[table].append(dict(zip(known.columns, row_of(known, **values), strict=True)))

    def table(self, name: str) -> pa.Table:
        if name == "system":
            return pa.table(self.system)
        fields = TABLES_BY_NAME[name].fields
        schema = pa.schema([(each.name, _ARROW[each.kind]) for each in fields])
        return pa.Table.from_pylist(self.rows[name], schema=schema)


@dataclass(kw_only=True)
class Run:
    """A run to be played; times in milliseconds."""

    workers: int = 2
    prefetch_factor: int = 2
    batches: int = 120
    epochs: int = 1
    ranks: int = 1
    cores: float = 8.0
    busy_cores: float | None = None
    service_ms: float = 20.0
    service_spread: float = 0.1
    worker_cpu: float = 0.97
    threads: float = 1.0
    collate_ms: float = 0.5
    send_ms: float = 0.2
    ready_ms: float = 0.1
    held_every: int = 0  # taking every so many batches over takes longer,
    held_ms: float = 0.0  # by so much
    long_every: int = 0  # making every so many takes longer,
    long_ms: float = 0.0  # by so much
    sampler_ms: float = 0.0  # in the sampler, for each batch
    order: tuple[int, ...] = ()  # workers that make an iterable dataset's batches, in turn
    read_bytes: int = 0
    reads: int = -1
    restart_ms: float = 5.0
    phases_ms: dict[str, float] = field(
        default_factory=lambda: {
            "copy": 0.2,
            "forward": 4.0,
            "backward": 5.0,
            "sync": 0.0,
            "optimizer": 1.0,
            "other": 0.3,
        }
    )
    slow_rank: int = -1
    slow_rank_ms: float = 0.0
    outlier_every: int = 0
    outlier_ms: float = 0.0
    loader: bool = True
    seed: int = 7
    worker_stacks: list[tuple[str, float, float]] = field(default_factory=list)
    rank_stacks: list[tuple[str, str, float, float]] = field(default_factory=list)
    transforms: list[tuple[str, str, int, float]] = field(default_factory=list)


def worker_pid(rank: int, worker: int, epoch: int = 0) -> int:
    return 1000 + 10_000 * rank + 100 * epoch + worker


def stack(*frames: str) -> str:
    return "\n".join(frames)


def play(run: Run) -> RunTables:
    """Return the tables of a run."""
    tables = RunTables()
    tables.add("hosts", host="one", cores=run.cores, memory_bytes=2**36, attempt=1)
    random = np.random.default_rng(run.seed)
    end = 0
    for rank in range(run.ranks):
        tables.add("processes", pid=100 + rank, role="rank", rank=rank, loader=-1, worker=-1)
        if run.loader:
            _add_loader(tables, run, rank)
        now = 50 * MS
        number = 0
        for epoch in range(run.epochs):
            now, number = _play_epoch(tables, run, rank, epoch, now, number, random)
        end = max(end, now)
        _add_stacks(tables, run, rank, end)
        _add_transforms(tables, run, rank)
    if run.busy_cores is not None:
        _add_system(tables, run, end)
    return tables


def _add_loader(tables: RunTables, run: Run, rank: int) -> None:
    tables.add(
        "loaders", rank=rank, loader=0, kind="torch", dataset="Faces",
        style="iterable" if run.order else "map",
        workers=run.workers, prefetch_factor=run.prefetch_factor if run.workers else 0,
        batch_size=32, in_order=1, start_method="fork", file=SCRIPT, line=40,
    )  # fmt: skip


def _play_epoch(
    tables: RunTables, run: Run, rank: int, epoch: int, now: int, number: int, random: Any
) -> tuple[int, int]:
    for worker in range(run.workers if run.loader else 0):
        tables.add(
            "processes", pid=worker_pid(rank, worker, epoch), role="worker", rank=rank, loader=0,
            worker=worker, started_ns=now, attempt=1,
        )  # fmt: skip
    began = now + int(run.restart_ms * MS)
    free = [began] * max(run.workers, 1)
    made = [0] * max(run.workers, 1)
    delivered: list[int] = []
    for batch in range(run.batches):
        requested_ns = now
        service = int(run.service_ms * MS * max(random.normal(1, run.service_spread), 0.1))
        service += _at_times(run.long_every, run.long_ms, batch)
        if not run.loader:
            arrived = requested_ns
        elif run.workers == 0:
            _add_batch(tables, run, rank, -1, epoch * run.batches + batch, now, service, 0)
            arrived = now + service
        else:
            worker = run.order[batch % len(run.order)] if run.order else batch % run.workers
            depth = run.workers * run.prefetch_factor
            issued = delivered[batch - depth] if batch >= depth else began
            start = max(free[worker], issued)
            idle = max(start - free[worker], 0)
            _add_batch(tables, run, rank, worker, made[worker], start, service, idle)
            made[worker] += 1
            free[worker] = start + max(service, int(run.send_ms * MS))
            at_hand = free[worker] <= requested_ns
            arrived = max(free[worker], requested_ns) + int(run.ready_ms * MS)
            arrived += _at_times(run.held_every, run.held_ms, batch)
        if run.loader:
            arrived += int(run.sampler_ms * MS)
            tables.add(
                "fetches", rank=rank, loader=0, epoch=epoch, batch=batch, start_ns=requested_ns,
                wait_ns=arrived - requested_ns,
                ready=int(at_hand) if run.workers else -1, receive_ns=-1, receive_cpu_ns=-1,
                sampler_ns=int(run.sampler_ms * MS),
            )  # fmt: skip
        delivered.append(arrived)
        now = _add_step(tables, run, rank, number, requested_ns, arrived - requested_ns, random)
        number += 1
    return now, number


def _at_times(every: int, ms: float, number: int) -> int:
    return int(ms * MS) if every and number % every == every - 1 else 0


def _add_batch(
    tables: RunTables, run: Run, rank: int, worker: int, number: int, start: int, wall: int,
    idle: int,
) -> None:  # fmt: skip
    cpu = int(wall * run.worker_cpu)
    tables.add(
        "batches", rank=rank, loader=0, worker=worker, batch=number, start_ns=start, wall_ns=wall,
        cpu_ns=cpu, process_cpu_ns=int(cpu * run.threads), samples=32, read_bytes=run.read_bytes,
        reads=run.reads, collate_ns=int(run.collate_ms * MS), idle_ns=idle,
        send_ns=int(run.send_ms * MS),
    )  # fmt: skip


def _add_step(
    tables: RunTables, run: Run, rank: int, number: int, start: int, wait: int, random: Any
) -> int:
    phases = {
        name: int(ms * MS * max(random.normal(1, 0.03), 0.5)) for name, ms in run.phases_ms.items()
    }
    phases["data_wait"] = wait
    if rank == run.slow_rank:
        phases["forward"] += int(run.slow_rank_ms * MS)
    if run.slow_rank >= 0 and rank != run.slow_rank:
        phases["sync"] += int(run.slow_rank_ms * MS)
    if run.outlier_every and number % run.outlier_every == run.outlier_every - 1:
        phases["other"] += int(run.outlier_ms * MS)
    wall = sum(phases.values())
    tables.add(
        "steps", rank=rank, step=number, kind="train", loader=0 if run.loader else -1,
        start_ns=start, wall_ns=wall, batches=1, samples=32,
        sync_measured=int(run.ranks > 1), copies=2, pageable_copies=2, blocking_copies=2,
        **{f"{phase}_ns": phases[phase] for phase in PHASES},
    )  # fmt: skip
    return start + wall


def _add_stacks(tables: RunTables, run: Run, rank: int, end: int) -> None:
    for second in range(0, end, 1_000_000_000):
        for text, share, cpu in run.worker_stacks if run.loader else ():
            for worker in range(run.workers):
                _add_stack(tables, rank, 0, worker, "work", text, second, share, cpu)
            if run.workers == 0:
                _add_stack(tables, rank, -1, -1, "data_wait", text, second, share, cpu)
        for text, phase, share, cpu in run.rank_stacks:
            _add_stack(tables, rank, -1, -1, phase, text, second, share, cpu)


def _add_stack(
    tables: RunTables, rank: int, loader: int, worker: int, phase: str, text: str, start: int,
    share: float, cpu: float,
) -> None:  # fmt: skip
    wall = int(share * 1e9)
    pid = 100 + rank if worker < 0 else worker_pid(rank, worker)
    tables.add(
        "stacks", pid=pid, rank=rank, loader=loader, worker=worker, phase=phase, stack=text,
        start_ns=start, samples=int(share * 50), wall_ns=wall, cpu_ns=int(wall * cpu),
    )  # fmt: skip


def _add_transforms(tables: RunTables, run: Run, rank: int) -> None:
    whole = sum(share for *_, share in run.transforms)
    rows = [*run.transforms, ("Faces.__getitem__", AUGMENT, 5, max(whole, 1.0))]
    for name, file, line, share in rows if run.transforms else ():
        wall = int(share * 1e9)
        tables.add(
            "transforms", rank=rank, loader=0, name=name, file=file, line=line, calls=100,
            wall_ns=wall, cpu_ns=wall, one_in=8,
        )  # fmt: skip


def _add_system(tables: RunTables, run: Run, end: int) -> None:
    assert run.busy_cores is not None
    ticks = list(range(0, end + 1, 100 * MS))
    tables.system = {"t_ns": ticks}
    for core in range(int(run.cores)):
        tables.system[f"core_{core}_percent"] = [100 * run.busy_cores / run.cores] * len(ticks)
