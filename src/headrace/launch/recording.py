"""Recording an attempt: the probe in its ranks, and one process beside them that keeps the records.

The process collects what ranks and workers write and samples the system. It ends when its standard
input does, so also when whoever started it was killed; then it closes the records.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, get_args

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.core.overrides import APPLIED, RANK_THREADS, Override, parse_overrides, threads_in
from headrace.core.places import SITE
from headrace.core.units import parse_seconds
from headrace.launch.collecting import Collecting
from headrace.launch.metric_watch import MetricWatch
from headrace.launch.told import tell
from headrace.records.layout import RINGS
from headrace.records.run_folder import Attempt, RunFolder
from headrace.records.switch import make_switch

Profile = Literal["on", "off", "deep"]
_USUAL_INTERVAL_S = 0.5
_DEEP_S = 365 * 24 * 3600.0  # as long as the run lasts
_SHORTEST_S, _LONGEST_S = 0.1, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What `headrace run` was told beside torchrun's own flags.

    Attributes:
        profile: "on", the default; "deep": closer for as long as it runs, with a trace of some
            steps; "off": nothing is hooked and nothing recorded.
        interval_s: Seconds between samples of the system.
        overrides: Arguments of loaders, and threads, in place of the script's.
        metrics: Regular expressions of what ranks print, by the metrics' names.
    """

    profile: Profile = "on"
    interval_s: float = _USUAL_INTERVAL_S
    overrides: tuple[Override, ...] = ()
    metrics: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(
        cls, profile: str | None, interval: str | None, overrides: str | None,
        metrics: Mapping[str, str] | None = None,
    ) -> JobOptions:  # fmt: skip
        """Return the options that flags name; raises UsageError."""
        chosen = next((each for each in get_args(Profile) if each == (profile or "on")), None)
        if chosen is None:
            raise UsageError(f"--profile {profile}: it is one of {', '.join(get_args(Profile))}.")
        return cls(
            profile=chosen,
            interval_s=check_interval(interval) if interval else _USUAL_INTERVAL_S,
            overrides=parse_overrides(overrides or ""),
            metrics=metrics or {},
        )


def check_interval(interval: str) -> float:
    """Return the seconds of a time between samples; raises UsageError."""
    interval_s = parse_seconds(interval)
    if not _SHORTEST_S <= interval_s <= _LONGEST_S:
        raise UsageError(f"an interval of {interval}: give 100ms to 60s.")
    return interval_s


class Recording:
    """The recording of one attempt.

    Args:
        folder: The run's.
        attempt: The attempt that begins.
        options: What the user chose.
    """

    def __init__(self, folder: RunFolder, attempt: Attempt, options: JobOptions) -> None:
        self._number = attempt.number
        self._records = folder.records(attempt.number)
        self._overrides = options.overrides
        self._applied = folder.path / APPLIED
        if self._overrides:
            shutil.rmtree(self._applied, ignore_errors=True)  # an earlier attempt's
        self._watch: MetricWatch | None = None
        if options.metrics:
            logs = folder.logs(attempt.number)
            self._watch = MetricWatch(logs, folder.path, attempt.number, options.metrics)
        self._collecting: Collecting | None = None
        if options.profile == "off":
            return
        (self._records / RINGS).mkdir(parents=True, exist_ok=True)
        switch = make_switch(self._records, interval_s=options.interval_s)
        if options.profile == "deep":
            switch.go_deep(_DEEP_S)
        self._collecting = Collecting(self._records, attempt.number)

    def environment(self) -> dict[str, str | None]:
        """Return the variables by which processes of the job find what is asked of them."""
        found: dict[str, str | None] = {env.RECORDS_DIR.name: None, env.APPLY.name: None}
        if self._collecting is not None:
            found[env.RECORDS_DIR.name] = str(self._records)
            found[env.ATTEMPT.name] = str(self._number)
        if self._overrides:
            found[env.APPLY.name] = ",".join(map(str, self._overrides))
        threads = threads_in(self._overrides, RANK_THREADS)
        if threads is not None:
            found |= env.thread_variables(threads)
        if self._collecting is not None or self._overrides:
            found[env.PYTHONPATH.name] = env.path_with(SITE)
        return found

    def finish(self) -> None:
        """Have the records closed, and tell what of the overrides was applied to no loader.

        Where closing takes too long, the records are read as they are.
        """
        if self._watch is not None:
            self._watch.finish()
        if self._collecting is not None:
            self._collecting.finish()
        with suppress(OSError):  # the run has ended, and its disk may be gone
            applied = {path.name for path in self._applied.glob("*")}
            for each in self._overrides:
                if each.of_loaders and each.mark not in applied:
                    tell(f"headrace: {each} was applied to no DataLoader\n")
