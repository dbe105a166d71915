"""A few steps under torch.profiler, for Perfetto, when deep recording is asked for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headrace.observe.probe.session import SESSION

STEPS = 4
MOST_BYTES = 200 * 2**20
_FOLDER = "traces"


class Burst:
    """The bursts of this rank, one for each time that deep recording was asked for."""

    def __init__(self) -> None:
        self._seen = 0
        self._left = 0
        self._profiler: Any = None

    @property
    def under_way(self) -> bool:
        """Whether steps are traced now."""
        return self._profiler is not None

    @property
    def is_due(self) -> bool:
        """Whether a burst was asked for that was not made."""
        return SESSION.deep and self._seen != SESSION.deep_count

    def step_ended(self) -> None:
        """A training step has ended while the burst is under way."""
        self._left -= 1
        if self._left < 0 and self.under_way:
            self._end()

    def begin(self) -> None:
        """Trace the steps that follow; the next that ends is the one under way, cut."""
        import torch

        self._seen = SESSION.deep_count
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        if torch._C._autograd._profiler_enabled():  # noqa: SLF001 - no public way to ask
            SESSION.event("trace-dropped", "the script uses torch.profiler itself")
            return
        profiler = torch.profiler.profile(activities=activities)
        profiler.start()
        self._profiler, self._left = profiler, STEPS

    def _end(self) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        path = self._path()
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        size = path.stat().st_size
        if size > MOST_BYTES:
            path.unlink()
            SESSION.event("trace-dropped", f"{path.name}: larger than {MOST_BYTES} bytes", size)
        else:
            SESSION.event("trace", str(path), size)

    @staticmethod
    def _path() -> Path:
        run = SESSION.folder.parents[1]
        name = f"rank-{SESSION.rank}-{time.strftime('%H%M%S')}-{SESSION.deep_count}.json.gz"
        return run / _FOLDER / name


BURST = Burst()
