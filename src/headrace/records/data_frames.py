"""A run's records as pandas data frames, steps matched with their rows by the device's clock."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.records.layout import METRIC_COLUMNS, read_metrics
from headrace.records.reader import open_records
from headrace.records.schema import PHASES

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_KIND_BITS, _STEP_BITS = 2, 40
_KINDS = ("train", "eval", "between")


def device_row_numbers(
    steps: Mapping[str, NDArray[Any]], device_steps: Mapping[str, NDArray[Any]]
) -> NDArray[np.int64]:
    """Return for each of some steps the index of its row in `device_steps`, -1 without one.

    A row of `device_steps` may be lost. A rank that restarts within an attempt counts its steps
    from 0 again: ambiguous rows count as lost. Both arguments have `rank`, `kind` and `step`.
    """
    step_keys, keys = _step_keys(steps), _step_keys(device_steps)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.searchsorted(keys, step_keys, "left")
    count = np.searchsorted(keys, step_keys, "right") - first
    _, numbers, times = np.unique(step_keys, return_inverse=True, return_counts=True)
    is_unique = (count == 1) & (times[numbers] == 1)
    row_numbers = np.full(len(step_keys), -1, dtype=np.int64)
    row_numbers[is_unique] = order[first[is_unique]]
    return row_numbers


def _step_keys(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Return rank, kind and step packed into one integer."""
    kind = np.zeros(len(rows["rank"]), dtype=np.int64)
    for number, name in enumerate(_KINDS):
        kind[np.asarray(rows["kind"] == name)] = number
    rank = np.asarray(rows["rank"], dtype=np.int64)
    step = np.asarray(rows["step"], dtype=np.int64)
    return (((rank << _KIND_BITS) + kind) << _STEP_BITS) + step


def _table(name: str, meaning: str) -> cached_property[pd.DataFrame]:
    """Return a property of `RunFrames`: a table, read at its first use."""
    frame: cached_property[pd.DataFrame] = cached_property(lambda run: run.arrow(name).to_pandas())
    frame.__doc__ = meaning
    return frame


class RunFrames:
    """The records of a run as data frames, each table read at its first use.

    docs/records.md describes every column. Times are nanoseconds of the host's monotonic clock;
    plus `hosts.unix_offset_ns` they are Unix time. To see more of a live run, open it again.

    Args:
        path: The run's folder, or its name below the runs folder.
        attempt: The attempt's number; None: the latest that has records.

    Raises:
        UsageError: There is no such run.
        RecordsError: It has no records, or a newer version wrote them.
    """

    def __init__(self, path: str | Path, attempt: int | None = None) -> None:
        self._records = open_records(path, attempt)
        self.path = self._records.path
        self.attempt = self._records.attempt

    def __repr__(self) -> str:
        state = "live" if self.live else "closed"
        return f"Run({str(self.path)!r}, attempt={self.attempt}, {state})"

    @property
    def live(self) -> bool:
        """Whether the run is being recorded at this moment."""
        return self._records.live

    steps = _table(
        "steps",
        "One row a step of a rank, its phases in columns of nanoseconds: `data_wait_ns`, ...",
    )
    device_steps = _table(
        "device_steps",
        "One row a row of `steps`, by the device's clock; merge on rank, kind and step.",
    )
    workers = _table(
        "batches", "One row a batch that a worker made, or the rank itself where it has no workers."
    )
    transforms = _table(
        "transforms", "One row a transform, worker and second, over the samples that were timed."
    )
    stacks = _table("stacks", "One row a stack in which a process was sampled, over some seconds.")
    auxiliary_workers = _table(
        "auxiliary_batches", "One row a batch that a worker on an auxiliary host made."
    )
    auxiliary_transforms = _table(
        "auxiliary_transforms", "One row a transform, worker of an auxiliary host and second."
    )
    arrivals = _table(
        "arrivals",
        "One row a batch received from an auxiliary host, with its durations on the way.",
    )
    system = _table("system", "One row a tick: cores, memory, disks, network and GPUs of the host.")
    process_usage = _table(
        "process_usage", "One row a tick and process that records: its CPU time, memory and reads."
    )
    process_cores = _table(
        "process_cores", "One row a process that records, and a change of the cores it may use."
    )
    events = _table("events", "One row an event.")
    loaders = _table("loaders", "One row a construction of a data loader.")
    fetches = _table("fetches", "One row a wait of a rank for a batch.")
    processes = _table("processes", "One row a process that records.")
    hosts = _table("hosts", "One row a host.")

    @cached_property
    def phases(self) -> pd.DataFrame:
        """One row a phase of a step: rank, step, kind, loader, start_ns, phase, phase_ns.

        `start_ns` is when the step began, `phase_ns` the phase's time in it; `share` is that of
        the step's time, from 0 to 1. Where the run has `device_steps`, also `device_phase_ns` and
        `device_share`: the same by the accelerator's own clock, NaN where a row of it was lost.
        """
        steps = self.steps
        long = steps.melt(
            id_vars=["rank", "step", "kind", "loader", "start_ns", "wall_ns"],
            value_vars=[f"{phase}_ns" for phase in PHASES],
            var_name="phase",
            value_name="phase_ns",
        )
        long["phase"] = long["phase"].str.removesuffix("_ns")
        long["share"] = long["phase_ns"] / long.pop("wall_ns").where(lambda wall_ns: wall_ns > 0)
        if len(self.device_steps):
            names = ("rank", "kind", "step")
            row_numbers = device_row_numbers(
                {name: steps[name].to_numpy() for name in names},
                {name: self.device_steps[name].to_numpy() for name in names},
            )
            rows = self.device_steps.reindex(row_numbers)  # no row has the number -1
            wall_ns = np.tile(rows["device_wall_ns"].where(lambda ns: ns > 0), len(PHASES))
            # `melt` stacks the phases: all steps of one phase, then of the next.
            long["device_phase_ns"] = np.concatenate([rows[f"device_{each}_ns"] for each in PHASES])
            long["device_share"] = long["device_phase_ns"] / wall_ns
        return long

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row a value that `--metric` found in the ranks' output: see `METRIC_COLUMNS`."""
        import pandas as pd

        rows = [row for row in read_metrics(self.path) if row["attempt"] == self.attempt]
        return pd.DataFrame(rows, columns=list(METRIC_COLUMNS))

    def arrow(self, table: str) -> pa.Table:
        """Return a table of docs/records.md, such as "steps", for Arrow; raises RecordsError."""
        return self._records.table(table)
