"""The values of charts, read by keys: on the live page, and on that of advice."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from jobs import run_here
from live_pages import HERE, open_run_page, record, span_of
from machine import needs
from pages import with_numbers
from services.live_server import LiveServer, live_server

pytestmark = needs("chromium")

ALL_DRAWN = ".chart:not(:has(canvas, .bars-row, .flame-node))"

RECORDED = Path(__file__).parents[1] / "goldens" / "artefacts" / "recorded"
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    record(folder, "base", "1")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with live_server(folder, "--port", "0", **HERE) as server:
        yield server


@pytest.fixture
def opened(page: Page, server: LiveServer) -> Page:
    """The run's page, all of its time, with every chart drawn."""
    open_run_page(page, server, "base#span=all")
    expect(page.locator(ALL_DRAWN)).to_have_count(0)
    expect(page.locator("[aria-live=polite]")).to_have_count(1)
    return page


def model(server: LiveServer, name: str) -> dict[str, Any]:
    return json.loads(server.ask(f"/runs/base/charts/{name}").body, object_hook=with_numbers)


def focused(page: Page, name: str) -> Locator:
    """Give a chart the focus, and return the mark of its cursor."""
    page.locator(f"#chart-{name}").focus()
    return page.locator(f"#chart-{name} .key-mark")


def press(page: Page, *keys: str) -> str:
    """Press keys, and return what is said after them."""
    for key in keys:
        page.keyboard.press(key)
    return page.locator("#reading").text_content() or ""


def place_of(mark: Locator) -> float:
    """Return where a mark is from the left, once what was pressed is drawn."""
    expect(mark).to_be_visible()
    mark.page.evaluate(TWO_FRAMES)
    box = mark.bounding_box()
    assert box is not None
    return box["x"]


def test_keys_go_over_columns_and_rows_of_the_heatmap(opened: Page):
    mark = focused(opened, "heatmap")
    expect(mark).to_be_hidden()
    words = re.compile(r"^\d\d:\d\d:\d\d UTC, (rank 0|core \d+|.*worker.*): (\d+ % busy|unknown)$")
    first = press(opened, "Home")
    assert words.match(first), first
    begin = place_of(mark)
    last = press(opened, "End")
    assert words.match(last), last
    assert first[:12] != last[:12]
    assert place_of(mark) > begin + 100
    below = press(opened, "ArrowDown")
    assert words.match(below), below
    assert below.split(": ")[0] != last.split(": ")[0]
    assert below[:12] == last[:12]
    tooltip = opened.get_by_role("tooltip")
    value = below.rpartition(": ")[2].removesuffix(" busy").replace(" %", "%")
    expect(tooltip).to_contain_text(value)
    assert press(opened, "ArrowUp") == last
    opened.keyboard.press("Escape")
    expect(mark).to_be_hidden()
    expect(tooltip).to_be_hidden()


def test_keys_go_from_step_to_step(opened: Page, server: LiveServer):
    focused(opened, "timeline")
    said = [press(opened, key) for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft")]
    assert all(re.match(r"^[\d.]+ s, rank 0: (step|longest)", words) for words in said), said
    assert "data wait" in said[1]
    assert len(set(said[:3])) == 3
    assert said[3] == said[1]
    expect(opened.get_by_role("tooltip")).to_contain_text("rank 0: ")
    steps = len(model(server, "timeline")["rows"][0]["start_s"])
    assert steps > 40
    by_ten = press(opened, "Home", "Shift+ArrowRight")
    assert by_ten == press(opened, "Home", *["ArrowRight"] * 10)


def test_keys_go_over_lines_columns_and_bars(opened: Page, server: LiveServer):
    focused(opened, "data-wait")
    line = model(server, "data-wait")["series"][0]
    first = press(opened, "Home")
    assert re.match(r"^[\d.]+ s, data wait: ([\d.]+%|unknown)$", first), first
    assert press(opened, "End") != first
    expect(opened.get_by_role("tooltip")).to_contain_text(line["name"])
    focused(opened, "memory")
    series = [each["name"] for each in model(server, "memory")["series"]]
    said = [press(opened, "Home"), *(press(opened, "ArrowDown") for _ in series[1:])]
    assert [words.partition(", ")[2].partition(":")[0] for words in said] == series
    focused(opened, "waits")
    waits = model(server, "waits")["series"]
    texts = waits[0]["texts"]
    assert press(opened, "Home").startswith(f"{texts[0]}, {waits[0]['name']}: ")
    assert press(opened, "End").startswith(f"{texts[-1]}, {waits[0]['name']}: ")
    assert press(opened, "ArrowDown").startswith(f"{texts[-1]}, {waits[1]['name']}: ")
    focused(opened, "phases")
    assert re.match(r"^rank 0, data wait: [\d.]+ ms", press(opened, "Home"))
    assert re.match(r"^rank 0, all: [\d.]+ ms", press(opened, "End"))


def test_comma_and_full_stop_move_the_span_and_the_cursor_stays(opened: Page):
    mark = focused(opened, "heatmap")
    keys = opened.locator("#chart-heatmap").get_attribute("aria-description") or ""
    assert "Comma and full stop move in time" in keys
    assert "Home and End" in keys
    opened.keyboard.press("+")
    begin, end = span_of(opened)
    press(opened, "ArrowRight")
    expect(mark).to_be_visible()
    assert span_of(opened) == (begin, end)  # arrows leave it
    opened.keyboard.press(".")
    opened.wait_for_url(lambda url: f"#span={begin:g}-" not in url)
    later, _ = span_of(opened)
    assert later >= begin
    opened.keyboard.press(",")
    opened.wait_for_url(lambda url: f"#span={later:g}-" not in url)
    expect(mark).to_be_visible()


def test_boxes_of_the_flame_view_say_their_share(opened: Page):
    boxes = opened.locator("#flame .flame-node")
    if boxes.count() == 0:  # nothing was sampled in so short a run
        expect(opened.locator("#flame")).to_contain_text("No code was sampled")
        return
    boxes.first.focus()
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("End")
    label = opened.locator(".flame-node:focus").get_attribute("aria-label") or ""
    assert "%" in label


def test_keys_go_over_the_points_of_mixes_of_hosts(page: Page, tmp_path: Path):
    shutil.copytree(RECORDED / "alone", tmp_path / "runs" / "alone")
    words = ("cost", "advise", "alone", "--instance-type", "g5.xlarge", "--html", "advice.html")
    made = run_here(tmp_path, *words)
    assert made.returncode == 0, made.stderr
    page.goto((tmp_path / "advice.html").as_uri())
    expect(page.locator("#chart-mixes .u-wrap > canvas")).to_be_visible()
    drawn = json.loads(page.locator("#model-mixes").text_content() or "")
    groups = [
        (
            group["name"],
            [point["text"] for point in sorted(group["points"], key=lambda at: at["x"])],
        )
        for group in drawn["groups"]
    ]
    mark = focused(page, "mixes")
    expect(mark).to_be_hidden()
    said = [press(page, "Home"), *(press(page, "ArrowDown") for _ in groups[1:])]
    for words_said, (name, texts) in zip(said, groups, strict=True):
        assert words_said.startswith(f"{name}: samples a second ")
        assert words_said.endswith(tuple(texts))
    assert press(page, "ArrowDown") == said[-1]  # there is no group below the last one
    while len(groups[-1][1]) < 3:  # some kinds of mixes are few
        groups.pop()
        press(page, "ArrowUp")
    name, texts = groups[-1]
    assert press(page, "Home").endswith(texts[0])
    begin = place_of(mark)
    assert press(page, "ArrowLeft").endswith(texts[0])
    assert press(page, "ArrowRight").endswith(texts[1])
    assert press(page, "End").endswith(texts[-1])
    assert place_of(mark) > begin
    assert press(page, "Shift+ArrowLeft").endswith(texts[max(len(texts) - 11, 0)])
    last = press(page, "End")
    tooltip = page.get_by_role("tooltip")
    expect(tooltip).to_contain_text(name)
    expect(tooltip).to_contain_text(texts[-1])
    page.set_viewport_size({"width": 700, "height": 1000})
    place_of(mark)  # it stays at its point
    assert press(page, "End") == last
    page.keyboard.press("Escape")
    expect(mark).to_be_hidden()
    expect(tooltip).to_be_hidden()
