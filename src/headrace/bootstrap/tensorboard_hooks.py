"""TensorBoard in a job's script: which event files it writes, so that the run has their scalars."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.import_hooks import after_import
from headrace.decide.experiments.spool import SpoolWriter, now_ms

_WRITERS = {
    "tensorboard.summary.writer.event_file_writer": "EventFileWriter",
    "tensorboardX.event_file_writer": "EventsWriter",
}
"""Classes that open an event file, whose path is `_file_name`, by their module."""


def prepare_tensorboard(spool: Path) -> None:
    """Note in a spool each event file that this process opens."""
    writer = SpoolWriter(spool)
    for module, name in _WRITERS.items():
        after_import(module, functools.partial(_hook, writer, name))


def _hook(writer: SpoolWriter, name: str, module: Any) -> None:
    kind = getattr(module, name)
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - replaces that method
        original(self, *args, **kwargs)
        try:
            path = Path(self._file_name).absolute()
        except (AttributeError, TypeError) as error:  # of another release
            print_status(f"what the script writes for TensorBoard is not tracked: {error}")
            return
        writer.add({
            "kind": "event_file", "at_ms": now_ms(), "path": str(path), "rank": _number(env.RANK),
            "attempt": _number(env.ATTEMPT), "restart": _number(env.RESTART_COUNT),
        })  # fmt: skip

    kind.__init__ = __init__


def _number(variable: env.Variable) -> int:
    """Return the number that a variable has; 0 where it has none."""
    text = variable.get("")
    return int(text) if text and text.isdecimal() else 0
