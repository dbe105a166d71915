"""The live page of each attempt of a run, while the last one goes on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from jobs import eventually, started
from live_pages import HERE, drag, open_run_page, record, span_of, stop, visit
from machine import needs
from services.live_server import LiveServer, events_of, live_server, next_event

pytestmark = needs("chromium")

ENDED = (
    "Attempt 1 has ended. Attempt 2 is running: choose it to change its recording or to stop it."
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attempts")
    # The process of the tests, which recorded it, keeps the first one's folder locked.
    shutil.copytree(record(folder, "first", "0"), folder / "runs" / "tried")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with live_server(folder, "--port", "0", **HERE) as server:
        yield server


@pytest.fixture(scope="module")
def job(folder: Path, server: LiveServer) -> Iterator[subprocess.Popen[bytes]]:
    """The second attempt, whose first steps are there."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("PYTHONPATH", HERE["PYTHONPATH"])
        with started(folder, "--name", "tried", "train.py", "600") as job:
            eventually(lambda: has_steps(server, 2), "steps of the second attempt")
            yield job


def has_steps(server: LiveServer, attempt: int) -> bool:
    answer = server.ask(f"/runs/tried/sections?attempt={attempt}")
    return answer.status == 200 and "steps looked at" in answer.body.decode()


def first_state(server: LiveServer, query: str) -> dict[str, object]:
    with events_of(server, "tried", query) as stream:
        state: dict[str, object] = json.loads(next_event(stream, b"event: changed"))
    return state


def test_what_is_asked_of_an_attempt_is_answered_by_its_records(
    server: LiveServer, job: subprocess.Popen[bytes]
):
    limits = {
        attempt: server.ask(f"/runs/tried/charts/timeline?attempt={attempt}").json["limits"]
        for attempt in (1, 2)
    }
    assert limits[1] != limits[2]
    first, latest = first_state(server, "?attempt=1"), first_state(server, "")
    assert (first["attempt"], first["state"], first["recording"]) == (1, "done", None)
    assert (latest["attempt"], latest["state"]) == (2, "running")
    assert first["attempts"] == latest["attempts"] == [[1, "done"], [2, "running"]]
    for attempt in (1, 2):
        files = server.ask(f"/runs/tried/logs?attempt={attempt}").json["files"]
        assert {file["name"].partition("/")[0] for file in files} == {f"attempt-{attempt}"}
    other = server.ask("/runs/tried/logs/attempt-2/rank-0.stdout?attempt=1")
    assert other.status == 404


def test_an_ended_attempt_can_neither_be_switched_nor_stopped(
    server: LiveServer, job: subprocess.Popen[bytes]
):
    assert server.ask("/runs/tried/switch?attempt=1").json == {
        "running": False, "why": ENDED, "stoppable": False, "resumable": False,
    }  # fmt: skip
    for what, change in (("switch", {"recording": False}), ("stop", None), ("resume", None)):
        refused = server.change(f"/runs/tried/{what}?attempt=1", change)
        assert (refused.status, refused.json["error"]) == (409, ENDED)
    assert job.poll() is None
    running = server.ask("/runs/tried/switch?attempt=2").json
    assert running["running"]
    assert running["stoppable"]


@pytest.mark.parametrize("text", ["3", "0", "-1", "x", "", "1" * 30])
@pytest.mark.parametrize("part", ["", "/sections", "/charts/heatmap", "/events", "/logs"])
def test_an_unknown_attempt_is_one_sentence(
    server: LiveServer, job: subprocess.Popen[bytes], part: str, text: str
):
    answer = server.ask(f"/runs/tried{part}?attempt={text}")
    assert answer.status == 404
    said = f"The run 'tried' has no attempt {text[:20]!r}; it has attempts 1, 2."
    assert json.loads(answer.body)["error"] == said


def test_an_attempt_is_chosen_linked_and_left_again(
    page: Page, server: LiveServer, job: subprocess.Popen[bytes]
):
    visit(page, server, "/runs/tried")
    choice = page.locator("#attempt-choice select")
    shown = ["the latest: 2, running", "1: done", "2: running"]
    expect(choice.locator("option")).to_have_text(shown)
    expect(page.get_by_role("button", name="Stop the run")).to_be_visible()
    choice.select_option("1")
    page.wait_for_url(lambda url: url.endswith("/runs/tried?attempt=1"))
    expect(page.locator("#subtitle")).to_contain_text("ended · attempt 1")
    expect(page.locator("#controls")).to_contain_text(ENDED)
    for name in ("Stop the run", "Resume the run", "Pause recording"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.locator("#attempts")).to_contain_text("going on")
    expect(page.locator("#logs select option").first).to_contain_text("attempt-1/")
    expect(page.locator("#logs select")).not_to_contain_text("attempt-2/")
    expect(page.locator("#chart-heatmap canvas").first).to_be_visible()
    drag(page, "chart-timeline", 0.4, 0.7)
    span = span_of(page)
    assert re.search(r"\?attempt=1#span=.*&attempt=1$", page.url)
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator("#heatmap .span-note")).to_contain_text("s to")
    expect(page.locator("#subtitle")).to_contain_text("attempt 1")
    assert span_of(page) == span
    expect(page.locator("#banner")).to_be_empty()
    page.locator("#attempts a", has_text="2").click()
    page.wait_for_url(lambda url: url.endswith("/runs/tried?attempt=2"))
    stop(page)
    job.wait(60)
    expect(page.locator("#subtitle")).to_contain_text("ended")
    expect(page.get_by_role("button", name="Resume the run")).to_be_visible()


def test_an_unknown_attempt_is_said_on_a_page_for_a_browser(page: Page, server: LiveServer):
    visit(page, server, "/runs/tried?attempt=9")
    expect(page.locator("main")).to_contain_text("The run 'tried' has no attempt '9'; it has")


def test_a_span_in_the_browsers_history_is_not_carried_into_the_next_attempt(
    page: Page, folder: Path, server: LiveServer, monkeypatch: pytest.MonkeyPatch
):
    # The process of the tests, which recorded it, keeps the first one's folder locked.
    shutil.copytree(folder / "runs" / "first", folder / "runs" / "again")
    open_run_page(page, server, "again")
    drag(page, "chart-timeline", 0.2, 0.8)
    span_of(page)
    for span in ("0.125-0.25", "0.5-0.625"):  # as links in a text may lead to
        page.evaluate(f"location.hash = '#span={span}&attempt=1'")
        page.wait_for_url(re.compile(f"#span={span}&attempt=1$"))
    page.go_back()
    page.wait_for_url(re.compile("#span=0.125-0.25&attempt=1$"))  # within an attempt it is kept
    page.go_forward()
    banner = page.locator("#banner")
    said = "The span of time in the address was one of attempt 1; attempt 2, which began anew,"
    expect(banner).to_be_empty()
    monkeypatch.setenv("PYTHONPATH", HERE["PYTHONPATH"])
    with started(folder, "--name", "again", "train.py", "600") as job:
        expect(banner).to_contain_text(said, timeout=120_000)
        with page.expect_request(re.compile("/runs/again/sections")) as asked:
            page.go_back()  # to a span that stands in the address alone
        page.wait_for_url(re.compile("/runs/again$"))
        assert "from=" not in asked.value.url
        expect(banner).to_contain_text(said)
        page.evaluate("history.go(-2)")
        expect(banner).to_be_empty()  # where nothing was chosen
        with page.expect_request(re.compile("/runs/again/sections")) as asked:
            page.go_forward()  # to the one that was dragged
        expect(banner).to_contain_text(said)
        page.wait_for_url(re.compile("/runs/again$"))
        assert "from=" not in asked.value.url
        stop(page)
        job.wait(60)
