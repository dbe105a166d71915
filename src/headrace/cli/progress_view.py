"""The view of the progress of work on datasets: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from headrace.core.units import format_bytes, format_seconds
from headrace.data.shards.reports import PackProgress

_LINE_EVERY_S = 10.0


class ProgressView:
    """What is shown on standard error; nothing in the first `silent_s` after `start_s`."""

    def __init__(self, silent_s: float, start_s: float) -> None:
        self._console = Console(stderr=True)
        self._silent_s = silent_s
        self._start_s = start_s
        self._stage = ""
        self._first = (start_s, 0, 0)  # the stage's first samples: time, samples, bytes
        self._next_line_s = start_s + silent_s
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def end(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: PackProgress, now: float) -> None:
        """Show the progress of the work; `now` by the monotonic clock, in seconds."""
        if progress.stage != self._stage or self._first[1] <= progress.resumed:
            self._stage = progress.stage
            self._first = (now, progress.samples, progress.read_bytes)
        if now - self._start_s < self._silent_s:
            return
        if self._console.is_terminal:
            self._show_bar(progress, now)
        elif now >= self._next_line_s:
            self._next_line_s = now + _LINE_EVERY_S
            numbers = ", ".join(self.numbers(progress, now)) or "begun"
            sys.stderr.write(f"{progress.stage}: {numbers}\n")
            sys.stderr.flush()

    def _show_bar(self, progress: PackProgress, now: float) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[numbers]}"),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task(progress.stage, numbers="")
            self._bar.start()
        self._bar.update(
            self._task,
            description=progress.stage,
            completed=progress.samples,
            total=progress.of_samples or None,
            numbers=", ".join(self.numbers(progress, now)),
        )

    def numbers(self, progress: PackProgress, now: float) -> list[str]:
        """Return samples, rates and the time that is left, as far as they are known."""
        # Workers take a moment to start, so the rate is measured from the first samples on.
        elapsed_s = max(now - self._first[0], 1e-3)
        rate = (progress.samples - self._first[1]) / elapsed_s
        numbers = []
        if progress.of_samples:
            numbers.append(f"{progress.samples:,}/{progress.of_samples:,}")
        elif progress.samples:
            what = "files" if progress.stage == "listing" else "samples"
            numbers.append(f"{progress.samples:,} {what}")
        read_bytes = progress.read_bytes - self._first[2]
        if rate > 0:
            numbers.append(f"{rate:.0f}/s")
        if read_bytes > 0:
            numbers.append(f"{format_bytes(read_bytes / elapsed_s)}/s")
        if rate > 0 and progress.of_samples:
            left_s = (progress.of_samples - progress.samples) / rate
            numbers.append(f"{format_seconds(round(left_s))} left")
        if progress.bad:
            numbers.append(f"{progress.bad} bad")
        return numbers
