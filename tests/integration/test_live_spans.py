"""A span of time on the live page: what of a comparison and of metrics is about it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from headrace.observe.whatif.comparison import TimeSlice
from headrace.observe.whatif.train_steps import read_steps
from headrace.records.reader import open_records
from headrace.report.charts.base import time_axis
from live_pages import HERE, TRAIN, drag, record, span_of, visit
from machine import needs
from pages import Page, with_numbers
from services.live_server import LiveServer, live_server

pytestmark = needs("chromium")

PRINTS = "optimizer.step(); print('loss', time.monotonic(), flush=True)"
PRINTING = TRAIN.replace("optimizer.step()", PRINTS)
RUNS = ("base", "other")
COMPARISON = "/api/comparison?run=base&run=other"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that train for longer than their starts differ by, the second with a metric."""
    folder = tmp_path_factory.mktemp("spans")
    record(folder, "base", "12")
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("HEADRACE_TRACKING_URI", "")
        record(folder, "other", "4", script=PRINTING, metric="loss=loss ([0-9.]+)")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with live_server(folder, "--port", "0", **HERE) as server:
        yield server


def read_chart(server: LiveServer, path: str) -> dict[str, Any]:
    return json.loads(server.ask(path).body, object_hook=with_numbers)


@pytest.fixture(scope="module")
def span(server: LiveServer) -> tuple[float, float]:
    """A time in which both runs train, in seconds since the start of each one's recording."""
    rows = [read_chart(server, f"/runs/{name}/charts/timeline")["rows"][0] for name in RUNS]
    begin = max(row["start_s"][0] for row in rows) + 0.2
    end = min(begin + 4.0, *(row["end_s"][-1] - 0.2 for row in rows))
    assert end - begin > 0.5
    return round(begin, 3), round(end, 3)


def compared(server: LiveServer, query: str = "") -> dict[str, str]:
    sections = server.ask(COMPARISON + query).json["sections"]
    return {each["id"]: Page(each["html"]).text for each in sections}


def mean_step_ms(run: Path, span: tuple[float, float]) -> float:
    records = open_records(run)
    began_ns = time_axis(records).began_ns
    begin_ns, end_ns = (began_ns + int(moment_s * 1e9) for moment_s in span)
    return float(read_steps(TimeSlice(records, begin_ns, end_ns)).wall_ns.mean() / 1e6)


def test_the_numbers_of_a_comparison_are_of_the_steps_in_the_span(
    folder: Path, server: LiveServer, span: tuple[float, float]
):
    whole = compared(server)
    found = compared(server, f"&from={span[0]}&to={span[1]}")
    words = f"the steps from {span[0]:.3f} s to {span[1]:.3f} s after the start of each run's own"
    assert words in found["runs"]
    assert "after the start" not in whole["runs"]
    for name in RUNS:
        assert f"{mean_step_ms(folder / 'runs' / name, span):,.2f}" in found["runs"]
    assert found["phases"] != whole["phases"]
    assert found["metrics"] == whole["metrics"]
    open_end = compared(server, f"&from={span[0]}")
    assert f"the steps from {span[0]:.1f} s on" in open_end["runs"]
    assert compared(server) == whole


def test_runs_with_too_few_steps_in_a_span_are_said(server: LiveServer):
    found = compared(server, "&from=0&to=0.001")
    for name in RUNS:
        assert f"{name} is left out: it has 0 steps in this span of time" in found["runs"]
    assert found.keys() == {"runs", "timelines", "heatmaps"}
    assert server.ask(f"{COMPARISON}&from=2&to=1").status == 404


def test_the_points_of_a_metric_are_those_logged_in_the_span(server: LiveServer):
    sections = {each["id"]: each for each in server.ask("/runs/other/sections").json["sections"]}
    found = re.search(r'id="chart-(metric-[0-9a-f]+)"', sections["metrics"]["html"])
    assert found is not None

    def steps_in(begin: float, end: float) -> list[float]:
        path = f"/runs/other/charts/{found[1]}?from={begin}&to={end}"
        return read_chart(server, path)["series"][0]["x"]

    timeline = read_chart(server, "/runs/other/charts/timeline")
    last, starts = timeline["limits"][1], timeline["rows"][0]["start_s"]
    middle = starts[len(starts) // 2]
    whole = read_chart(server, f"/runs/other/charts/{found[1]}")["series"][0]["x"]
    before, after = steps_in(0, middle), steps_in(middle, last)
    assert sorted({*before, *after}) == whole
    assert before[-1] < whole[-1]
    assert after[0] > whole[0]
    assert steps_in(0, last) == whole
    assert steps_in(0.0001, 0.0002) == []


def test_a_span_chosen_in_a_comparison_reaches_its_numbers_and_links(page, server: LiveServer):
    visit(page, server, "/compare?run=base&run=other")
    runs, numbers = page.locator("#runs"), page.locator("#runs table")
    expect(numbers).to_be_visible()
    whole = numbers.text_content() or ""
    expect(page.locator(".chart:not(:has(canvas, .bars-row))")).to_have_count(0)  # all are drawn
    drag(page, "chart-base/timeline", 0.2, 0.9)
    begin, end = span_of(page)
    digits = 1 if end - begin >= 10 else 3  # the starts of runs on a slow host are long
    words = f"of the steps from {begin:.{digits}f} s to {end:.{digits}f} s after"
    expect(runs).to_contain_text(words)
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expect(runs).to_contain_text(words)
    expect(page.locator("#timelines .span-note")).to_contain_text("s to")
    page.locator('[id="chart-base/timeline"]').focus()
    page.keyboard.press("Escape")
    expect(runs).not_to_contain_text("after the start of each run")
    expect(numbers).to_have_text(whole)
    page.goto("about:blank")
    page.goto(link)
    page.locator("#timelines h3 a", has_text="other").click()
    page.wait_for_url(re.compile(r"/runs/other#span="))
    assert span_of(page) == (begin, end)
    expect(page.locator("#metrics")).to_contain_text("logged in this span of time")
