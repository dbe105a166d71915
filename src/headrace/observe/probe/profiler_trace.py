"""Traces of a few steps by torch.profiler, for Perfetto, when deep recording is requested.

torch has one profiler a process, so the script's own comes first: a trace is not begun where that
is at work, and ends where it begins.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any

from headrace.observe.probe.recording_session import SESSION

STEPS, FEWEST_STEPS = 4, 3
MAX_TRACE_BYTES = 200 * 2**20
LONGEST_S = 10.0
"""A burst ends at the next batch after so long: evaluations have batches, and no training steps."""
_FOLDER = "traces"
_PROFILER_STARTS = (
    "_prepare_profiler",
    "_enable_profiler",
)  # what every profiler of torch's begins with


class ProfilerTrace:
    """The bursts of this rank, one for each time that deep recording was asked for."""

    def __init__(self) -> None:
        self._seen = 0
        self._left = 0
        self._thread = 0  # that began it: no other can end it
        self._until_s = 0.0
        self._waits_for_device = False
        self._profiler: Any = None
        self._unwatch: Callable[[], None] = lambda: None

    @property
    def under_way(self) -> bool:
        """Whether steps are traced now."""
        return self._profiler is not None

    @property
    def is_due(self) -> bool:
        """Whether a burst was asked for that was not made."""
        return SESSION.deep and self._seen != SESSION.deep_count

    def begin(self) -> None:
        """Trace the steps that follow; the next that ends is the one under way, cut."""
        import torch

        self._seen = SESSION.deep_count
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._waits_for_device = len(activities) > 1
        if torch._C._autograd._profiler_enabled():  # noqa: SLF001 - no public way to ask
            SESSION.event("trace-dropped", "the script uses torch.profiler itself")
            return
        profiler = torch.profiler.profile(activities=activities)
        profiler.start()
        self._profiler, self._left = profiler, STEPS
        self._thread, self._until_s = get_ident(), time.monotonic() + LONGEST_S
        self._unwatch = self._watch(torch.autograd.profiler)

    def steps_ended(self, count: int) -> None:
        """So many training steps have ended since this was told last; it is told at each batch."""
        self._left -= count
        if self._left < 0 or time.monotonic() > self._until_s:
            self.end()

    def end(self) -> None:
        """Trace no more, and keep what was traced, where a burst is under way."""
        if not self.under_way or get_ident() != self._thread:
            return
        profiler = self._drop()
        try:
            self._keep(profiler)
        except Exception as error:  # noqa: BLE001 - a full disk, say: the records are to go on
            SESSION.fault("Burst", error)

    def give_up(self) -> None:
        """The process ends: keep what was traced, unless that waits for a device."""
        if not self._waits_for_device:
            self.end()
        elif self.under_way:
            self._drop()
            SESSION.event("trace-dropped", "the run ended in the middle of it")

    def _keep(self, profiler: Any) -> None:
        profiler.stop()
        path = self._path()
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        size = path.stat().st_size
        if size > MAX_TRACE_BYTES:
            path.unlink()
            SESSION.event(
                "trace-dropped", f"{path.name}: larger than {MAX_TRACE_BYTES} bytes", size
            )
        else:
            SESSION.event("trace", str(path), size)
            whole = max(STEPS - self._left - 1, 0)  # the last one counted was cut
            if whole < FEWEST_STEPS:
                said = f"{path.name}: fewer than {FEWEST_STEPS} whole steps"
                SESSION.event("trace-short", said, whole)

    def forked(self) -> None:
        """Know of no burst in a forked child: what the parent traces is the parent's."""
        self._drop()

    def _drop(self) -> Any:
        self._unwatch()
        self._unwatch = lambda: None
        profiler, self._profiler = self._profiler, None
        return profiler

    def _watch(self, module: Any) -> Callable[[], None]:
        """End where the script begins to profile; return what takes that back."""
        originals = {
            name: getattr(module, name) for name in _PROFILER_STARTS if hasattr(module, name)
        }

        def ending_trace(original: Callable[..., Any]) -> Callable[..., Any]:
            def enable(*args: Any, **kwargs: Any) -> Any:
                self.end()
                return original(*args, **kwargs)

            return enable

        def unwatch() -> None:
            for name, original in originals.items():
                setattr(module, name, original)

        for name, original in originals.items():
            setattr(module, name, ending_trace(original))
        return unwatch

    @staticmethod
    def _path() -> Path:
        run = SESSION.folder.parents[1]
        name = f"rank-{SESSION.rank}-{time.strftime('%H%M%S')}-{SESSION.deep_count}.json.gz"
        return run / _FOLDER / name


PROFILER_TRACE = ProfilerTrace()
os.register_at_fork(after_in_child=PROFILER_TRACE.forked)
