"""The sections at the page's end: the run facts and the glossary."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from headrace.core.units import format_bytes, format_seconds
from headrace.observe.whatif.tables import columns, group_rows, row_count
from headrace.records.run_folder import Attempt
from headrace.report.formatting import UNKNOWN, format_count, format_list, format_time
from headrace.report.markup import Child, Html, Section, element, join_html, note, section, table
from headrace.report.page_data import PageData

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
    yield "Ended", _end(attempt, live=data.live)
    if attempt.ended_s is not None:
        yield "Took", format_seconds(attempt.ended_s - attempt.started_s)
    yield "Exit code", UNKNOWN if attempt.exit_code is None else str(attempt.exit_code)
    yield "Ranks asked for", f"{attempt.world_size:,}"
    versions = [f"{name} {version}" for name, version in attempt.versions.items()]
    yield "Versions", format_list(versions, most=20) or UNKNOWN


def _end(attempt: Attempt, *, live: bool) -> str:
    if attempt.ended_s is not None:
        return format_time(attempt.ended_s)
    return "not yet: it is going on" if live else f"{UNKNOWN}: it was probably killed"


def _hosts(data: PageData) -> Iterable[tuple[str, Child]]:
    hosts = columns(data.tables, "hosts")
    for at in range(row_count(hosts)):
        memory = format_bytes(float(hosts["memory_bytes"][at]))
        has = f"{hosts['cores'][at]:g} cores and {memory} of memory that the run may use"
        yield "Host", f"{hosts['host'][at]}: {has}"
    gpus = [name for name in columns(data.tables, "system") if name.endswith("_memory_bytes")]
    gpus = [name for name in gpus if name.startswith("gpu_")]
    yield "GPUs", format_count(len(gpus), "GPU") if gpus else "none recorded"


def _recorded(data: PageData) -> Iterable[tuple[str, Child]]:
    steps = columns(data.tables, "steps")
    kinds = {"train": "training step", "eval": "evaluation batch"}
    counts = [
        format_count(count, noun, "evaluation batches" if kind == "eval" else "")
        for kind, noun in kinds.items()
        if row_count(steps) and (count := int((steps["kind"] == kind).sum()))
    ]
    yield "Recorded", format_list(counts) or "no steps"
    processes = columns(data.tables, "processes")
    if row_count(processes):
        ranks = len(np.unique(processes["rank"][processes["role"] == "rank"]))
        workers = int((processes["role"] == "worker").sum())
        yield (
            "Processes",
            f"{format_count(ranks, 'rank')}, {format_count(workers, 'worker')} started",
        )
    yield "Page made", format_time(data.read_s)


def _attempts(data: PageData) -> Html | None:
    if len(data.attempts) < 2:
        return None
    rows = [
        (
            f"{attempt.number}, this page" if attempt.number == data.attempt
            else str(attempt.number),
            format_time(attempt.started_s),
            format_time(attempt.ended_s) if attempt.ended_s is not None else UNKNOWN,
            UNKNOWN if attempt.exit_code is None else str(attempt.exit_code),
            element("code", shlex.join(attempt.argv)),
        )
        for attempt in data.attempts
    ]  # fmt: skip
    attempts = table(("Attempt", "Began", "Ended", "Exit code", "Script and arguments"), rows)
    return join_html(element("h3", "Attempts"), attempts)


def _loaders(data: PageData) -> Html:
    loaders = columns(data.tables, "loaders")
    if row_count(loaders) == 0:
        return join_html(element("h3", "Data loaders"), note("No data loader was seen."))
    rows = []
    for places in group_rows(loaders, ("rank", "loader")):
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
    return join_html(element("h3", "Data loaders"), table(head, rows[:64]))


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
    if row_count(events) == 0:
        return None
    rows = [
        (str(events["kind"][at]), str(events["text"][at]), f"{events['value'][at]:g}")
        for at in range(min(row_count(events), _MOST_EVENTS))
    ]
    left = row_count(events) - len(rows)
    return join_html(
        element("h3", "Events"),
        table(("Kind", "What", "Value"), rows, numbers=1),
        note(f"{left} more are left out.") if left else None,
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
    entries = join_html(
        *(
            join_html(element("dt", word), element("dd", meaning))
            for word, meaning in _GLOSSARY.items()
        )
    )
    return section("words", "Words on this page", element("dl", entries, class_="words"))
