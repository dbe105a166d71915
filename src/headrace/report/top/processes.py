"""Rates of ranks and workers: batches a second, busy shares, CPU use and hottest lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from headrace.observe.doctor.stack_samples import find_hotspot, read_stack_samples
from headrace.observe.whatif.tables import Columns, Flags, Tables, columns, row_count, select_rows
from headrace.report.top.step_rates import TimeWindow, per_second, row_times

_STACKS_NS = 5_000_000_000
"""Time over which the hottest line is determined, plus the second of a row of `stacks`."""
_ONE_TICK_NS = 200_000_000
"""All processes are sampled within this time of a tick."""
Key: TypeAlias = tuple[int, int, int]
"""Rank, loader, worker; the last two are -1 for a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRates:
    """The rates of a rank, a worker, or several merged workers; None if unknown."""

    rank: int
    loader: int | None = None  # None for a rank
    worker: int | None = None  # None for a rank, and for merged workers
    count: int = 1  # number of processes
    batches_per_s: float = 0.0  # made, or taken by a rank, over all of them
    busy: float | None = None  # share of time making batches; of a rank, without data wait
    cpu: float | None = None  # CPU time over time: 1 is one core
    doing: str = ""  # the line sampled most: "augment.py:31 RandomBlur"; empty if there is none
    doing_share: float = 0.0  # of the process's time, 0 to 1

    @property
    def role(self) -> str:
        """The kind of process: rank, worker or workers."""
        if self.loader is None:
            return "rank"
        return "worker" if self.count == 1 else "workers"


def read_processes(tables: Tables, window: TimeWindow) -> tuple[ProcessRates, ...]:
    """Return the ranks and workers that ran at the window's end, ranks before their workers."""
    processes, usage = columns(tables, "processes"), columns(tables, "process_usage")
    usage = select_rows(usage, usage["t_ns"] <= window.until_ns)
    stacks = columns(tables, "stacks")
    stacks = select_rows(stacks, stacks["start_ns"] > window.until_ns - _STACKS_NS - 1_000_000_000)
    steps, batches = columns(tables, "steps"), columns(tables, "batches")
    keys = _keys(processes, stacks)
    alive = {keys[pid] for pid in _alive(processes, usage, stacks, window) if pid in keys}
    if not alive:  # no process was sampled yet
        alive = {(int(rank), -1, -1) for rank in np.unique(steps["rank"])}
    found = []
    for key in sorted(alive):
        pids = [pid for pid, its_key in keys.items() if its_key == key]
        known = (
            _rank_rates(steps, key, window) if key[2] < 0 else _worker_rates(batches, key, window)
        )
        own = select_rows(stacks, _rows_of(stacks, key))
        found.append(
            _with_code(known, own, _cpu(select_rows(usage, np.isin(usage["pid"], pids)), window))
        )
    return tuple(found)


def merge_workers(processes: Iterable[ProcessRates]) -> tuple[ProcessRates, ...]:
    """Return the workers of each loader merged into one, for lack of space."""
    merged: list[ProcessRates] = []
    for process in processes:
        last = merged[-1] if merged else None
        same = last is not None and (last.rank, last.loader) == (process.rank, process.loader)
        if last is None or not same or process.loader is None:
            merged.append(process)
            continue
        count = last.count + 1
        hotter = process if process.doing_share > last.doing_share else last
        merged[-1] = replace(
            last,
            worker=None,
            count=count,
            batches_per_s=last.batches_per_s + process.batches_per_s,
            busy=_mean_of_both(last.busy, process.busy, last.count),
            cpu=_mean_of_both(last.cpu, process.cpu, last.count),
            doing=hotter.doing,
            doing_share=hotter.doing_share,
        )
    return tuple(merged)


def _mean_of_both(mean: float | None, value: float | None, count: int) -> float | None:
    if mean is None or value is None:
        return value if mean is None else mean
    return (mean * count + value) / (count + 1)


def _keys(processes: Columns, stacks: Columns) -> dict[int, Key]:
    """Return the key of each process by pid; a reused pid belongs to the later process."""
    found: dict[int, Key] = {}
    for rows in (processes, stacks):
        names = ("pid", "rank", "loader", "worker")
        for pid, rank, loader, worker in zip(*(rows[name] for name in names), strict=True):
            of_worker = (int(loader), int(worker)) if worker >= 0 else (-1, -1)
            found[int(pid)] = (int(rank), *of_worker)
    return found


def _alive(
    processes: Columns, usage: Columns, stacks: Columns, window: TimeWindow
) -> Iterator[int]:
    """Yield the pids sampled in the last tick, and those too new for it."""
    seen = [(processes["pid"], processes["started_ns"]), (stacks["pid"], stacks["start_ns"])]
    if row_count(usage) == 0:
        new_ns = window.since_ns
    else:
        last = int(usage["t_ns"].max())
        before = usage["t_ns"][usage["t_ns"] < last - _ONE_TICK_NS]
        at_last = (usage["t_ns"] >= last - _ONE_TICK_NS) & (usage["threads"] > 0)  # 0: it has ended
        yield from map(int, np.unique(usage["pid"][at_last]))
        # A process gets a row at its second sample; a stack, when its second is over.
        new_ns = min(int(before.max()) if len(before) else last, window.until_ns - 1_000_000_000)
        seen = seen[:1]
    for pids, at_ns in seen:
        yield from map(int, pids[(at_ns >= new_ns) & (at_ns <= window.until_ns)])


def _rows_of(rows: Columns, key: Key) -> Flags:
    rank, loader, worker = key
    own: Flags = rows["rank"] == rank
    if worker < 0:
        return np.asarray(own & (rows["worker"] < 0))
    return np.asarray(own & (rows["loader"] == loader) & (rows["worker"] == worker))


def _rank_rates(steps: Columns, key: Key, window: TimeWindow) -> ProcessRates:
    own = select_rows(steps, steps["rank"] == key[0])
    if row_count(own) == 0:
        return ProcessRates(rank=key[0])
    start, end = row_times(own)
    latest = select_rows(own, end > min(window.since_ns, float(end.max()) - 1.0))
    wall, wait = float(latest["wall_ns"].sum()), float(latest["data_wait_ns"].sum())
    return ProcessRates(
        rank=key[0],
        batches_per_s=per_second(start, end, own["batches"], window),
        busy=1.0 - min(max(wait, 0.0) / wall, 1.0) if wall > 0 else None,
    )


def _worker_rates(batches: Columns, key: Key, window: TimeWindow) -> ProcessRates:
    own = select_rows(batches, _rows_of(batches, key))
    known = ProcessRates(rank=key[0], loader=key[1], worker=key[2])
    if row_count(own) == 0:
        return known
    start, end = row_times(own)
    idle_start = start - np.maximum(own["idle_ns"], 0)  # includes idle time since the batch before
    made = per_second(idle_start, end, np.ones(len(end)), window)
    share = float((end - start).sum()) / max(float((end - idle_start).sum()), 1.0)
    return replace(known, batches_per_s=made, busy=share)


def _with_code(known: ProcessRates, stacks: Columns, cpu: float | None) -> ProcessRates:
    total = float(stacks["wall_ns"].sum())
    at_work: Flags = np.ones(row_count(stacks), dtype=np.bool_)
    if known.loader is not None:
        at_work = stacks["phase"] == "work"
    place = find_hotspot(read_stack_samples(stacks, at_work), total)
    if known.loader is not None and total > 0:
        # A batch is recorded when it is made, these every second.
        known = replace(known, busy=float(stacks["wall_ns"][at_work].sum()) / total)
    if place is None:
        return replace(known, cpu=cpu)
    cause = place.cause()
    words: Sequence[str] = (cause.place, cause.name)
    return replace(known, cpu=cpu, doing=" ".join(filter(None, words)), doing_share=place.share)


def _cpu(usage: Columns, window: TimeWindow) -> float | None:
    latest = usage["cpu_percent"][usage["t_ns"] > window.since_ns]
    if len(latest) == 0:
        latest = usage["cpu_percent"][-1:]
    return float(latest.mean()) / 100.0 if len(latest) else None
