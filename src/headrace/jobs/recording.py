"""The recording of an attempt: its options, its variables, and its collector process.

The process collects what ranks and workers write and samples the system. It ends when its standard
input does, so also when whoever started it was killed; then it closes the records. Where it is
killed, another takes over; what the job writes meanwhile waits in its rings, which hold some
seconds of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.core.overrides import APPLIED, RANK_THREADS, Override, parse_overrides, thread_count
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.core.units import parse_seconds
from headrace.jobs.failure import describe_exit
from headrace.jobs.metric_scraper import MetricScraper
from headrace.records.layout import RINGS
from headrace.records.live_switch import create_live_switch
from headrace.records.run_folder import Attempt, RunFolder

_CLOSE_S = 60.0
_MAX_PROCESSES = 10


class CollectorSupervisor:
    """The collecting process of one attempt, from now on.

    Args:
        records: The attempt's records folder.
        attempt: The attempt's number.
    """

    def __init__(self, records: Path, attempt: int) -> None:
        self._records, self._attempt = records, attempt
        # As it is now: later that of torchrun's process is changed, for the ranks.
        self._environment = env.child_environment({})
        self._turn = threading.Lock()  # of who decides whether there is another
        self._is_over = False
        self._process = self._start()
        threading.Thread(target=self._watch, name="headrace-collecting", daemon=True).start()

    def finish(self) -> None:
        """Have the records closed; where that takes too long, they are read as they are."""
        with self._turn:
            self._is_over = True
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_CLOSE_S)
        except subprocess.TimeoutExpired:
            print_status(f"headrace: the records in {self._records} are not closed yet\n")

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                sys.executable, "-P", "-m", "headrace.observe.probe.collector_process",
                "--folder", str(self._records), "--attempt", str(self._attempt),
                "--parent", str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            env=self._environment,
            # What ends the job by its process group or terminal must not end the records.
            start_new_session=True,
        )  # fmt: skip

    def _watch(self) -> None:
        """Start another for each that is killed: by the kernel, say, which wanted its memory."""
        for starts_left in reversed(range(_MAX_PROCESSES)):
            returncode = self._process.wait()
            with self._turn:  # nothing is told meanwhile: a terminal may stand still
                if self._is_over or returncode >= 0:  # one that ends by itself has said why
                    return
                follows = starts_left > 0 and self._start_another()
            said = f"headrace: the process that collects records was {describe_exit(returncode)}"
            if not follows:
                print_status(f"{said}; what the job does from now on is not recorded\n")
                return
            print_status(f"{said}; another takes over\n")

    def _start_another(self) -> bool:
        try:
            self._process = self._start()
        except OSError:  # no memory for it either
            return False
        return True


Profile = Literal["on", "off", "deep"]
_DEFAULT_INTERVAL_S = 0.5
_DEEP_S = 365 * 24 * 3600.0  # as long as the run lasts
_SHORTEST_S, _LONGEST_S = 0.1, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
    """What `headrace run` was told beside torchrun's own flags.

    Attributes:
        profile: "on", the default; "deep": closer for as long as it runs, with a trace of some
            steps; "off": nothing is hooked and nothing recorded.
        interval_s: Seconds between samples of the system.
        overrides: Arguments of loaders, and threads, in place of the script's.
        metrics: Regular expressions of what ranks print, by the metrics' names.
    """

    profile: Profile = "on"
    interval_s: float = _DEFAULT_INTERVAL_S
    overrides: tuple[Override, ...] = ()
    metrics: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(
        cls, profile: str | None, interval: str | None, overrides: str | None,
        metrics: Mapping[str, str] | None = None,
    ) -> RecordingOptions:  # fmt: skip
        """Return the options that flags name; raises UsageError."""
        chosen = next((each for each in get_args(Profile) if each == (profile or "on")), None)
        if chosen is None:
            raise UsageError(f"--profile {profile}: it is one of {', '.join(get_args(Profile))}.")
        return cls(
            profile=chosen,
            interval_s=check_interval(interval) if interval else _DEFAULT_INTERVAL_S,
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

    def __init__(self, folder: RunFolder, attempt: Attempt, options: RecordingOptions) -> None:
        self._number = attempt.number
        self._records = folder.records(attempt.number)
        self._overrides = options.overrides
        self._applied = folder.path / APPLIED
        if self._overrides:
            shutil.rmtree(self._applied, ignore_errors=True)  # an earlier attempt's
        self._watch: MetricScraper | None = None
        if options.metrics:
            logs = folder.logs(attempt.number)
            self._watch = MetricScraper(logs, folder.path, attempt.number, options.metrics)
        self._collecting: CollectorSupervisor | None = None
        if options.profile == "off":
            return
        (self._records / RINGS).mkdir(parents=True, exist_ok=True)
        switch = create_live_switch(self._records, interval_s=options.interval_s)
        if options.profile == "deep":
            switch.go_deep(_DEEP_S)
        self._collecting = CollectorSupervisor(self._records, attempt.number)

    def environment(self) -> dict[str, str | None]:
        """Return the variables by which processes of the job find what is asked of them."""
        found: dict[str, str | None] = {env.RECORDS_DIR.name: None, env.APPLY.name: None}
        if self._collecting is not None:
            found[env.RECORDS_DIR.name] = str(self._records)
            found[env.ATTEMPT.name] = str(self._number)
        if self._overrides:
            found[env.APPLY.name] = ",".join(map(str, self._overrides))
        threads = thread_count(self._overrides, RANK_THREADS)
        if threads is not None:
            found |= env.thread_variables(threads)
        if self._collecting is not None or self._overrides:
            found[env.PYTHONPATH.name] = env.pythonpath_with(SITECUSTOMIZE_DIR)
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
                if each.is_loader_argument and each.mark not in applied:
                    print_status(f"headrace: {each} was applied to no DataLoader\n")
