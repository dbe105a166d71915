"""Scalars and hyperparameters in event files that a script writes for TensorBoard.

Torch's SummaryWriter, TensorFlow's and tensorboardX's write them, and with these the loggers of
Trainer, Lightning and Accelerate.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.decide.experiments.spool import Entry

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

_SCALARS, _HPARAMS = "scalars", "hparams"  # plugins of TensorBoard


class EventFile:
    """An event file, read as it grows.

    Args:
        path: The file.
        prefix: Of the names of its metrics; "": none.
        skipped: How many of its events were read before.
    """

    def __init__(self, path: Path, prefix: str = "", skipped: int = 0) -> None:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        self.path, self.count = path, 0
        self._prefix, self._skipped = prefix, skipped
        self._scalar_tags: set[str] = set()  # those of tensors, of which the first says so
        self._loader = LegacyEventFileLoader(str(path))

    def read(self) -> Iterator[Entry]:
        """Yield what was written since the last call; raises OSError."""
        for event in self._loader.Load():
            self.count += 1
            entries = list(self._entries(event))
            if self.count > self._skipped:
                yield from entries

    def _entries(self, event: Event) -> Iterator[Entry]:
        at_ms = round(event.wall_time * 1000)
        values: dict[str, float] = {}
        for value in event.summary.value:
            number = self._number(value)
            if number is not None:
                values[f"{self._prefix}{value.tag}"] = number
            elif value.metadata.plugin_data.plugin_name == _HPARAMS:
                params = _hyperparameters(value.metadata.plugin_data.content)
                if params:
                    yield {"kind": "params", "at_ms": at_ms, "values": params}
        if values:
            yield {"kind": "metrics", "at_ms": at_ms, "values": values, "step": int(event.step)}

    def _number(self, value: Summary.Value) -> float | None:
        """Return a scalar's number; None where it is something else, such as an image."""
        if value.HasField("simple_value"):
            return float(value.simple_value)
        if value.metadata.plugin_data.plugin_name == _SCALARS:
            self._scalar_tags.add(value.tag)
        if not value.HasField("tensor") or value.tag not in self._scalar_tags:
            return None
        from tensorboard.util.tensor_util import make_ndarray

        return float(make_ndarray(value.tensor).item())


def _hyperparameters(content: bytes) -> dict[str, str]:
    """Return the hyperparameters of a session that starts; {} of the plugin's other messages."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    data = HParamsPluginData.FromString(content)
    found: dict[str, Any] = {}
    for name, value in data.session_start_info.hparams.items():
        kind = value.WhichOneof("kind")
        if kind is not None:
            number = getattr(value, kind)
            found[name] = int(number) if isinstance(number, float) and number % 1 == 0 else number
    return {name: str(value) for name, value in found.items()}
