"""The sections with tables: how batches are made, run facts, and the glossary."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.units import format_bytes, format_seconds
from headrace.observe.whatif.hosts import of_host
from headrace.observe.whatif.tables import Columns, Flags, columns
from headrace.records.run_folder import Attempt, Outcome
from headrace.records.schema import LAUNCHER_HOST, RANK_ENDED, SCRIPT_ENDED
from headrace.report.formatting import (
    UNKNOWN,
    format_count,
    format_list,
    format_milliseconds,
    format_share,
    format_time,
)
from headrace.report.markup import (
    Child,
    Html,
    Section,
    definitions,
    element,
    explanation,
    join_html,
    left_out_note,
    note,
    section,
    table,
)
from headrace.report.page_data import PageData

_MAX_WORKERS = 128
_WORKER_HEAD = (
    "Rank", "Loader", "Worker", "Batches", "Time a batch", "CPU time a batch", "Collate",
    "Send", "Idle before", "Busy", "Read",
)  # fmt: skip


def workers_section(data: PageData) -> Section:
    """Return the section with a row for each worker."""
    batches = columns(data.tables, "batches")
    title = "Workers"
    if batches.count == 0:
        why = "No batch was seen being made: no data loader is known."
        return section("workers", title, note(why))
    workers = np.unique(
        np.column_stack((batches["rank"], batches["loader"], batches["worker"])), axis=0
    )
    rows = [_worker_row(batches, *map(int, worker)) for worker in workers[:_MAX_WORKERS]]
    return section(
        "workers",
        title,
        explanation(
            "Who made the batches. Times are means of one batch. CPU time far below the time a "
            "batch takes means that the worker waited: for files, the network, a lock or a free "
            "core. Collate is putting samples together, send is handing the batch to the rank; "
            "idle is waiting for something to do; read is how many bytes a batch took."
        ),
        table(_WORKER_HEAD, rows, numbers=len(_WORKER_HEAD) - 3),
        left_out_note(len(workers) - len(rows)),
    )


def _worker_row(batches: Columns, rank: int, loader: int, worker: int) -> tuple[Child, ...]:
    own = batches.having(rank=rank, loader=loader, worker=worker)
    wall = own["wall_ns"]
    total = wall + np.maximum(own["idle_ns"], 0) + np.maximum(own["send_ns"], 0)
    busy = format_share(float(wall.sum()) / max(float(total.sum()), 1.0)) if worker >= 0 else "-"
    return (
        str(rank),
        str(loader),
        "the rank" if worker < 0 else str(worker),
        f"{own.count:,}",
        format_milliseconds(wall.mean()),
        format_milliseconds(_mean(own["cpu_ns"])),
        format_milliseconds(_mean(own["collate_ns"])),
        format_milliseconds(_mean(own["send_ns"])) if worker >= 0 else "-",
        format_milliseconds(_mean(own["idle_ns"])) if worker >= 0 else "-",
        busy,
        format_bytes(_mean(own["read_bytes"])),
    )


def _mean(values: Any) -> float:
    known = values[values >= 0]  # -1 means unknown
    return float(known.mean()) if len(known) else 0.0


_MAX_TRANSFORMS = 60
_OUTER = ("__getitem__", "__getitems__", "__iter__", "__next__")
_TRANSFORM_HEAD = ("What", "Where", "Time a call", "On a CPU", "Share of the time", "Calls timed")


def transforms_section(data: PageData) -> Section:
    """Return the section with a row for each transform, the most expensive first."""
    rows = columns(data.tables, "transforms")
    title = "Transforms"
    if rows.count == 0:
        return section("transforms", title, note("No transform of a dataset was timed."))
    rows = rows.summed(
        by=("loader", "name", "file", "line", "one_in"), sums=("calls", "wall_ns", "cpu_ns")
    )
    total = _whole_ns(rows)
    timed = []
    for name in dict.fromkeys(map(str, rows["name"])):
        own = np.asarray(rows["name"] == name, dtype=np.bool_)
        timed.append((_estimate_ns(rows, own), _transform_row(rows, own, name, total)))
    timed.sort(key=lambda item: -item[0])
    one_in = int(rows["one_in"].max())
    return section(
        "transforms",
        title,
        explanation(
            f"What is done to each sample, timed for one sample in {one_in}. A row that calls "
            "others, such as __getitem__, holds their time too. Shares are of all the time of "
            "making samples and batches of the same loader."
        ),
        table(_TRANSFORM_HEAD, [row for _, row in timed[:_MAX_TRANSFORMS]], numbers=4),
        left_out_note(len(timed) - _MAX_TRANSFORMS),
    )


def _transform_row(
    rows: Columns, own: Flags, name: str, whole_ns: dict[int, float]
) -> tuple[Child, ...]:
    at = int(own.nonzero()[0][0])
    file, line = str(rows["file"][at]), int(rows["line"][at])
    calls, wall = int(rows["calls"][own].sum()), float(rows["wall_ns"][own].sum())
    total = sum(whole_ns.get(int(loader), 0.0) for loader in np.unique(rows["loader"][own]))
    place = f"{Path(file).name}:{line}" if file else ""
    return (
        name,
        element("code", place, title=file) if place else "",
        format_milliseconds(wall / max(calls, 1)),
        format_share(min(float(rows["cpu_ns"][own].sum()) / max(wall, 1.0), 1.0)),
        format_share(min(_estimate_ns(rows, own) / max(total, 1.0), 1.0)),
        f"{calls:,}",
    )


def _estimate_ns(rows: Columns, own: Flags) -> float:
    """Return the estimated time of all calls, from those that were timed."""
    return float((rows["wall_ns"][own] * np.maximum(rows["one_in"][own], 1)).sum())


def _whole_ns(rows: Columns) -> dict[int, float]:
    """Return for each loader the time of making its samples and batches."""
    whole = {}
    outer = np.array(
        [name.endswith(_OUTER) or "collate" in name for name in map(str, rows["name"])]
    )
    for loader in np.unique(rows["loader"]):
        own = rows["loader"] == loader
        whole[int(loader)] = _estimate_ns(rows, own & outer) or _estimate_ns(rows, own)
    return whole


_MAX_AUXILIARY_ROWS = 128
_ARRIVAL_HEAD = (
    "Host", "Rank", "Loader", "Batches", "Not needed", "Asked until here", "Waited there", "Made",
    "On its way", "Received", "Size", "Bytes a second",
)  # fmt: skip
_AUXILIARY_WORKER_HEAD = (
    "Host", "Rank", "Loader", "Worker", "Batches", "Time a batch", "CPU time a batch", "Collate",
    "Idle before", "Read",
)  # fmt: skip
_AUXILIARY_TRANSFORM_HEAD = ("Host", "What", "Time a call", "On a CPU", "Calls timed")


def auxiliary_section(data: PageData) -> Section | None:
    """Return the section on auxiliary hosts; None if none made batches."""
    arrivals = columns(data.tables, "arrivals")
    if arrivals.count == 0:
        return None
    batches = columns(data.tables, "auxiliary_batches")
    timed = columns(data.tables, "auxiliary_transforms")
    arrived = _grouped_rows(arrivals, ("host", "rank", "loader"), _arrival_cells)
    workers = _grouped_rows(batches, ("host", "rank", "loader", "worker"), _auxiliary_worker_cells)
    transforms = _grouped_rows(timed, ("host", "name"), _auxiliary_transform_cells)
    return section(
        "auxiliary",
        "Auxiliary hosts",
        explanation(
            "Batches that other hosts made. Times are means of one batch: how long from asking "
            "until it lay ready here; of that, waiting on the host for a worker and its core, with "
            "the worker, and the rest, on its way; receiving is the part of the way in which its "
            "bytes came. A batch is not needed where a worker elsewhere was asked too, and was "
            "done first."
        ),
        table(_ARRIVAL_HEAD, arrived, numbers=len(_ARRIVAL_HEAD) - 3),
        element("h3", "Workers there"),
        table(
            _AUXILIARY_WORKER_HEAD,
            workers[:_MAX_AUXILIARY_ROWS],
            numbers=len(_AUXILIARY_WORKER_HEAD) - 4,
        ),
        left_out_note(len(workers) - _MAX_AUXILIARY_ROWS),
        element("h3", "Transforms there"),
        table(_AUXILIARY_TRANSFORM_HEAD, transforms[:_MAX_AUXILIARY_ROWS], numbers=3),
        left_out_note(len(transforms) - _MAX_AUXILIARY_ROWS),
    )


def _grouped_rows(
    rows: Columns, by: Sequence[str], format_cells: Callable[[Columns], tuple[str, ...]]
) -> list[tuple[Child, ...]]:
    """Return a row of texts for each group with equal values in some columns, in their order."""
    cells = {}
    for places in rows.group(*by):
        own = rows.where(places)
        cells[tuple(own[name][0] for name in by)] = format_cells(own)
    return [(*map(str, key), *cells[key]) for key in sorted(cells)]


def _arrival_cells(own: Columns) -> tuple[str, ...]:
    under_way_ns = own["wall_ns"] - own["queued_ns"] - own["making_ns"]
    seconds = max(float(own["receive_ns"].sum()) / 1e9, 1e-9)
    return (
        f"{own.count:,}",
        f"{int((own['counted'] == 0).sum()):,}",
        *(format_milliseconds(own[f"{name}_ns"].mean()) for name in ("wall", "queued", "making")),
        format_milliseconds(under_way_ns.mean()),
        format_milliseconds(own["receive_ns"].mean()),
        format_bytes(float(own["size_bytes"].mean())),
        f"{format_bytes(float(own['size_bytes'].sum()) / seconds)}/s",
    )


def _auxiliary_worker_cells(own: Columns) -> tuple[str, ...]:
    return (
        f"{own.count:,}",
        *(
            format_milliseconds(own[f"{name}_ns"].mean())
            for name in ("wall", "cpu", "collate", "idle")
        ),
        format_bytes(float(np.maximum(own["read_bytes"], 0).mean())),
    )


def _auxiliary_transform_cells(own: Columns) -> tuple[str, ...]:
    calls, wall_ns = max(int(own["calls"].sum()), 1), max(float(own["wall_ns"].sum()), 1.0)
    return (
        format_milliseconds(wall_ns / calls),
        format_share(min(float(own["cpu_ns"].sum()) / wall_ns, 1.0)),
        f"{calls:,}",
    )


_MOST_EVENTS = 40


def facts_section(data: PageData) -> Section:
    """Return the section of run facts."""
    rows = [*_run(data), *_hosts(data), *_recorded(data)]
    return section(
        "facts",
        "Run facts",
        table(("", ""), [(element("b", name), value) for name, value in rows]),
        _attempts(data),
        _loaders(data),
        _events(data),
    )


def _run(data: PageData) -> Iterable[tuple[str, Child]]:
    yield "Run", data.name
    yield "Folder", element("code", str(data.path))
    attempt = data.attempt_entry
    if attempt is None:
        yield "Command", f"{UNKNOWN}: run.json is missing or cannot be read"
        return
    yield "Command", element("code", shlex.join(attempt.command))
    yield "Began", format_time(attempt.started_s)
    yield "Ended", _end(attempt, data.outcome)
    if attempt.lasted_s is not None:
        yield "Took", format_seconds(attempt.lasted_s)
    yield "Exit code", UNKNOWN if attempt.exit_code is None else str(attempt.exit_code)
    yield "Ranks asked for", f"{attempt.world_size:,}"
    versions = [f"{name} {version}" for name, version in attempt.versions.items()]
    yield "Versions", format_list(versions, most=20) or UNKNOWN


def _end(attempt: Attempt, outcome: Outcome) -> str:
    if attempt.ended_s is not None:
        return format_time(attempt.ended_s)
    if outcome == "unknown":
        return f"{UNKNOWN}: it may go on on {attempt.launcher.get('host')}"
    is_going_on = outcome == "going on"
    return "not yet: it is going on" if is_going_on else f"{UNKNOWN}: it was probably killed"


def _hosts(data: PageData) -> Iterable[tuple[str, Child]]:
    hosts = columns(data.tables, "hosts")
    for at in range(hosts.count):
        memory = format_bytes(float(hosts["memory_bytes"][at]))
        has = f"{hosts['cores'][at]:g} cores and {memory} of memory that the run may use"
        yield "Host", f"{hosts['host'][at]}: {has}"
    system = columns(data.tables, "system")
    gpus = sum(
        _gpu_count(of_host(system, max(number, LAUNCHER_HOST)))
        for number in np.unique(hosts["number"]).tolist()
    )
    yield "GPUs", format_count(gpus, "GPU") if gpus else "none recorded"


def _gpu_count(samples: Columns) -> int:
    """Return how many GPUs of a host were sampled: other hosts' columns are empty."""
    names = [name for name in samples if re.fullmatch("gpu_.*_memory_bytes", name)]
    return sum(bool((samples[name] >= 0).any()) for name in names)


def _recorded(data: PageData) -> Iterable[tuple[str, Child]]:
    steps = columns(data.tables, "steps")
    kinds = {"train": "training step", "eval": "evaluation batch"}
    counts = [
        format_count(count, noun, "evaluation batches" if kind == "eval" else "")
        for kind, noun in kinds.items()
        if steps.count and (count := int((steps["kind"] == kind).sum()))
    ]
    yield "Recorded", format_list(counts) or "no steps"
    processes = columns(data.tables, "processes")
    if processes.count:
        ranks = len(np.unique(processes["rank"][processes["role"] == "rank"]))
        workers = int((processes["role"] == "worker").sum())
        started = f"{format_count(ranks, 'rank')}, {format_count(workers, 'worker')} started"
        yield "Processes", started
    yield "Page made", format_time(data.read_s)


def _attempts(data: PageData) -> Html | None:
    if len(data.attempts) < 2:
        return None
    rows = [
        (
            f"{attempt.number}{', this page' if attempt.number == data.attempt else ''}",
            format_time(attempt.started_s),
            format_time(attempt.ended_s) if attempt.ended_s is not None else UNKNOWN,
            UNKNOWN if attempt.exit_code is None else str(attempt.exit_code),
            element("code", shlex.join(attempt.argv)),
        )
        for attempt in data.attempts
    ]  # fmt: skip
    attempts = table(("Attempt", "Began", "Ended", "Exit code", "Script and arguments"), rows)
    return join_html(element("h3", "Attempts"), attempts)


_MAX_LOADERS = 64


def _loaders(data: PageData) -> Html:
    loaders = columns(data.tables, "loaders")
    if loaders.count == 0:
        return join_html(element("h3", "Data loaders"), note("No data loader was seen."))
    rows = []
    for places in loaders.group("rank", "loader"):
        at, made = int(places[0]), len(places)
        file, line = str(loaders["file"][at]), int(loaders["line"][at])
        batch_size = int(loaders["batch_size"][at])
        rows.append(
            (
                f"rank {loaders['rank'][at]} · loader {loaders['loader'][at]}",
                f"{loaders['kind'][at]}, over {loaders['dataset'][at] or UNKNOWN}",
                _made_at(file, line, made),
                _start(str(loaders["start_method"][at]), int(loaders["workers"][at])),
                str(loaders["prefetch_factor"][at]),
                str(batch_size) if batch_size >= 0 else "varies",
                "yes" if loaders["pinned"][at] > 0 else "no",
                "yes" if loaders["persistent"][at] > 0 else "no",
            )
        )
    head = ("Loader", "Kind", "Made at", "Workers", "Batches ahead", "Batch size", "Pinned memory",
            "Workers live on")  # fmt: skip
    return join_html(
        element("h3", "Data loaders"),
        table(head, rows[:_MAX_LOADERS]),
        left_out_note(len(rows) - _MAX_LOADERS, "loader"),
    )


def _made_at(file: str, line: int, times: int) -> Html | str:
    if not file:
        return UNKNOWN
    place = element("code", f"{Path(file).name}:{line}", title=file)
    return join_html(place, f", {times} times") if times > 1 else place


def _start(method: str, workers: int) -> str:
    if workers == 0:
        return "0: the rank itself"
    return f"{workers} ({method})" if method else str(workers)


def _events(data: PageData) -> Html | None:
    events = columns(data.tables, "events")
    # Not those of every run that ends well.
    events = events.where(~np.isin(events["kind"].astype(str), (RANK_ENDED, SCRIPT_ENDED)))
    if events.count == 0:
        return None
    rows = [
        (str(events["kind"][at]), str(events["text"][at]), f"{events['value'][at]:g}")
        for at in range(min(events.count, _MOST_EVENTS))
    ]
    return join_html(
        element("h3", "Events"),
        table(("Kind", "What", "Value"), rows, numbers=1),
        left_out_note(events.count - len(rows)),
    )


_GLOSSARY = {
    "batch": "the samples that one step trains on together",
    "core": "a part of the CPU that runs one thing at a time",
    "data loader": "what reads samples, prepares them and hands them over in batches",
    "data wait": "time in which a rank has no batch to work on; its accelerator idles meanwhile",
    "rank": "one of the processes that train the model together, each usually with its own GPU",
    "step": "one round of training, from one update of the weights to the next",
    "transform": "something done to a sample: decoding, cropping, normalizing",
    "worker": "a process that prepares batches for a rank while that computes",
}


def glossary_section(_material: PageData) -> Section:
    """Return the section that explains the terms of the page."""
    return section("words", "Words on this page", definitions(_GLOSSARY, class_="words"))
