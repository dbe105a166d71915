"""The registry of what is recorded: every table and every field, its unit in its name.

The probe packs frames by it, the collector makes its tables from it, `open_run` returns its
columns, and docs/records.md is generated from it.

Times are nanoseconds of the monotonic clock (CLOCK_MONOTONIC) of the launcher's host; those of
other hosts are converted, to within some milliseconds. The table `hosts` has the offset from Unix
time. Process ids of other hosts than the launcher's have the host's number in front (see
`host_place.py`). Text is stored once a process, and frames have its number (see `ring.py`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.core.errors import RecordsError

Kind = Literal["int", "float", "text"]
Aggregation = Literal[
    "", "sum", "known-sum", "mean", "whole-mean", "first", "last", "most", "least"
]
_CODES: dict[Kind, str] = {"int": "q", "float": "d", "text": "q"}


@dataclass(frozen=True, slots=True)
class Field:
    """One column; its name has the unit, `meaning` is its description in one line."""

    name: str
    meaning: str
    kind: Kind = "int"  # 64 bits, as a float
    aggregation: Aggregation = ""
    """How rows of a long run are merged (see `compaction.py`): "" for columns in which they agree,
    first and last for the times that bound them; known-sum leaves out -1, whole-mean is rounded,
    most and least are the extremes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """The rows that a host's store keeps; beyond, they are merged or moved to Parquet parts."""

    unchanged: int = 60_000  # first rows of sums, never merged: six minutes of eight workers
    sums: int = 200_000  # above which a table of sums is merged
    totals: int = 64_000  # above which a table of totals is merged, all of whose rows may be
    means: int = 100_000  # above which a table of means is merged
    values: int = 1_600_000  # of a table of means: on hosts of many cores, fewer rows are kept
    part: int = 65_536  # of a part: written in tenths of a second, as rings must not fill up


_TIMES = {"start_ns", "end_ns", "at_ns", "t_ns", "started_ns", "created_ns"}
_PIDS = {"pid", "parent_pid"}


@dataclass(frozen=True)
class Table:
    """One kind of record."""

    number: int  # in a ring's frames, never reused for another table
    name: str
    meaning: str  # what one row is, in one line
    fields: tuple[Field, ...]  # in the order of a frame
    later: bool = False  # records of an older version may lack it, and then read as without rows

    @property
    def frame(self) -> struct.Struct:
        """The format of a packed row: 8 bytes a field, little-endian; text as its number."""
        return struct.Struct("<" + "".join(_CODES[field.kind] for field in self.fields))

    @property
    def text_indexes(self) -> tuple[int, ...]:
        """Indexes of the fields that are text."""
        return tuple(place for place, field in enumerate(self.fields) if field.kind == "text")

    @property
    def time_indexes(self) -> tuple[int, ...]:
        """Indexes of the fields that are times of the monotonic clock, not durations."""
        return tuple(place for place, field in enumerate(self.fields) if field.name in _TIMES)

    @property
    def pid_indexes(self) -> tuple[int, ...]:
        """Indexes of the fields that are process ids."""
        return tuple(place for place, field in enumerate(self.fields) if field.name in _PIDS)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(field.name for field in self.fields)


_RANK = Field("rank", "global rank of the training process that it belongs to")
_LOADER = Field(
    "loader",
    "number of the loader in its rank, in the order of construction; one that the script makes"
    " anew in the same way, as for each epoch, keeps its number",
)

_MADE_BY = Field("worker", "the worker's number; -1: the rank itself")

PROCESSES = Table(
    1,
    "processes",
    "a process of the run that records: a rank, or a worker of one of its loaders",
    (
        Field("pid", "process id; of other hosts than the launcher's plus 2^32 times `host`"),
        Field("parent_pid", "process id of what started it, in the same way"),
        Field("role", "rank or worker", "text"),
        _RANK,
        Field("loader", "for a worker, its loader's number in the rank; -1 for a rank"),
        Field("worker", "for a worker, its number in the loader; -1 for a rank"),
        Field("world_size", "ranks of the job"),
        Field("started_ns", "when its recording began"),
        Field("attempt", "number of the attempt in run.json"),
        Field("host", "number of its host in `hosts`"),
    ),
)
LOADERS = Table(
    2,
    "loaders",
    "a data loader of a rank, as it was constructed; once more where it was constructed again",
    (
        _RANK,
        _LOADER,
        Field("kind", "torch, headrace, or what else hands over batches", "text"),
        Field("dataset", "type of the dataset", "text"),
        Field("style", "map or iterable", "text"),
        Field("workers", "worker processes; 0: the rank makes its batches itself"),
        Field("prefetch_factor", "batches a worker prepares ahead; 0 without workers"),
        Field("batch_size", "samples a batch; -1 where a batch sampler or the dataset decides"),
        Field("pinned", "1: batches are copied to page-locked memory"),
        Field("persistent", "1: workers live on after an epoch"),
        Field("in_order", "1: batches come in the sampler's order"),
        Field("start_method", "how workers are started: fork, spawn, forkserver", "text"),
        Field("file", "source file that constructed it", "text"),
        Field("line", "line there"),
        Field("created_ns", "when"),
    ),
)
FETCHES = Table(
    3,
    "fetches",
    "one wait of a rank for a batch: one `next()` of a loader's iterator",
    (
        _RANK,
        _LOADER,
        Field("epoch", "how often the loader was iterated before, from 0"),
        Field("batch", "number of the batch in the iteration, from 0"),
        Field("start_ns", "when the rank asked"),
        Field("wait_ns", "until it had the batch"),
        Field("ready", "batches that lay ready when it asked, at least; -1 where unknown"),
        Field("ended", "1: there was no further batch"),
        Field("receive_ns", "of wait_ns: taking what workers had sent; -1 where unknown"),
        Field("receive_cpu_ns", "of receive_ns: CPU time of the rank's thread; -1 where unknown"),
        Field(
            "sampler_ns",
            "of wait_ns: in the sampler or batch sampler, which the rank's own thread asks for what"
            " comes next; before the first batch also while the iterator is made; -1 where unknown",
        ),
    ),
)
STEPS = Table(
    4,
    "steps",
    "a step of a rank, from one optimizer step to the next; an evaluation batch; or time between",
    (
        _RANK,
        Field("step", "number in the rank among those of its kind, from 0"),
        Field(
            "kind",
            "train, eval, or between: from the end of an epoch, or of the last step of a loop that"
            " `break` or the script ends, to the next batch",
            "text",
        ),
        _LOADER,
        Field("start_ns", "when it began"),
        Field("wall_ns", "how long it took; the phases add up to it"),
        Field("data_wait_ns", "phase: waiting for batches"),
        Field("copy_ns", "phase: copying tensors to the device, as the host sees it"),
        Field("forward_ns", "phase: from the batch to the start of backward"),
        Field("backward_ns", "phase: backward, without the exposed gradient sync"),
        Field("sync_ns", "phase: gradient sync that backward did not hide; FSDP's collectives"),
        Field("optimizer_ns", "phase: optimizer steps"),
        Field("other_ns", "phase: all else, such as logging, schedulers, printed losses"),
        Field("batches", "batches it took of its loader: several where gradients are accumulated"),
        Field("samples", "samples in it, those of other loaders too; -1 where unknown"),
        Field("sync_measured", "1: sync was measured: FSDP's in it, DDP's in the step before it"),
        Field("copies", "tensors that it copied to the device, from the thread that trains"),
        Field("pageable_copies", "of these, from memory that is not page-locked"),
        Field("blocking_copies", "of these, without non_blocking=True"),
    ),
)
BATCHES = Table(
    5,
    "batches",
    "a batch made by a worker, or by the rank itself where it has no workers",
    (
        _RANK,
        _LOADER,
        _MADE_BY,
        Field("batch", "number among those that this worker made, from 0"),
        Field("start_ns", "when making it began"),
        Field("wall_ns", "until it was made, collated"),
        Field("cpu_ns", "CPU time of the worker's main thread meanwhile"),
        Field("process_cpu_ns", "CPU time of all its threads meanwhile"),
        Field("samples", "samples in it; -1 where unknown"),
        Field(
            "read_bytes",
            "bytes that the process read meanwhile: files, pipes, and network_bytes; looked at"
            " every 20 ms at first, later every 200 ms, so that a batch may have those of some"
            " before it",
        ),
        Field("reads", "read calls that brought them, or found an end; -1 where not recorded"),
        Field(
            "network_bytes",
            "of these: over Python's sockets, TLS decrypted, or by Headrace's storage; what other"
            " native clients receive is not seen; -1 where not recorded",
        ),
        Field(
            "read_ns",
            "of wall_ns: in reads of sockets, of files that Python's `open` opened while a batch"
            " with such a time was made, by `os.read` (of pipes, too) and `np.fromfile`, and in"
            " Headrace's of samples; what native code reads by itself is not timed, but seen in"
            " stacks; -1 where not recorded, as in some batches of a loader whose batches open many"
            " files",
        ),
        Field("collate_ns", "of wall_ns: collating"),
        Field("idle_ns", "how long the worker had waited for work before it"),
        Field("send_ns", "handing the batch before this one over: pickling, shared memory"),
    ),
)
TRANSFORMS = Table(
    6,
    "transforms",
    "one transform, `__getitem__` or `collate_fn`, over the samples that were timed in a second;"
    " in a long run over minutes",
    (
        _RANK,
        _LOADER,
        _MADE_BY,
        Field("name", "what it is called: dataset.__getitem__, Compose[1].RandomCrop", "text"),
        Field("file", "source file of the callable, where there is one", "text"),
        Field("line", "its first line there; 0 where unknown"),
        Field("start_ns", "when the first of these seconds began", aggregation="first"),
        Field("calls", "calls that were timed", aggregation="sum"),
        Field("wall_ns", "time in them", aggregation="sum"),
        Field("cpu_ns", "CPU time of the main thread in them", aggregation="sum"),
        Field("one_in", "one sample in so many was timed"),
    ),
)
STACKS = Table(
    7,
    "stacks",
    "one place in the code where a process's main thread was seen, over a second; in a long run,"
    " after its first minutes, over minutes",
    (
        Field("pid", "process id"),
        _RANK,
        _LOADER,
        _MADE_BY,
        Field(
            "phase", "what a rank was doing: wait, forward, ...; for a worker work or idle", "text"
        ),
        Field(
            "stack",
            "frames from the outermost in: file:line:function, newline between; 0: no line",
            "text",
        ),
        Field("start_ns", "when the first of these seconds began", aggregation="first"),
        Field("samples", "how often it was seen there", aggregation="sum"),
        Field("wall_ns", "wall time that these stand for", aggregation="sum"),
        Field(
            "cpu_ns",
            "CPU time of the thread that these stand for; the rest it waited",
            aggregation="sum",
        ),
        Field("end_ns", "when the last of these seconds ended", aggregation="last"),
    ),
)
EVENTS = Table(
    8,
    "events",
    "something that happened once",
    (
        _RANK,
        Field("at_ns", "when"),
        Field(
            "kind",
            "probe-fault, dropped-records, switched (off, on), trace, rank-ended, ...",
            "text",
        ),
        Field("text", "what", "text"),
        Field("value", "a number that goes with it, 0 where there is none", "float"),
    ),
)
RANK_ENDED = "rank-ended"
"""The kind of the event that a rank's recording was closed, at the end of its script."""
NOT_RECORDED = "not-recorded"
"""The kind of the event that a process was not recorded, as another one is its rank."""
SCRIPT_ENDED = "script-ended"
"""The kind of the event that the host's script, or all of its ranks, ended without an error."""
HOSTS = Table(
    9,
    "hosts",
    "a host of the run",
    (
        Field("host", "its name", "text"),
        Field("cores", "cores that the job may use: affinity and cgroup quota respected", "float"),
        Field("memory_bytes", "memory that the job may use: cgroup limit respected"),
        Field("unix_offset_ns", "add to a time of its rows to get nanoseconds since 1970"),
        Field("attempt", "number of the attempt in run.json"),
        Field("number", "its number in the run; 0: that of the launcher"),
        Field("instance_group", "the instance group it belongs to; empty without groups", "text"),
    ),
)
LAUNCHER_HOST = 0
"""The number in `hosts` of the launcher's host."""
PROCESS_USAGE = Table(
    10,
    "process_usage",
    "what a process that records, or that such a one started, used since it was looked at before,"
    " at every tick; in a long run the mean of some ticks",
    (
        Field("t_ns", "when it was looked at", aggregation="last"),
        Field("pid", "process id"),
        Field(
            "cpu_percent",
            "CPU time per time; 100 is one core, more are several",
            "float",
            aggregation="mean",
        ),
        Field(
            "resident_bytes",
            "memory it holds, with shared memory, without pages of files",
            aggregation="whole-mean",
        ),
        Field("threads", "its threads; 0: it has ended since", aggregation="whole-mean"),
        Field(
            "read_bytes",
            "bytes that its read calls gave meanwhile; -1 where not to be known",
            aggregation="known-sum",
        ),
    ),
)
DEVICE_STEPS = Table(
    11,
    "device_steps",
    "a row of `steps` by the device's clock: what the device's queue took; none without a device",
    (
        _RANK,
        Field("step", "number of the row in `steps`, among those of its rank and kind"),
        Field("kind", "train, eval or between, as there", "text"),
        Field("device_wall_ns", "how long it took by the device's clock; the phases add up to it"),
        Field("device_data_wait_ns", "phase: the device had nothing to do while the host waited"),
        Field("device_copy_ns", "phase: copies to the device in the stream that trains"),
        Field("device_forward_ns", "phase: forward"),
        Field("device_backward_ns", "phase: backward"),
        Field("device_sync_ns", "phase: gradient sync that backward did not hide"),
        Field("device_optimizer_ns", "phase: optimizer steps"),
        Field("device_other_ns", "phase: all else"),
    ),
    later=True,
)

_HOST = Field("host", "name of the auxiliary host", "text")
_RANK_CLOCK_NOTE = "; times are those of the host of the rank"
AUXILIARY_BATCHES = Table(
    12,
    "auxiliary_batches",
    f"a batch made by a worker on an auxiliary host, as in `batches`{_RANK_CLOCK_NOTE}",
    (*BATCHES.fields, _HOST),
    later=True,
)
AUXILIARY_TRANSFORMS = Table(
    13,
    "auxiliary_transforms",
    f"what a transform took on an auxiliary host, as in `transforms`{_RANK_CLOCK_NOTE}",
    (*TRANSFORMS.fields, _HOST),
    later=True,
)
ARRIVALS = Table(
    14,
    "arrivals",
    "a batch of an auxiliary host, from asking for it until it lay in its slot",
    (
        _RANK,
        _LOADER,
        _HOST,
        Field("worker", "the worker's number on that host"),
        Field("start_ns", "when it was asked for"),
        Field("wall_ns", "until it was there"),
        Field("queued_ns", "of wall_ns: waiting on that host for a worker and its core"),
        Field("making_ns", "of wall_ns: with the worker that made it"),
        Field("receive_ns", "of wall_ns: from its first byte here to the last"),
        Field("size_bytes", "what came"),
        Field("counted", "1: it was the one that counted; 0: another had made it meanwhile"),
    ),
    later=True,
)

PROCESS_CORES = Table(
    15,
    "process_cores",
    "the cores that a rank or a worker may use, when they were first looked at or had changed",
    (
        Field("t_ns", "when they were looked at"),
        Field("pid", "process id"),
        Field("cores", "how many: its affinity and its control groups' quota respected", "float"),
        Field("numbers", "which cores its affinity allows: 0-3,8", "text"),
    ),
    later=True,
)
CODE_FOLDERS = Table(
    21,
    "code_folders",
    "a folder that tells the code of libraries and of the user's project apart: the deepest that"
    " holds a file counts",
    (
        _RANK,
        Field(
            "kind",
            "library: modules are imported from there; package: one library; project: the script's",
            "text",
        ),
        Field("folder", "path on the rank's host", "text"),
    ),
    later=True,
)
LIBRARY_LOADERS = Table(
    22,
    "library_loaders",
    "a row of `loaders` whose loader a library constructed: `loaders` has the script's line that"
    " led there",
    (
        _RANK,
        _LOADER,
        Field("file", "the library's source file that constructed it", "text"),
        Field("line", "line there"),
        Field("function", "the function there", "text"),
    ),
    later=True,
)
SLOW_STEP_STACKS = Table(
    23,
    "slow_step_stacks",
    "a row of `stacks` for the steps alone that took at least 1.5 times as long as the steps"
    " before them usually do; `stacks` counts these, too",
    STACKS.fields,
    later=True,
)
STARTUP_STACKS = Table(
    24,
    "startup_stacks",
    "where the main thread of a process was that had imported torch for ten seconds and asked for"
    " no batch yet, a second to half a minute a row; a last row without a stack where it then"
    " trains or ends",
    STACKS.fields,
    later=True,
)
DEVICE_COPIES = Table(
    25,
    "device_copies",
    "what copies at a line of code took by the device's clock, since the line's previous row;"
    " written more and more seldom; none without a device",
    (
        _RANK,
        Field("file", "source file that calls `.to`, `.cuda` or `.copy_`", "text"),
        Field("line", "line there"),
        Field("copies", "how many"),
        Field("device_ns", "how long the device was at them, in the stream that trains"),
    ),
    later=True,
)

_TOTAL_START = Field("start_ns", "when the first of them began", aggregation="first")
_TOTAL_END = Field("end_ns", "when the last of them ended", aggregation="last")
_OF_LONG_RUNS = "; of long runs alone, without the rows that are still in the store"
STEP_TOTALS = Table(
    26,
    "step_totals",
    f"steps of a rank over some seconds or minutes, from the rows of `steps`{_OF_LONG_RUNS}",
    (
        _RANK,
        Field("kind", "train, eval or between, as there", "text"),
        _TOTAL_START,
        _TOTAL_END,
        Field("steps", "how many", aggregation="sum"),
        Field("samples", "samples in them; -1 where unknown", aggregation="known-sum"),
        Field("wall_ns", "how long they took", aggregation="sum"),
        Field("data_wait_ns", "phase: see `steps`", aggregation="sum"),
        Field("copy_ns", "phase", aggregation="sum"),
        Field("forward_ns", "phase", aggregation="sum"),
        Field("backward_ns", "phase", aggregation="sum"),
        Field("sync_ns", "phase", aggregation="sum"),
        Field("optimizer_ns", "phase", aggregation="sum"),
        Field("other_ns", "phase", aggregation="sum"),
        Field("longest_ns", "wall time of the longest", aggregation="most"),
        Field("longest_data_wait_ns", "longest of the phase", aggregation="most"),
        Field("longest_sync_ns", "longest of the phase", aggregation="most"),
        Field("longest_other_ns", "longest of the phase", aggregation="most"),
        Field(
            "data_wait_share", "largest share of a step that it waited, 0 to 1", "float",
            aggregation="most",
        ),
    ),
    later=True,
)  # fmt: skip
FETCH_TOTALS = Table(
    27,
    "fetch_totals",
    f"waits of a rank for batches, from the rows of `fetches`{_OF_LONG_RUNS}",
    (
        _RANK,
        _LOADER,
        _TOTAL_START,
        _TOTAL_END,
        Field("fetches", "how many brought a batch", aggregation="sum"),
        Field("wait_ns", "time until the rank had the batches", aggregation="sum"),
        Field("known", "of them, those with a known number of ready batches", aggregation="sum"),
        Field("ready", "ready batches of these together", aggregation="sum"),
        Field("fewest_ready", "fewest that were ready; large where unknown", aggregation="least"),
    ),
    later=True,
)
BATCH_TOTALS = Table(
    28,
    "batch_totals",
    f"batches of a worker, or of the rank itself, from the rows of `batches`{_OF_LONG_RUNS}",
    (
        _RANK,
        _LOADER,
        _MADE_BY,
        Field(
            "start_ns",
            "when the worker began to wait for, or to hand over, what was before the first of them",
            aggregation="first",
        ),
        _TOTAL_END,
        Field("batches", "how many", aggregation="sum"),
        Field("wall_ns", "time in which they were made", aggregation="sum"),
    ),
    later=True,
)

TABLES = (
    PROCESSES,
    LOADERS,
    FETCHES,
    STEPS,
    BATCHES,
    TRANSFORMS,
    STACKS,
    EVENTS,
    HOSTS,
    PROCESS_USAGE,
    DEVICE_STEPS,
    AUXILIARY_BATCHES,
    AUXILIARY_TRANSFORMS,
    ARRIVALS,
    PROCESS_CORES,
    CODE_FOLDERS,
    LIBRARY_LOADERS,
    SLOW_STEP_STACKS,
    STARTUP_STACKS,
    DEVICE_COPIES,
    STEP_TOTALS,
    FETCH_TOTALS,
    BATCH_TOTALS,
)
"""All tables but `system`, whose columns depend on the host: see `system_table.py`."""

TABLES_BY_NUMBER = {table.number: table for table in TABLES}
TABLES_BY_NAME = {table.name: table for table in TABLES}
OPTIONAL_TABLES = frozenset(table.name for table in TABLES if table.later)
"""Tables that records of an older version may lack."""
PHASES = ("data_wait", "copy", "forward", "backward", "sync", "optimizer", "other")
"""The phases of a step, in order; the column of a phase has the suffix `_ns`."""
TOTALS = frozenset({STEP_TOTALS.name, FETCH_TOTALS.name, BATCH_TOTALS.name})
"""Tables of totals, which stand for rows of other tables."""
FORMAT_VERSION = 1


def check_version(version: int, path: Path) -> None:
    """Raise RecordsError where a format's version is newer than this one."""
    if version > FORMAT_VERSION:
        raise RecordsError(
            f"{path}: a newer Headrace wrote these records (format {version}; this one reads up "
            f"to {FORMAT_VERSION}). Read them with that version: pip install -U headrace."
        )
