"""A run's records as pandas data frames, with steps matched to those of the device's clock."""

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
    """Return for each of some steps the place of its row by the device's clock; -1: it has none.

    A row of `device_steps` may be lost. Where a rank was started again within an attempt, it
    numbers its steps anew: what cannot be told apart counts as lost.

    Args:
        steps: The columns `rank`, `kind` and `step` of rows of `steps`.
        device_steps: Likewise of `device_steps`.
    """
    wanted, there = _step_keys(steps), _step_keys(device_steps)
    order = np.argsort(there, kind="stable")
    there = there[order]
    first = np.searchsorted(there, wanted, "left")
    count = np.searchsorted(there, wanted, "right") - first
    _, numbers, times = np.unique(wanted, return_inverse=True, return_counts=True)
    sure = (count == 1) & (times[numbers] == 1)
    places = np.full(len(wanted), -1, dtype=np.int64)
    places[sure] = order[first[sure]]
    return places


def _step_keys(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Return a number for rank, kind and step together."""
    kind = np.zeros(len(rows["rank"]), dtype=np.int64)
    for number, name in enumerate(_KINDS):
        kind[np.asarray(rows["kind"] == name)] = number
    rank = np.asarray(rows["rank"], dtype=np.int64)
    step = np.asarray(rows["step"], dtype=np.int64)
    return (((rank << _KIND_BITS) + kind) << _STEP_BITS) + step


class RunFrames:
    """What was recorded of a run, each table loaded when it is first asked for.

    docs/records.md describes every column. Times are nanoseconds of the host's monotonic clock;
    `hosts.unix_offset_ns` takes them to 1970. A live run is opened anew to see more of it.

    Attributes:
        path: The run's folder.
        attempt: The attempt that is read.
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

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a step of a rank, its phases in columns of nanoseconds: `data_wait_ns`, ..."""
        return self._frame("steps")

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
            rows = self._device_steps_of(steps)
            wall_ns = np.tile(rows["device_wall_ns"].where(lambda ns: ns > 0), len(PHASES))
            # `melt` puts one phase of all steps below the other.
            long["device_phase_ns"] = np.concatenate([rows[f"device_{each}_ns"] for each in PHASES])
            long["device_share"] = long["device_phase_ns"] / wall_ns
        return long

    @cached_property
    def device_steps(self) -> pd.DataFrame:
        """One row a row of `steps`, by the device's clock; merge on rank, kind and step."""
        return self._frame("device_steps")

    @cached_property
    def workers(self) -> pd.DataFrame:
        """One row a batch that a worker made, or the rank itself where it has no workers."""
        return self._frame("batches")

    @cached_property
    def transforms(self) -> pd.DataFrame:
        """One row a transform, worker and second, over the samples that were timed."""
        return self._frame("transforms")

    @cached_property
    def stacks(self) -> pd.DataFrame:
        """One row a place in the code where a process was seen, over some seconds."""
        return self._frame("stacks")

    @cached_property
    def auxiliary_workers(self) -> pd.DataFrame:
        """One row a batch that a worker on an auxiliary host made."""
        return self._frame("auxiliary_batches")

    @cached_property
    def auxiliary_transforms(self) -> pd.DataFrame:
        """One row a transform, worker of an auxiliary host and second."""
        return self._frame("auxiliary_transforms")

    @cached_property
    def arrivals(self) -> pd.DataFrame:
        """One row a batch that came from an auxiliary host: what its way took."""
        return self._frame("arrivals")

    @cached_property
    def system(self) -> pd.DataFrame:
        """One row a tick: cores, memory, disks, network and GPUs of the host."""
        return self._frame("system")

    @cached_property
    def process_usage(self) -> pd.DataFrame:
        """One row a tick and process that records: its CPU time, memory and reads."""
        return self._frame("process_usage")

    @cached_property
    def events(self) -> pd.DataFrame:
        """One row for everything that happened once."""
        return self._frame("events")

    @cached_property
    def loaders(self) -> pd.DataFrame:
        """One row for each time that a data loader was constructed."""
        return self._frame("loaders")

    @cached_property
    def fetches(self) -> pd.DataFrame:
        """One row a wait of a rank for a batch."""
        return self._frame("fetches")

    @cached_property
    def processes(self) -> pd.DataFrame:
        """One row a process that records."""
        return self._frame("processes")

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row a number that ranks printed and `--metric` found: see `METRIC_COLUMNS`."""
        import pandas as pd

        rows = [row for row in read_metrics(self.path) if row["attempt"] == self.attempt]
        return pd.DataFrame(rows, columns=list(METRIC_COLUMNS))

    @cached_property
    def hosts(self) -> pd.DataFrame:
        """One row a host."""
        return self._frame("hosts")

    def _device_steps_of(self, steps: pd.DataFrame) -> pd.DataFrame:
        """Return the row of `device_steps` of each row of `steps`, NaN where it was lost."""
        there = self.device_steps
        names = ("rank", "kind", "step")
        places = device_row_numbers(
            {name: steps[name].to_numpy() for name in names},
            {name: there[name].to_numpy() for name in names},
        )
        return there.reindex(places)  # no row has the number -1

    def arrow(self, table: str) -> pa.Table:
        """Return a table of docs/records.md as Arrow has it, such as "steps"; RecordsError."""
        return self._records.table(table)

    def _frame(self, name: str) -> pd.DataFrame:
        return self._records.table(name).to_pandas()


def open_run_frames(path: str | Path, attempt: int | None = None) -> RunFrames:
    """Open a run, live or ended, to look at its records as data frames.

    Args:
        path: The run's folder, or its name below the runs folder.
        attempt: The attempt's number; None: the latest that has records.

    Raises:
        UsageError: There is no such run.
        RecordsError: It has no records, or a newer version wrote them.
    """
    return RunFrames(path, attempt)
