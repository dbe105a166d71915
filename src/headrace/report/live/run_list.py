"""The list of runs, and the attempts of each: what is known without reading their records."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headrace.core.errors import HeadraceError, LaunchError, RecordsError, UsageError
from headrace.core.units import format_usd
from headrace.observe.whatif.train_steps import WARM_UP_STEPS
from headrace.platforms.instance_groups import has_types
from headrace.records.attempt_outcomes import last_outcome
from headrace.records.live_reader import StepTotals, recorded_rank_count
from headrace.records.reader import Records, check_readable, recorded_attempts
from headrace.records.run_folder import Attempt, Outcome, RunFolder
from headrace.report.formatting import format_list
from headrace.report.live.run_folders import RunFolders
from headrace.report.page_data import DIAGNOSIS_FILE, recorded_verdict

RunState = Literal["running", "done", "failed", "stopped", "killed", "unknown"]
_STATES: dict[Outcome, RunState] = {
    "succeeded": "done",
    "failed": "failed",
    "stopped": "stopped",
    "killed": "killed",
    "going on": "running",
    "unknown": "unknown",
}
_ENDED = frozenset({"done", "failed", "stopped"})
"""States that last: those of a new attempt change run.json."""
_FRESH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in the list; None is unknown."""

    name: str
    state: RunState = "unknown"
    began_unix_s: float | None = None
    script: str = ""
    ranks: int | None = None  # of the last attempt
    attempts: int = 0
    samples_per_s: float | None = None
    data_wait_share: float | None = None
    cost: str | None = None
    verdict: str = ""
    fault: str = ""  # what cannot be read of it, and why


def run_state(path: Path, attempt: Attempt | None) -> RunState:
    """Return how a run is doing, whose last attempt it is; None: none is known."""
    return _STATES[last_outcome(path, attempt)]


def last_attempt(path: Path) -> Attempt | None:
    """Return a run's last attempt; None where none is recorded, or run.json cannot be read."""
    attempts = written_attempts(path)
    return attempts[-1] if attempts else None


def written_attempts(path: Path) -> tuple[Attempt, ...]:
    """Return the attempts in a run's run.json, oldest first; none where it cannot be read."""
    try:
        return RunFolder(path).attempts()
    except LaunchError:
        return ()


AttemptStates = tuple[tuple[int, RunState], ...]
"""The numbers of a run's attempts, oldest first, and how each is doing."""
_LONGEST_NUMBER = 9


def attempt_states(path: Path) -> AttemptStates:
    """Return the attempts of a run; the last one alone may be running."""
    written = written_attempts(path)
    states: dict[int, RunState] = dict.fromkeys(recorded_attempts(path), "unknown")
    states |= {each.number: _STATES[each.ending] for each in written}
    if states:
        states[max(states)] = run_state(path, written[-1] if written else None)
    return tuple(sorted(states.items()))


def state_of(attempts: AttemptStates, number: int | None) -> RunState:
    """Return how an attempt is doing; None: the last one."""
    if not attempts:
        return "unknown"
    return dict(attempts).get(number or attempts[-1][0], "unknown")


def requested_attempt(path: Path, name: str, text: str) -> int:
    """Return the attempt that a request about a run names.

    UsageError: There is none of this number.
    """
    known = {*recorded_attempts(path), *(each.number for each in written_attempts(path))}
    is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER
    if is_number and int(text) in known:
        return int(text)
    numbers = format_list([str(number) for number in sorted(known)])
    has = f"attempt{'s' if len(known) > 1 else ''} {numbers}" if known else "none"
    raise UsageError(f"The run {name!r} has no attempt {text[:20]!r}; it has {has}.")


def why_fixed(path: Path, number: int | None) -> str:
    """Return why nothing of an attempt can be changed: another one followed; "" where none did."""
    attempts = attempt_states(path) if number is not None else ()
    if number is None or not attempts or number >= attempts[-1][0]:
        return ""
    last, state = attempts[-1]
    if state == "running":
        return (
            f"Attempt {number} has ended. Attempt {last} is running: choose it to change its "
            "recording or to stop it."
        )
    return f"Attempt {number} was followed by attempt {last}: choose that one to resume the run."


class RunList:
    """The runs of a folder, the latest first; what has not changed is not read again."""

    def __init__(self, folders: RunFolders) -> None:
        self._folders = folders
        self._known: dict[Path, tuple[Any, RunSummary]] = {}
        self._totals: dict[Path, tuple[tuple[int, float | None], StepTotals]] = {}
        self._lock = threading.Lock()
        self._made: dict[str, Any] | None = None
        self._made_s = 0.0

    def read(self) -> dict[str, Any]:
        """Return the list as JSON's own types; it is made once for viewers of the same second."""
        with self._lock:
            if self._made is None or time.monotonic() - self._made_s > _FRESH_S:
                self._made = self._make()
                self._made_s = time.monotonic()
            return self._made

    def _make(self) -> dict[str, Any]:
        found = self._folders.by_name()
        for known in (self._known, self._totals):
            for path in known.keys() - set(found.values()):
                del known[path]
        summaries = [self._safe_summary(name, path) for name, path in found.items()]
        summaries += [
            _closed_summary(name, path) for name, path in self._folders.closed_by_name().items()
        ]
        summaries.sort(key=lambda each: -(each.began_unix_s or 0.0))
        return {
            "folder": str(self._folders.folder),
            "now_unix_s": time.time(),
            "runs": [asdict(each) for each in summaries],
        }

    def _safe_summary(self, name: str, path: Path) -> RunSummary:
        """Return a run's summary; one that is damaged says so, and the others are listed."""
        try:
            return self._summary(name, path)
        except Exception as error:  # noqa: BLE001 - whatever stands in its files
            return RunSummary(
                name=name, fault=f"It cannot be read: {type(error).__name__}: {error}"
            )

    def _summary(self, name: str, path: Path) -> RunSummary:
        stamp = run_stamp(path)
        known = self._known.get(path)
        if known is None or known[0] != stamp or known[1].state not in _ENDED:
            before = known[1] if known is not None and known[0] == stamp else None
            known = self._known[path] = stamp, _read_summary(name, path, before)
        if known[1].state != "running":
            self._totals.pop(path, None)
            return known[1]
        return self._with_rates(known[1], path)

    def _with_rates(self, summary: RunSummary, path: Path) -> RunSummary:
        """Return a running run with its rates so far, of the training steps after warm-up."""
        recorded = recorded_attempts(path)
        if not recorded:
            return replace(summary, samples_per_s=None, data_wait_share=None, verdict="")
        attempt = recorded[-1]
        key, totals = self._totals.get(path, ((0, None), StepTotals()))
        if key != (attempt, summary.began_unix_s):  # another attempt, or another run of this name
            totals = StepTotals(skipped=WARM_UP_STEPS)
            self._totals[path] = (attempt, summary.began_unix_s), totals
        with suppress(RecordsError, sqlite3.Error, OSError):  # it ends at this moment
            totals.add_new(Records(path, attempt))
        return replace(
            summary,
            samples_per_s=totals.samples_per_s,
            data_wait_share=totals.accelerator_wait_share,
            verdict="",  # an earlier attempt's
        )


class ListEvents:
    """The events of one viewer of the list: all runs at first, then those that changed."""

    def __init__(self, runs: RunList) -> None:
        self._runs = runs
        self._sent: dict[str, Any] | None = None  # by name; None: nothing, or a fault since
        self._fault = ""

    def next(self) -> tuple[str, dict[str, Any]] | None:
        """Return the name of the next event and its data as JSON's own types; None without news."""
        try:
            found = self._runs.read()
        except (HeadraceError, OSError) as error:  # the folder may be readable again
            is_new, self._fault, self._sent = str(error) != self._fault, str(error), None
            return ("runs", {"fault": self._fault}) if is_new else None
        listed = {run["name"]: run for run in found["runs"]}
        sent, self._sent, self._fault = self._sent, listed, ""
        if sent is None:
            return "runs", found
        changed = [run for name, run in listed.items() if sent.get(name) != run]
        gone = [name for name in sent if name not in listed]
        if not (changed or gone):
            return None
        return "changes", {"changed": changed, "gone": gone, "now_unix_s": found["now_unix_s"]}


def _cost_text(path: Path, last: Attempt | None) -> str | None:
    """Return what a run has cost so far; None where the prices of its hosts are not known."""
    if last is None or not has_types(last.groups):
        return None
    from headrace.decide.cost.run_cost import known_cost

    try:
        cost = known_cost(path, training=False)  # this is asked every second
    except HeadraceError:  # its own page says why
        return None
    return None if cost is None else f"${format_usd(cost.usd)}"


def run_stamp(path: Path) -> tuple[Any, ...]:
    """Return what changes when a run's attempts, records or diagnosis do."""
    found: list[tuple[int, int] | None] = []
    for file in ("run.json", DIAGNOSIS_FILE, "records"):
        try:
            status = (path / file).stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size))
    return tuple(found)


def _closed_summary(name: str, path: Path) -> RunSummary:
    try:
        check_readable(path)
    except RecordsError as error:
        return RunSummary(name=name, fault=str(error))
    return RunSummary(name=name)  # it was opened at this moment


def _rank_count(path: Path, last: Attempt | None) -> int | None:
    """Return how many ranks the last attempt has recorded; if none yet, how many were asked for.

    A script may start its ranks itself: then its launcher knows of one.
    """
    recorded = recorded_attempts(path)
    if recorded and (last is None or last.number == recorded[-1]):
        with suppress(RecordsError, sqlite3.Error, OSError):  # its page says why
            if found := recorded_rank_count(Records(path, recorded[-1])):
                return found
    return None if last is None else last.world_size


def _read_summary(name: str, path: Path, before: RunSummary | None) -> RunSummary:
    """Return a run's summary; `before`: the last one, if its files are as they were."""
    attempts: tuple[Attempt, ...] = ()
    fault = ""
    try:
        attempts = RunFolder(path).attempts()
    except LaunchError as error:
        fault = str(error)
    last = attempts[-1] if attempts else None
    verdict = recorded_verdict(path, None if last is None else last.number)
    state = run_state(path, last)
    if before is not None and before.state == state == "killed":  # it records no more
        ranks = before.ranks
    else:
        ranks = _rank_count(path, last)
    return RunSummary(
        name=name,
        state=state,
        began_unix_s=float(attempts[0].started_s) if attempts else None,
        script=Path(last.argv[0]).name if last is not None and last.argv else "",
        ranks=ranks,
        attempts=len(attempts),
        samples_per_s=verdict.get("samples_per_s"),
        data_wait_share=verdict.get("data_wait_share"),
        cost=_cost_text(path, last),
        verdict=verdict.get("sentence", ""),
        fault=fault,
    )
