"""How an attempt is doing: one answer in lists, on pages, in the terminal and in dollars."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.decide.cost.price_catalogue import PriceCatalogue
from headrace.decide.cost.run_cost import Pricing, run_cost
from headrace.records.attempt_outcomes import attempt_outcomes
from headrace.records.run_folder import Attempt, RunFolder, process_identity
from headrace.report.page import write_report
from headrace.report.top.run_watcher import RunWatcher
from headrace.report.top.screen import title_line
from live_app_here import LiveApp
from pages import Page
from records_folders import collector_of

HERE = process_identity(os.getpid())
LAUNCHERS = {
    "runs here": HERE,
    "ended here": {**HERE, "began_s": 0.0, "began_ticks": -1},
    "elsewhere": {**HERE, "host": "another"},  # or in a container, whose name is its own
}
CASES = [
    ("runs here", "none", None, "going on"),
    ("runs here", "live", None, "going on"),
    ("runs here", "closed", None, "going on"),  # as while it uploads
    ("ended here", "none", None, "killed"),
    ("ended here", "live", None, "going on"),  # what collects its records has not ended
    ("ended here", "closed", None, "killed"),
    ("elsewhere", "none", None, "unknown"),
    ("elsewhere", "live", None, "going on"),  # a file system that both hosts have shows the lock
    ("elsewhere", "closed", None, "unknown"),
    ("elsewhere", "closed", 0, "succeeded"),
    ("ended here", "closed", 3, "failed"),
    ("runs here", "closed", 143, "stopped"),
]


@dataclass(frozen=True)
class Case:
    run: Path
    records: str
    outcome: str


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)).replace(" ", "-"))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    launcher, records, code, outcome = request.param
    run = tmp_path / "runs" / "base"
    write_attempts(run, {"launcher": LAUNCHERS[launcher], **ended(code)})
    with recorded(run, records):
        yield Case(run, records, outcome)


def ended(code: int | None) -> dict[str, Any]:
    return {} if code is None else {"exit_code": code, "ended_s": time.time()}


def write_attempts(run: Path, *attempts: dict[str, Any]) -> None:
    run.mkdir(parents=True)
    entries = [
        asdict(Attempt(number=number, command=("headrace",), argv=("train.py",), world_size=1,
                       started_s=time.time() - 60.0, **each))
        for number, each in enumerate(attempts, 1)
    ]  # fmt: skip
    (run / "run.json").write_text(json.dumps({"version": 1, "name": "base", "attempts": entries}))


@contextmanager
def recorded(run: Path, state: str) -> Iterator[None]:
    """Have a run's first attempt recorded: not at all, at this moment, or until now."""
    collector = None if state == "none" else collector_of(run)
    if collector is not None and state == "closed":
        collector.close()
    yield
    if collector is not None and state == "live":
        collector.close()


def test_an_attempt_is_doing_what_its_launcher_and_its_records_say(case: Case):
    assert attempt_outcomes(case.run, RunFolder(case.run).attempts()) == [case.outcome]


def test_dollars_are_lost_to_attempts_that_have_failed_alone(case: Case):
    pricing = Pricing(catalogue=PriceCatalogue([]), rates={"": 1.0})
    cost = run_cost(case.run, pricing, busy={})
    assert cost.failed_attempts == (case.outcome in {"failed", "killed"})
    assert cost.running == (case.outcome == "going on")
    assert (cost.failed_usd > 0) == (case.outcome == "failed")  # nothing was seen of the killed
    if case.outcome == "going on":
        assert cost.usd > 0


def test_the_list_has_the_same_answer(case: Case):
    states = {"succeeded": "done", "going on": "running"}
    (run,) = json.loads(LiveApp(case.run.parent).get("/api/runs").text)["runs"]
    assert run["state"] == states.get(case.outcome, case.outcome)


WORDS = {
    "going on": ("The run is going on", "not yet: it is going on", "running"),
    "unknown": (
        "Whether the run goes on is not known here: it began on another",
        "it may go on on another",
        "may go on elsewhere",
    ),
    "killed": ("it was probably killed", "unknown: it was probably killed", "nothing was left"),
    "failed": ("The run failed: it ended with exit code 3", "Exit code", "exit code 3"),
    "stopped": ("The run was stopped: exit code 143", "Exit code", "exit code 143"),
    "succeeded": ("Verdict", "Exit code", "exit code 0"),
}


def test_the_page_and_the_terminal_have_the_same_answer(case: Case, tmp_path: Path):
    if case.records == "none":  # then neither has anything to show
        return
    page = Page(write_report(case.run, output=tmp_path / "page.html").read_text())
    title = title_line(RunWatcher(case.run).look().status, paused=False).plain
    note, fact, words = WORDS[case.outcome]
    assert note in page.text
    assert fact in page.text
    assert words in title
    for other, (others_note, _, others_words) in WORDS.items():
        if other not in {case.outcome, "succeeded"}:
            assert others_note not in page.text
            assert others_words not in title


def test_the_last_attempt_alone_may_go_on_and_is_shown_as_unknown(tmp_path: Path):
    run = tmp_path / "base"
    elsewhere = {"launcher": LAUNCHERS["elsewhere"]}
    write_attempts(run, elsewhere, {**elsewhere, **ended(1)}, elsewhere)
    collector_of(run).close()
    attempts = RunFolder(run).attempts()
    assert attempt_outcomes(run, attempts) == ["killed", "failed", "unknown"]
    page = Page(write_report(run).read_text())
    assert "unknown: it began on another" in page.text
    assert "Nothing says how attempt 1 ended: it was probably killed" in page.text
    drawn = {part["name"] for part in page.charts["attempts"]["parts"]}
    assert drawn == {"", "killed", "failed", "unknown"}


def test_a_run_without_attempts_has_none_that_goes_on(tmp_path: Path):
    assert attempt_outcomes(tmp_path, ()) == []
