"""The data of a page about a run, read once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import HeadraceError, LaunchError
from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import Diagnosis
from headrace.observe.whatif.tables import CachedTables, Tables
from headrace.platforms.instance_groups import has_types
from headrace.records.attempt_outcomes import attempt_outcomes
from headrace.records.reader import Records
from headrace.records.run_folder import Attempt, Outcome, RunFolder
from headrace.report.charts.base import Chart
from headrace.report.markup import Html, chart_place

if TYPE_CHECKING:
    from headrace.decide.cost.run_cost import RunCost

DIAGNOSIS_FILE = "diagnosis.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """The data of a run at a moment."""

    name: str
    path: Path
    attempt: int  # that the page is about
    attempts: tuple[Attempt, ...]  # all in run.json, oldest first; empty if it cannot be read
    outcome: Outcome  # how the attempt is doing
    outcomes: tuple[Outcome, ...]  # the same of all in run.json
    tables: Tables  # the attempt's records
    diagnosis: Diagnosis
    cost: RunCost | None  # None where a price of its hosts is not known, or cannot be read
    cost_fault: str = ""  # why not, where something is wrong
    read_s: float  # in seconds since 1970
    part: str = ""  # which part of the time the tables are about, where they are not about all
    of_a_span: bool = False  # that the reader chose
    charts_inside: bool = True  # whether charts stand in the page, or come from a server

    @property
    def attempt_entry(self) -> Attempt | None:
        """The attempt's entry in run.json; None if there is none."""
        return next((each for each in self.attempts if each.number == self.attempt), None)

    @property
    def live(self) -> bool:
        """Whether the attempt goes on."""
        return self.outcome == "going on"

    @property
    def has_followers(self) -> bool:
        """Whether other attempts came after this one."""
        return bool(self.attempts) and self.attempts[-1].number > self.attempt

    def chart_place(self, name: str, description: str, chart: Chart | None) -> Html:
        """Return the place of a chart on the page."""
        return chart_place(name, description, chart if self.charts_inside else None)

    def place_of(self, name: str, description: str, draw: Callable[[Tables], Chart | None]) -> Html:
        """Return the place of a chart, which is drawn only if it stands in the page."""
        return self.chart_place(
            name, description, draw(self.tables) if self.charts_inside else None
        )


def read_page_data(records: Records, tables: Tables | None = None, *, part: str = "") -> PageData:
    """Return the data of a run at this moment; raises RecordsError.

    Args:
        records: The attempt's records.
        tables: What the page is about; None: all of the records.
        part: Which part of the time that is, in a sentence; empty: all of it.
    """
    tables = tables if tables is not None else CachedTables(records)
    attempts, outcomes = _attempts_of(records.path)
    by_number = {each.number: how for each, how in zip(attempts, outcomes, strict=True)}
    by_records: Outcome = "going on" if records.live else "unknown"
    cost, cost_fault = _known_cost(records.path, attempts)
    return PageData(
        name=records.path.name,
        path=records.path,
        attempt=records.attempt,
        attempts=attempts,
        outcome=by_number.get(records.attempt, by_records),
        outcomes=outcomes,
        tables=tables,
        diagnosis=diagnose(tables),
        cost=cost,
        cost_fault=cost_fault,
        read_s=time.time(),
        part=part,
    )


def _attempts_of(run: Path) -> tuple[tuple[Attempt, ...], tuple[Outcome, ...]]:
    """Return a run's attempts and how each is doing; none where that cannot be read."""
    try:
        attempts = RunFolder(run).attempts()
        return attempts, tuple(attempt_outcomes(run, attempts))
    except (LaunchError, KeyError):  # half-written or damaged: the page does without
        return (), ()


def recorded_verdict(run: Path, attempt: int | None) -> dict[str, Any]:
    """Return the verdict that was made at an attempt's end; empty if there is none to be read.

    None: it is not known which attempts there are. One of an older version names no attempt.
    """
    try:
        written = json.loads((run / DIAGNOSIS_FILE).read_text(encoding="utf-8"))
        found, of = written["verdict"], written.get("attempt", attempt)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return found if isinstance(found, dict) and attempt in {None, of} else {}


def _known_cost(run: Path, attempts: tuple[Attempt, ...]) -> tuple[RunCost | None, str]:
    """Return a run's cost if it is known, and what is wrong: a page does without it."""
    if not attempts or not has_types(attempts[-1].groups):
        return None, ""  # as of most runs, which need not import and read prices at their end
    from headrace.decide.cost.run_cost import known_cost

    try:
        return known_cost(run), ""
    except HeadraceError as error:
        return None, str(error)
