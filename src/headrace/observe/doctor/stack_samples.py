"""Stack samples of processes: the user's own line, the library call below it, hotspots, activity.

What a process does at a sample, such as wait for a lock or read, is known by its frames and source.
Records hold no source, so it is read when a run is diagnosed. A file that was written after the run
began may have changed, and is ignored.
"""

from __future__ import annotations

import linecache
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from headrace.core.source_location import LIBRARIES, PACKAGE_FOLDER, PROJECT, CodeFolders
from headrace.observe.doctor.findings import Cause
from headrace.observe.doctor.stack_frames import (
    StackFrame,
    is_library_work,
    making_begin,
    named_call,
    own_index,
    process_begin,
)
from headrace.observe.whatif.tables import Columns, Flags, Floats, Ints

_LINE = re.compile(r"[0-9]+|None|-1|")
"""A recorded line number; not a number if the interpreter had none: between two lines of a loop,
and in generated code."""
UNKNOWN_FOLDERS = CodeFolders()
_SECOND_NS = 1_000_000_000
CUT_OFF_FRAMES = 36
"""A stack with fewer frames has its outermost: 48 are recorded, less those of the probe's hooks."""
_FINE_NS = 3 * _SECOND_NS
"""Rows that span no longer than this are as written, about one a second; longer ones are merged."""
_CALLS_MANY = re.compile(
    r"(^|\.)(__getitem__|__getitems__|__iter__|__call__|forward|main|<module>)$"
)
"""Functions whose lines do different things: a line with half of its time is named alone. Of other
functions the whole time counts, at the hottest line: two lines of a loop are one fault."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackSample:
    """A stack in which main threads of a rank or its workers were sampled, and its time."""

    frames: tuple[StackFrame, ...]  # outermost first
    rank: int
    phase: str
    rows: Columns  # of the table `stacks`
    wall_ns: float
    cpu_ns: float
    ran_since_s: float | None = None  # seconds since 1970, to check the source; None: unknown
    parts: Floats | None = None  # of each row's time that count, 0 to 1; None: all of it

    @property
    def own_frame(self) -> StackFrame:
        """The frame that is named: see `stack_frames`."""
        return self.frames[own_index(self.frames)]

    @property
    def calls(self) -> tuple[StackFrame, ...]:
        """The frames below the one that is named, outermost first: libraries', all of them."""
        return self.frames[own_index(self.frames) + 1 :]

    @property
    def is_of_worker(self) -> bool:
        """Whether a worker process was sampled, not a rank."""
        return bool((self.rows["worker"] >= 0).any())

    def passes(self, pattern: re.Pattern[str]) -> bool:
        """Return whether any frame matches, as PIL/Image.py:function; the user's as :function."""
        return any(_matches(pattern, frame.module_file, frame.function) for frame in self.frames)

    def only(self, where: Flags) -> StackSample:
        """Return the sample restricted to some of its rows."""
        parts = None if self.parts is None else self.parts[where]
        return self.counting(self.rows.where(where), parts)

    def counting(self, rows: Columns, parts: Floats | None) -> StackSample:
        """Return the sample with other rows, and of each such a part of its time."""
        wall_ns, cpu_ns = _sums(rows, parts)
        return replace(self, rows=rows, parts=parts, wall_ns=wall_ns, cpu_ns=cpu_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hotspot:
    """A line of the user's code and the time spent there."""

    frame: StackFrame
    call: str  # the library call below it with most of the time; empty if there is none
    share: float  # of the time of all samples, 0 to 1
    cpu_share: float  # CPU time over wall time there
    samples: tuple[StackSample, ...] = ()  # that were taken there

    def cause(self, transform: str = "") -> Cause:
        """Return the hotspot as the cause of a finding."""
        frame = self.frame
        name = frame.function if frame.is_user else frame.library_name
        return Cause(
            file=frame.file,
            line=frame.line,
            function=f"{name} > {self.call}" if self.call else name,
            transform=transform,
            share=self.share,
            library=frame.library,
        )


def read_stack_samples(
    stacks: Columns,
    where: Flags,
    ran_since_s: float | None = None,
    folders: CodeFolders = UNKNOWN_FOLDERS,
) -> tuple[StackSample, ...]:
    """Return every stack of some rows of `stacks` once for each rank and phase, if readable.

    `folders` are those of the run's code, from `read_code_folders`.
    """
    rows = stacks.where(where)
    frames_of: dict[str, tuple[StackFrame, ...]] = {}
    found: list[StackSample] = []
    for places in rows.group("stack", "rank", "phase"):
        same = rows.where(places)
        text = str(same["stack"][0])
        if text not in frames_of:
            parsed = (_frame(line, folders) for line in text.split("\n"))
            frames_of[text] = tuple(frame for frame in parsed if frame)
        wall_ns, cpu_ns = _sums(same)
        if frames_of[text]:
            found.append(
                StackSample(
                    frames=frames_of[text],
                    rank=int(same["rank"][0]),
                    phase=str(same["phase"][0]),
                    rows=same,
                    wall_ns=wall_ns,
                    cpu_ns=cpu_ns,
                    ran_since_s=ran_since_s,
                )
            )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class StackTime:
    """The time of a stack in all processes that were seen in it."""

    frames: tuple[StackFrame, ...]  # from the outermost in
    wall_ns: float
    cpu_ns: float


def read_stack_times(
    stacks: Columns, where: Flags, folders: CodeFolders = UNKNOWN_FOLDERS
) -> Iterator[StackTime]:
    """Yield every stack of some rows of `stacks` once, if readable; see `read_stack_samples`."""
    rows = stacks.where(where)
    for places in rows.group("stack"):
        same = rows.where(places)
        parsed = (_frame(line, folders) for line in str(same["stack"][0]).split("\n"))
        frames = tuple(frame for frame in parsed if frame)
        if frames:
            yield StackTime(frames, *_sums(same))


def making_part(samples: Iterable[StackSample]) -> tuple[StackSample, ...]:
    """Return samples of processes that make batches, from the loader's frames on.

    What is outside of these only waits for the batch, or was the parent's when it forked. Where
    loaders are seen at all, samples without one count only if their outer frames were cut off.
    """
    cut: list[StackSample] = []
    whole: list[StackSample] = []
    for sample in samples:
        begin = making_begin(sample.frames)
        if begin is not None:
            cut.append(replace(sample, frames=sample.frames[begin:]))
        else:
            inner = sample.frames[process_begin(sample.frames) :] or sample.frames[-1:]
            whole.append(replace(sample, frames=inner))
    if cut:
        whole = [each for each in whole if len(each.frames) >= CUT_OFF_FRAMES or each.is_of_worker]
    return (*cut, *whole)


def end_ns_of(stacks: Columns) -> Ints:
    """Return when the time of each row ended; an older version did not record it."""
    return np.asarray(np.maximum(stacks["end_ns"], stacks["start_ns"] + _SECOND_NS))


def samples_during(
    samples: Iterable[StackSample], times: Mapping[int, tuple[Ints, Ints]]
) -> list[StackSample]:
    """Return the samples within ascending, disjoint times (begins, ends) of ranks, by finest rows.

    A row merged over minutes holds more than a short time in it. So if any of the times falls into
    the first or last minutes of a run, which are kept by the second, only those rows count.
    """
    rows_near: list[tuple[StackSample, Flags, Flags]] = []
    for sample in samples:
        if sample.rank not in times:
            continue
        inside = _overlaps(sample, *times[sample.rank])
        lasted_ns = end_ns_of(sample.rows) - sample.rows["start_ns"]
        rows_near.append((sample, inside, inside & (lasted_ns <= _FINE_NS)))
    by_second = any(fine.any() for _, _, fine in rows_near)
    masks = [(sample, fine if by_second else inside) for sample, inside, fine in rows_near]
    return [sample.only(where) for sample, where in masks if where.any()]


def _overlaps(sample: StackSample, begin_ns: Ints, end_ns: Ints) -> Flags:
    """Return which rows of a sample overlap any of some ascending, disjoint times."""
    # Only the first time that ends after a row's start matters.
    first = np.searchsorted(end_ns, sample.rows["start_ns"])
    starts = np.append(begin_ns, np.iinfo(np.int64).max)
    return np.asarray(starts[first] <= end_ns_of(sample.rows))


def find_hotspot(
    samples: Iterable[StackSample], total_ns: float | None = None, *, off_cpu_only: bool = False
) -> Hotspot | None:
    """Return the place that took the most time, or time off the CPU; None if nothing was sampled.

    Its share is of `total_ns`, by default the time of all the samples.
    """
    seen = [(s, max(s.wall_ns - s.cpu_ns, 0.0) if off_cpu_only else s.wall_ns) for s in samples]
    total = sum(weight for _, weight in seen) if total_ns is None else total_ns
    if total <= 0 or not seen:
        return None
    named = [(sample, weight, sample.own_frame) for sample, weight in seen]
    lines: defaultdict[StackFrame, float] = defaultdict(float)
    scopes: defaultdict[tuple[str, str], float] = defaultdict(float)
    for _, weight, own in named:
        lines[own] += weight
        scopes[own.file, own.scope] += weight
    scope = max(scopes, key=lambda key: scopes[key])
    frame = max(
        (line for line in lines if (line.file, line.scope) == scope),
        key=lambda line: (line.line > 0, lines[line]),
    )
    calls_many = frame.is_user and _CALLS_MANY.search(frame.function) is not None
    by_line = calls_many and lines[frame] >= 0.5 * scopes[scope]
    there = [
        (sample, weight)
        for sample, weight, own in named
        if own == frame or (not by_line and (own.file, own.scope) == scope)
    ]
    wall = sum(sample.wall_ns for sample, _ in there)
    return Hotspot(
        frame=frame,
        call=_most_called(there),
        share=min((lines[frame] if by_line else scopes[scope]) / total, 1.0),
        cpu_share=min(sum(sample.cpu_ns for sample, _ in there) / max(wall, 1.0), 1.0),
        samples=tuple(sample for sample, _ in there),
    )


_SAME_CODE = 0.3
"""Loaders run the same code where the hottest of one takes this share of the other's time."""


def runs_same_code(samples: Iterable[StackSample], others: Iterable[StackSample]) -> bool:
    """Return whether what takes most of the time of some samples also takes much of others'."""
    place, seen = find_hotspot(samples), tuple(others)
    if place is None:
        return False
    hot = (place.frame.file, place.frame.scope)
    there = [s for s in seen if any((frame.file, frame.scope) == hot for frame in s.frames)]
    return sum(s.wall_ns for s in there) > _SAME_CODE * sum(s.wall_ns for s in seen)


def find_cause(samples: Iterable[StackSample]) -> Cause | None:
    """Return the place that took the most time as a cause; None if nothing was sampled."""
    place = find_hotspot(samples)
    return place.cause() if place is not None else None


def off_cpu_ns(samples: Iterable[StackSample]) -> float:
    """Return the time off the CPU that the samples represent."""
    return sum(max(sample.wall_ns - sample.cpu_ns, 0.0) for sample in samples)


def _most_called(there: list[tuple[StackSample, float]]) -> str:
    calls: defaultdict[str, float] = defaultdict(float)
    for sample, weight in there:
        calls[named_call(sample.calls)] += weight
    return max(calls, key=lambda name: calls[name], default="")


def _sums(rows: Columns, parts: Floats | None = None) -> tuple[float, float]:
    wall_ns, cpu_ns = rows["wall_ns"], rows["cpu_ns"]
    if parts is not None:
        wall_ns, cpu_ns = wall_ns * parts, cpu_ns * parts
    return float(wall_ns.sum()), float(cpu_ns.sum())


@lru_cache(maxsize=65_536)
def _matches(pattern: re.Pattern[str], module_file: str, function: str) -> bool:
    return pattern.search(f"{module_file}:{function}") is not None


# Stacks share most of their lines, and a live view reads them each second.
@lru_cache(maxsize=65_536)
def _frame(text: str, folders: CodeFolders) -> StackFrame | None:
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not _LINE.fullmatch(parts[1]):  # the text was cut short
        return None
    line = int(parts[1]) if parts[1].isdecimal() else 0
    module_file = folders.module_file(parts[0])
    return StackFrame(file=parts[0], line=line, function=parts[2], module_file=module_file)


def read_code_folders(rows: Columns) -> CodeFolders:
    """Return the folders of a run's code from the table `code_folders`."""
    found: dict[str, tuple[str, ...]] = {}
    for kind, folder in dict.fromkeys(zip(rows["kind"], rows["folder"], strict=True)):
        found[str(kind)] = (*found.get(str(kind), ()), str(folder))
    libraries, packages, projects = (
        found.get(kind, ()) for kind in (LIBRARIES, PACKAGE_FOLDER, PROJECT)
    )
    return CodeFolders(libraries=libraries, packages=packages, projects=projects)


def recording_start_s(hosts: Columns, processes: Columns) -> float | None:
    """Return when the recording of a run began, in seconds since 1970; None if unknown.

    Where the clocks of several hosts differ it is the earliest possible time.
    """
    if not hosts.count or not processes.count:
        return None
    offset_ns, started_ns = int(hosts["unix_offset_ns"].min()), int(processes["started_ns"].min())
    return (offset_ns + started_ns) / 1e9 if offset_ns > 0 else None


def is_newer(file: str, ran_since_s: float | None) -> bool:
    """Return whether a file exists and was written after a time."""
    try:
        return ran_since_s is not None and Path(file).stat().st_mtime > ran_since_s
    except (OSError, ValueError):
        return False


def source_lines_as_run(file: str, ran_since_s: float | None) -> list[str]:
    """Return a file's lines if it is unchanged since a run began, or may be; otherwise none."""
    if is_newer(file, ran_since_s):
        return []
    with suppress(ValueError):  # a path of another machine, which this one's encoding lacks
        linecache.checkcache(file)  # a live view diagnoses repeatedly
        return linecache.getlines(file)
    return []


LOCK = re.compile(
    r"^(multiprocessing/(synchronize|managers|queues)|filelock/\w+|portalocker/\w+)\.py:"
    r"|:(\w+\.)*_?(acquire|lock|flock|lockf)\w*$"
)
"""Frames that wait for another process; waits between threads of one worker do not count."""
_LOCK_SOURCE = re.compile(r"\b(flock|lockf|acquire)\(")
_READ_LIBRARY = re.compile(
    r"^(socket|ssl|http/client|urllib/\w+|pathlib|_pathlib\w*|pathlib/\w+|zipfile\w*|zipfile/\w+|"
    r"tarfile|gzip|shutil|sqlite3/\w+)\.py:|^(urllib3|requests|botocore|boto3|s3fs|gcsfs|fsspec|"
    r"aiohttp|httpx|obstore|h5py|lmdb|zarr|smart_open|google/cloud/storage|PIL/ImageFile)"
)
_READ_NAME = re.compile(
    r"(^|[._])(read|load|open|fetch|download|get_object|request|recv)", re.IGNORECASE
)
_READ_SOURCE = re.compile(
    r"\bopen\(|\.read(_\w+)?\(|\.load\(|imread\(|\.recv\(|fromfile\(|memmap\("
)
_REMOTE = re.compile(
    r"^(socket|ssl|subprocess|http/client|urllib/\w+|multiprocessing/(connection|queues|managers))\.py:"
    r"|^(urllib3|requests|botocore|boto3|s3fs|gcsfs|fsspec|aiohttp|httpx|obstore|"
    r"smart_open|google/cloud/storage)/"
)
"""Frames that read from a service or another process rather than from files."""
_OPEN_LIBRARY = re.compile(
    r"^(_?pathlib\w*|pathlib/\w+)\.py:|^(PIL/Image\.py:open|numpy/lib/\S*npyio\S*:(\w+\.)*load"
    r"|torchvision/(datasets/folder|io/\w+)\.py:|torchaudio/|imageio/|skimage/io/|soundfile\.py:)"
)
_OPEN_SOURCE = re.compile(
    r"\bopen\(|\bimread\(|\.read_(bytes|text)\(|\b(read_image|read_file|fromfile|load_file)\("
    r"|\b(np|numpy|torch|torchaudio)\.load\(|\b(sf|soundfile)\.read\("
)
_WAIT = re.compile(
    r"^(threading|queue|selectors|subprocess|asyncio/\w+|concurrent/futures/\w+)\.py$"
)
"""The standard library's code that waits and computes nothing, where it is innermost."""
_TORCH = re.compile(r"^torch/(?!utils/data)")
_SLEEP_SOURCE = re.compile(r"\bsleep\(")
_SYNC_FRAME = re.compile(
    r"^torch/(cuda/__init__\.py:synchronize|_tensor(_str)?\.py:(\w+\.)*(__repr__|__format__|_str))"
)
_SYNC_SOURCE = re.compile(r"\.(item|cpu|tolist|numpy|synchronize)\(")


_OTHER_LOADER = re.compile(
    r"^torch/utils/data/dataloader\.py:_MultiProcessingDataLoaderIter\._(next|get|try_get)_data$"
)


def waits_for_other_loader(sample: StackSample) -> bool:
    """Return whether a dataset waits for the workers of another loader, which it iterates."""
    return sample.passes(_OTHER_LOADER)


def is_lock(sample: StackSample) -> bool:
    """Return whether a sample waits for a lock, by a library's frames or by its source."""
    if waits_for_other_loader(sample):
        return False
    if sample.passes(LOCK):
        return True
    # Python's own locks and the system's are native code without frames.
    return not sample.calls and bool(_LOCK_SOURCE.search(source_line(sample)))


def awaits_own_work(sample: StackSample) -> bool:
    """Return whether a sample waits for a thread, task or child of its own process."""
    return _WAIT.search(sample.frames[-1].module_file) is not None


_MOSTLY, _AT_TIMES = 0.5, 0.05


def awaits_own_work_mostly(samples: Iterable[StackSample]) -> bool:
    """Return whether most of the time of samples waits for threads, tasks or children."""
    return _awaits_own_work_for(samples, _MOSTLY)


def awaits_own_work_at_times(samples: Iterable[StackSample]) -> bool:
    """Return whether more than a little of their time does."""
    return _awaits_own_work_for(samples, _AT_TIMES)


def _awaits_own_work_for(samples: Iterable[StackSample], share: float) -> bool:
    seen = tuple(samples)
    awaited = sum(sample.wall_ns for sample in seen if awaits_own_work(sample))
    return awaited > share * sum(sample.wall_ns for sample in seen)


def is_reading(sample: StackSample) -> bool:
    """Return whether a sample reads, by a library's frames, its function's name or its source."""
    if waits_for_other_loader(sample):
        return False
    if sample.passes(_READ_LIBRARY):
        return True
    name = sample.own_frame.function
    return bool(_READ_NAME.search(name) or _READ_SOURCE.search(source_line(sample)))


def reads_own_files(sample: StackSample) -> bool:
    """Return whether a sample reads a file that its function opens, by frames or source."""
    if not is_reading(sample) or sample.passes(_REMOTE):
        return False
    return sample.passes(_OPEN_LIBRARY) or bool(_OPEN_SOURCE.search(_function_source_until(sample)))


def runs_model(sample: StackSample) -> bool:
    """Return whether a rank runs its model, trains it, or copies to the device."""
    # The model runs through torch's own frames; the other phases are recorded.
    recorded = sample.phase in {"backward", "optimizer", "sync", "copy"}
    return recorded or sample.passes(_TORCH)


_CALLS_MODULE = re.compile(
    r"^torch/nn/modules/module\.py:(\w+\.)*_(wrapped_)?call_impl$|^torch/(_dynamo|_inductor)/"
)


def is_module_call(frame: StackFrame) -> bool:
    """Return whether a frame calls a module of torch's, such as a model."""
    return _matches(_CALLS_MODULE, frame.module_file, frame.function)


def calls_module(sample: StackSample) -> bool:
    """Return whether a sample is in a call of a module of torch's, such as a model."""
    return sample.passes(_CALLS_MODULE)


def is_device_sync(sample: StackSample) -> bool:
    """Return whether a sample waits for the device: `.item()`, `.cpu()`, a printed tensor."""
    if sample.passes(_SYNC_FRAME):
        return True
    # Methods of tensors are native code without frames, so the user's line decides.
    source = source_line(sample)
    if sample.calls or _SLEEP_SOURCE.search(source):
        return False
    return bool(_SYNC_SOURCE.search(source))


def is_sleep(sample: StackSample) -> bool:
    """Return whether a sample is in a call of sleep."""
    return not sample.calls and bool(_SLEEP_SOURCE.search(source_line(sample)))


def _function_source_until(sample: StackSample) -> str:
    """Return the source of the sample's user function from its head to the line reached."""
    frame = sample.own_frame
    lines = source_lines_as_run(frame.file, sample.ran_since_s)[: frame.line]
    name = frame.function.rsplit(".", 1)[-1]
    if name not in {"__iter__", "__next__"}:  # these may read an opened file for many samples
        for head in reversed(range(len(lines))):
            if lines[head].lstrip().startswith(f"def {name}("):
                return "".join(lines[head:])
    return "".join(lines[-1:])


def source_line(sample: StackSample) -> str:
    """Return the sample's user line, if its file is unchanged since the run."""
    frame = sample.own_frame
    lines = source_lines_as_run(frame.file, sample.ran_since_s)
    return lines[frame.line - 1] if 0 < frame.line <= len(lines) else ""


def cut_to_special_line(sample: StackSample, usual: AbstractSet[StackFrame]) -> StackSample:
    """Return a sample without its inner lines if those are usual, that is, run elsewhere, too.

    Where all of the user's lines are, only a library's are left: see `cut_to_library`.
    """
    if sample.own_frame not in usual:
        return sample
    special = [
        depth
        for depth, frame in enumerate(sample.frames, start=1)
        if frame.is_user and frame.line and frame not in usual
    ]
    if special:
        return replace(sample, frames=sample.frames[: special[-1]])
    return cut_to_library(sample, usual)


def cut_to_library(sample: StackSample, usual: AbstractSet[StackFrame]) -> StackSample:
    """Return only the library's frames of a sample whose user's line is usual, if some are not.

    A line that calls a library's trainer says nothing of what that does. The frames end with the
    innermost one that is not usual.
    """
    if sample.own_frame not in usual:
        return sample
    frames = sample.frames
    last_user = max((at for at, frame in enumerate(frames) if frame.is_user), default=-1)
    special = [
        at
        for at in range(last_user + 1, len(frames))
        if frames[at].line and frames[at] not in usual and is_library_work(frames[at])
    ]
    if not special:
        return sample
    return replace(sample, frames=frames[last_user + 1 : special[-1] + 1])
