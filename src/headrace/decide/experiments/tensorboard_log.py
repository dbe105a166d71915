"""A run as event files that TensorBoard shows: scalars, hyperparameters, and how it ended.

They are made of the spool, from its beginning on, whenever sending begins: so nothing is in them
twice, and they need no tracking server.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.decide.experiments.series_steps import step_of
from headrace.decide.experiments.spool import RUNNING, Entry, read_spool

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

TENSORBOARD = "tensorboard"
"""The folder of a run's event files, within the run's."""
_SUFFIX = ".headrace"  # of our event files, which others may lie beside
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_STATUSES = {  # of TensorBoard, by those of MLflow
    "RUNNING": "STATUS_RUNNING",
    "FINISHED": "STATUS_SUCCESS",
    "FAILED": "STATUS_FAILURE",
    "KILLED": "STATUS_FAILURE",
}
_FLUSH_S = 3600  # `flush` is called
_MOST_QUEUED = 1000
_REWRITE_PAUSE = 10
"""Between two rewrites of a file lies at least so many times what the longest one took."""


class TensorBoardLog:
    """Writes the event file of a run; an earlier one of ours is replaced.

    Args:
        spool: What was logged.
        name: The run's, for the table of hyperparameters.
        started_ms: Since 1970.

    Raises OSError.
    """

    def __init__(self, spool: Path, name: str, started_ms: int) -> None:
        self._spool, self._name, self._started_s = spool, name, started_ms / 1000
        self._params: dict[str, str] = {}
        self._written_params = 0
        self._others: list[Entry] = []
        self._longest_rewrite_s = 0.0
        self._rewritten_s = time.monotonic()
        self._begin_file()

    def _begin_file(self) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = self._spool.parent / TENSORBOARD
        for old in folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                old.unlink()
        self._writer = EventFileWriter(str(folder), _MOST_QUEUED, _FLUSH_S, _SUFFIX)
        self._offsets: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        self._attempts: dict[str, tuple[int, int]] = {}
        self._kinds: dict[str, str] = {}  # by name: of what had it first, a series or a number

    def write(self, *, is_last: bool = False) -> None:
        """Write what the spool holds that is not written yet; raises OSError."""
        self._add_spool()
        self._end_writing(is_last=is_last)

    def write_others(self, entries: Iterable[Entry]) -> None:
        """Write entries that are not in the spool, after all that are; raises OSError."""
        self._others = list(entries)
        self._add(self._others)
        self._end_writing(is_last=True)

    def _add_spool(self) -> None:
        for entries, offsets in read_spool(self._spool, self._offsets):
            self._add(entries)
            self._offsets = offsets

    def _end_writing(self, *, is_last: bool) -> None:
        if len(self._params) > self._written_params and (is_last or self._may_rewrite()):
            if self._written_params:
                self._rewrite()
            self._write_params()
            self._written_params = len(self._params)
        self._writer.flush()

    def _may_rewrite(self) -> bool:
        """Return whether enough time is left beside it: a script may log params at every step."""
        if not self._written_params:
            return True
        return time.monotonic() - self._rewritten_s >= _REWRITE_PAUSE * self._longest_rewrite_s

    def _rewrite(self) -> None:
        """Begin the file anew: of all that it holds of params, TensorBoard shows the first."""
        began_s = time.monotonic()
        self._writer.close()
        self._begin_file()
        self._add_spool()
        self._add(self._others)
        self._rewritten_s = time.monotonic()
        self._longest_rewrite_s = max(self._longest_rewrite_s, self._rewritten_s - began_s)

    def _add(self, entries: Iterable[Entry]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for entry in entries:
            at_s = entry["at_ms"] / 1000
            if entry["kind"] in {"metrics", "summary"}:
                is_series = entry["kind"] == "metrics"
                for name, number in entry["values"].items():
                    tag = self._tag("series" if is_series else "summary", name)
                    value = Summary.Value(tag=tag, simple_value=number)
                    step = step_of(entry, name, self._steps, self._attempts) if is_series else 0
                    self._write(Summary(value=[value]), at_s, step)
            elif entry["kind"] == "params":
                for name, text in entry["values"].items():
                    self._params.setdefault(name, text)  # as MLflow has it, whose cannot change
            elif entry["kind"] == "status" and entry["status"] != RUNNING:
                self._write_end(entry["status"], at_s)

    def _tag(self, kind: str, name: str) -> str:
        """Return the name of a curve, as MLflow has it: a number is no point of a series."""
        return name if self._kinds.setdefault(name, kind) == kind else f"{kind}/{name}"

    def _write_params(self) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        params = {name: _as_number(text) for name, text in self._params.items()}
        self._write(hparams_pb(params, self._name, self._started_s), self._started_s, 0)

    def _write_end(self, status: str, at_s: float) -> None:
        """Write the end of a session of the hyperparameters' plugin; it may begin again later."""
        # Not of `hparams.summary`, which imports TensorFlow.
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata
        from tensorboard.plugins.hparams.api_pb2 import Status
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

        end = SessionEndInfo(status=Status.Value(_STATUSES[status]), end_time_secs=at_s)
        value = Summary.Value(
            tag=metadata.SESSION_END_INFO_TAG,
            metadata=metadata.create_summary_metadata(HParamsPluginData(session_end_info=end)),
            tensor=metadata.NULL_TENSOR,
        )
        self._write(Summary(value=[value]), at_s, 0)

    def _write(self, summary: Summary, at_s: float, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=at_s, step=step, summary=summary))


def _as_number(text: str) -> float | str:
    """Return a param as TensorBoard sorts it: a number where it is one."""
    return float(text) if _NUMBER.fullmatch(text) else text
