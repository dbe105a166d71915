"""The recording of an attempt: its options, its variables, and its collector process.

The collector gathers what ranks and workers write and samples the system. It ends when its standard
input closes, also where its parent was killed; then it closes the records. Where the collector
itself is killed, another takes over; meanwhile the job's events wait in its rings, which hold a few
seconds of them.
"""

from __future__ import annotations

import shutil
from contextlib import suppress

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.overrides import APPLIED, RANK_THREADS, thread_count
from headrace.core.process.sidecar import RestartedSidecar
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.jobs.failure import describe_exit
from headrace.jobs.metric_scraper import MetricScraper
from headrace.jobs.spec import RecordingOptions
from headrace.records.layout import RINGS
from headrace.records.live_switch import create_live_switch
from headrace.records.run_folder import Attempt, RunFolder

_DEEP_S = 365 * 24 * 3600.0  # as long as the run lasts
_CLOSE_S = 60.0
_MAX_RESTARTS = 9


def _print_killed(code: int, has_restarted: bool) -> None:  # noqa: FBT001 - a callback
    what = (
        "another takes over" if has_restarted else "what the job does from now on is not recorded"
    )
    print_status(f"the process that collects records was {describe_exit(code)}; {what}")


class Recording:
    """The recording of one attempt."""

    def __init__(self, folder: RunFolder, attempt: Attempt, options: RecordingOptions) -> None:
        self._number = attempt.number
        self._records = folder.records(attempt.number)
        self._overrides = options.overrides
        self._applied = folder.path / APPLIED
        if self._overrides:
            shutil.rmtree(self._applied, ignore_errors=True)  # an earlier attempt's
        self._scraper: MetricScraper | None = None
        if options.metrics:
            logs = folder.logs(attempt.number)
            self._scraper = MetricScraper(logs, folder.path, attempt.number, options.metrics)
        self._collector: RestartedSidecar | None = None
        if options.profile == "off":
            return
        (self._records / RINGS).mkdir(parents=True, exist_ok=True)
        switch = create_live_switch(self._records, interval_s=options.interval_s)
        if options.profile == "deep":
            switch.go_deep(_DEEP_S)
        self._collector = RestartedSidecar(
            "headrace.observe.probe.collector_process",
            {"folder": str(self._records), "attempt": attempt.number},
            restarts=_MAX_RESTARTS,
            killed=_print_killed,
        )

    def environment(self) -> dict[str, str | None]:
        """Return the variables that have a process of the job recorded, with its overrides."""
        found: dict[str, str | None] = {env.RECORDS_DIR.name: None, env.APPLY.name: None}
        if self._collector is not None:
            found[env.RECORDS_DIR.name] = str(self._records)
            found[env.ATTEMPT.name] = str(self._number)
        if self._overrides:
            found[env.APPLY.name] = ",".join(map(str, self._overrides))
        threads = thread_count(self._overrides, RANK_THREADS)
        if threads is not None:
            found |= env.thread_variables(threads)
        if self._collector is not None or self._overrides:
            found[env.PYTHONPATH.name] = env.pythonpath_with(SITECUSTOMIZE_DIR)
        return found

    def finish(self) -> None:
        """Close the records, and print which overrides no loader used.

        Where closing takes too long, the records stay as they are.
        """
        if self._scraper is not None:
            self._scraper.finish()
        collector = self._collector
        if collector is not None and collector.end(patience_s=_CLOSE_S, kills=False) is None:
            print_status(f"the records in {self._records} are not closed yet")
        with suppress(OSError):  # the run has ended, and its disk may be gone
            applied = {path.name for path in self._applied.glob("*")}
            for each in self._overrides:
                if each.is_loader_argument and each.mark not in applied:
                    print_status(f"{each} was applied to no DataLoader")
