"""Traces of a few steps by torch.profiler, for Perfetto, when deep recording is requested.

torch has one profiler a process, and the script's own takes precedence: no trace begins while that
runs, and a trace ends when the script's begins.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.recording_session import SESSION

STEPS, FEWEST_STEPS = 4, 3
MAX_TRACE_BYTES = 200 * 2**20
LONGEST_S = 10.0
"""A trace ends at the next batch after this time: evaluations have batches but no steps."""
_FOLDER = "traces"
_PROFILER_STARTS = ("_prepare_profiler", "_enable_profiler")  # called first by torch's profilers


class ProfilerTrace:
    """The traces of this rank, one for each request for deep recording."""

    def __init__(self) -> None:
        self._last_request = 0
        self._steps_left = 0
        self._thread = 0  # that began the trace; no other can end it
        self._until_s = 0.0
        self._waits_for_device = False
        self._profiler: Any = None
        self._unwatch: Callable[[], None] = lambda: None

    @property
    def under_way(self) -> bool:
        """Whether steps are being traced."""
        return self._profiler is not None

    @property
    def may_be_due(self) -> bool:
        """Whether a trace is under way, or was requested and not begun; asked at each step."""
        return self._profiler is not None or self._last_request != SESSION.deep_count

    @property
    def is_due(self) -> bool:
        """Whether a trace was requested that has not been made."""
        return SESSION.deep and self._last_request != SESSION.deep_count

    def begin(self) -> None:
        """Start a trace; the first step that ends in it is incomplete."""
        import torch

        self._last_request = SESSION.deep_count
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._waits_for_device = len(activities) > 1
        if torch._C._autograd._profiler_enabled():  # noqa: SLF001 - no public way
            SESSION.event("trace-dropped", "the script uses torch.profiler itself")
            return
        profiler = torch.profiler.profile(activities=activities)
        profiler.start()
        self._profiler, self._steps_left = profiler, STEPS
        self._thread, self._until_s = get_ident(), time.monotonic() + LONGEST_S
        self._unwatch = self._watch(torch.autograd.profiler)

    def steps_ended(self, count: int) -> None:
        """Count training steps that have ended since the last call; called at each batch."""
        self._steps_left -= count
        if self._steps_left < 0 or time.monotonic() > self._until_s:
            self.end()

    def end(self) -> None:
        """End the trace and save it, if one is under way."""
        if not self.under_way or get_ident() != self._thread:
            return
        profiler = self.drop()
        try:
            self._keep(profiler)
        except Exception as error:  # noqa: BLE001 - e.g. a full disk; recording goes on
            SESSION.fault("Burst", error)

    def give_up(self) -> None:
        """Save the trace at the process's end, unless that would wait for a device."""
        if not self._waits_for_device:
            self.end()
        elif self.under_way:
            self.drop()
            SESSION.event("trace-dropped", "the run ended in the middle of it")

    def _keep(self, profiler: Any) -> None:
        profiler.stop()
        name = f"rank-{SESSION.rank}-{time.strftime('%H%M%S')}-{SESSION.deep_count}.json.gz"
        path = SESSION.folder.parents[1] / _FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        size = path.stat().st_size
        if size > MAX_TRACE_BYTES:
            path.unlink()
            text = f"{path.name}: larger than {MAX_TRACE_BYTES} bytes"
            SESSION.event("trace-dropped", text, size)
        else:
            SESSION.event("trace", str(path), size)
            complete = max(STEPS - self._steps_left - 1, 0)  # the last one counted was incomplete
            if complete < FEWEST_STEPS:
                text = f"{path.name}: fewer than {FEWEST_STEPS} whole steps"
                SESSION.event("trace-short", text, complete)

    def drop(self) -> Any:
        """Forget the trace, such as in a forked child: it is the parent's; return its profiler."""
        self._unwatch()
        self._unwatch = lambda: None
        profiler, self._profiler = self._profiler, None
        return profiler

    def _watch(self, module: Any) -> Callable[[], None]:
        """End the trace when the script starts profiling; return what undoes the hooks."""
        originals = {
            name: getattr(module, name) for name in _PROFILER_STARTS if hasattr(module, name)
        }

        def ending_trace(original: Callable[..., Any]) -> Callable[..., Any]:
            @skipped_by_warnings
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


PROFILER_TRACE = ProfilerTrace()
os.register_at_fork(after_in_child=PROFILER_TRACE.drop)
