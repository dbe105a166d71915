"""The live page in a browser: what readers do, and what they see where something breaks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from jobs import descendants, eventually, run_here, started
from live_pages import HERE, TRAIN, drag, open_run_page, record, span_of, stop, visit
from machine import needs
from recorded import SCRIPTS
from services.live_server import LiveServer, live_server
from small_disks import mounted_disk

pytestmark = needs("chromium")

COLLECTOR = "headrace.observe.probe.collector_process"
HOSTILE = "</script><script>document.title=0</script><img src=x onerror=document.title=0>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(record(folder, "base", "0", HOSTILE), folder / "runs" / "second")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with live_server(folder, "--port", "0", **HERE) as server:
        yield server


KEYS = """() => {
  const chart = document.getElementById("chart-heatmap");
  for (const key of ["+", "+", ...Array(100).fill(".")]) {
    chart.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  }
}"""
"""A hundred presses of a key, as when it is held."""


def test_runs_are_filtered_sorted_and_two_are_compared(page: Page, server: LiveServer):
    visit(page, server)
    rows = page.locator("#run-list tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_label("Filter the runs").fill("sec")
    expect(rows).to_have_count(1)
    page.get_by_label("Filter the runs").fill("")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(rows.first).to_contain_text("base")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(rows.first).to_contain_text("second")
    expect(page.get_by_role("button", name="Compare")).to_be_disabled()
    page.get_by_label("Compare base").check()
    page.get_by_label("Compare second").check()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_contain_text("base and second")
    for name in ("base", "second"):
        for chart in ("heatmap", "timeline"):
            expect(page.locator(f'[id="chart-{name}/{chart}"] canvas').first).to_be_visible()
    expect(page.locator("#runs table")).to_contain_text("1.00x")


def test_a_run_in_the_list_keeps_the_focus_as_others_come_and_go(
    page: Page, folder: Path, server: LiveServer
):
    visit(page, server)
    page.get_by_role("link", name="base").focus()
    rows = page.locator("#run-list tbody tr")
    shutil.copytree(folder / "runs" / "base", folder / "runs" / "third")
    expect(rows).to_have_count(3)
    shutil.rmtree(folder / "runs" / "third")
    expect(rows).to_have_count(2)
    expect(page.get_by_role("link", name="base")).to_be_focused()


def set_attempt(run: Path, **changes: object) -> None:
    """Change what the first attempt of a run has in its run.json."""
    file = run / "run.json"
    written = json.loads(file.read_text())
    written["attempts"][0] |= changes
    file.write_text(json.dumps(written))


def test_a_run_that_moves_in_the_list_keeps_the_focus(page: Page, folder: Path, server: LiveServer):
    run = folder / "runs" / "moving"
    shutil.copytree(folder / "runs" / "base", run)
    set_attempt(run, started_s=1e9, ended_s=1e9)
    visit(page, server)
    rows, link = page.locator("#run-list tbody tr"), page.get_by_role("link", name="moving")
    expect(rows.last).to_contain_text("moving")
    for began_s, place in ((4e9, rows.first), (1e9, rows.last)):
        link.focus()
        set_attempt(run, started_s=began_s, ended_s=began_s)
        expect(place).to_contain_text("moving")
        expect(link).to_be_focused()
    shutil.rmtree(run)


@pytest.mark.parametrize(("head", "changes"), [("Script", {"argv": []}), ("Verdict", {})])
def test_runs_of_which_something_is_unknown_come_last_either_way(
    page: Page, folder: Path, server: LiveServer, head: str, changes: dict[str, object]
):
    run = folder / "runs" / "unknown"
    shutil.copytree(folder / "runs" / "base", run)
    (run / "diagnosis.json").unlink()
    set_attempt(run, **changes)
    visit(page, server)
    rows = page.locator("#run-list tbody tr")
    for way in ("ascending", "descending"):
        page.get_by_role("button", name=head, exact=True).click()
        expect(page.locator(f"th[aria-sort={way}]")).to_have_text(head)
        expect(rows.last).to_contain_text("unknown")
    shutil.rmtree(run)


def test_no_more_runs_can_be_chosen_than_can_be_compared(
    page: Page, folder: Path, server: LiveServer
):
    for number in range(13):
        run = folder / "runs" / f"many-{number:02}"
        run.mkdir()
        shutil.copy(folder / "runs" / "base" / "run.json", run)
    visit(page, server)
    for number in range(13):
        page.get_by_label(f"Compare many-{number:02}", exact=True).check()
    compare = page.get_by_role("button", name="Compare")
    expect(compare).to_have_text("Compare 12 runs at most")
    expect(compare).to_be_disabled()
    page.get_by_label("Compare many-07", exact=True).uncheck()
    expect(compare).to_have_text("Compare 12 runs")
    compare.click()
    expect(page.locator("#runs")).to_contain_text("many-12 is left out")
    expect(page.locator("#subtitle")).to_be_empty()
    for number in range(13):
        shutil.rmtree(folder / "runs" / f"many-{number:02}")


def test_a_comparison_that_cannot_be_made_is_not_said_to_be_under_way(
    page: Page, folder: Path, server: LiveServer
):
    shutil.copytree(folder / "runs" / "base", folder / "runs" / "going-away")
    visit(page, server, "/compare?run=base&run=going-away")
    expect(page.locator("#runs table")).to_be_visible()
    shutil.rmtree(folder / "runs" / "going-away")
    drag(page, "chart-base/timeline", 0.3, 0.6)
    expect(page.locator("#banner")).to_contain_text("There is no run 'going-away'")
    expect(page.locator("#subtitle")).not_to_contain_text("Comparing")


def test_charts_are_asked_for_once_keys_have_settled(page: Page, server: LiveServer):
    open_run_page(page, server, "base#span=all")  # else a part of it may be asked for at first
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    heatmap = page.locator("#chart-heatmap")
    heatmap.focus()
    with page.expect_response(re.compile(r"/charts/heatmap\?.*from=")):
        page.evaluate(KEYS)
    assert 1 <= len([url for url in asked if "/charts/heatmap?" in url]) <= 2


def test_keys_act_once_on_a_chart_that_was_empty(page: Page, server: LiveServer):
    open_run_page(page, server, "base#span=0-0.000001")
    timeline = page.locator("#chart-timeline")
    expect(page.locator("#timeline")).to_contain_text("No step is in this span")
    timeline.focus()
    page.keyboard.press("Escape")
    expect(page.locator("#chart-timeline canvas").first).to_be_visible()
    page.wait_for_url(lambda url: "#span=0-" not in url)
    page.keyboard.press("+")
    begin, end = span_of(page)
    low, high = server.ask("/runs/base/charts/timeline").json["limits"]
    assert end - begin == pytest.approx((high - low) / 2, abs=0.01)


def test_links_to_sections_leave_the_span_in_the_address(page: Page, server: LiveServer):
    open_run_page(page, server)
    drag(page, "chart-timeline", 0.4, 0.7)
    span = span_of(page)
    page.locator("nav a", has_text="Findings").click()
    expect(page.locator("#findings")).to_be_focused()
    assert span_of(page) == span


def test_a_span_is_dragged_carried_by_the_address_and_left_again(page: Page, server: LiveServer):
    open_run_page(page, server)
    steps = page.locator("#verdict .tile", has_text="steps looked at")
    before = steps.text_content() or ""
    with page.expect_response(re.compile(r"/charts/waits\?.*from=")):
        with page.expect_response(re.compile(r"/sections\?from=")):
            drag(page, "chart-timeline", 0.4, 0.7)
        page.locator("#chart-waits").scroll_into_view_if_needed()  # asks once it is seen
    begin, end = span_of(page)
    assert 0 < begin < end
    expect(steps).not_to_have_text(before)
    page.goto(f"{server.origin}/runs")
    page.goto(f"{server.origin}/runs/base#span={begin}-{end}")
    expect(page.locator("#chart-heatmap canvas").first).to_be_visible()
    expect(page.locator("#heatmap .span-note")).to_contain_text("s to")
    page.locator("#chart-heatmap").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#verdict .tile", has_text="steps looked at")).to_have_text(before)


def test_the_file_is_the_same_page_without_a_server(page: Page, folder: Path):
    page.goto((folder / "runs" / "base" / "report.html").as_uri())
    for chart in ("heatmap", "timeline", "waits"):
        expect(page.locator(f"#chart-{chart} canvas").first).to_be_visible()
    drag(page, "chart-heatmap", 0.2, 0.4)
    begin, end = span_of(page)
    assert 0 <= begin < end


def test_the_metrics_of_a_tracked_run_and_its_cost_are_shown(
    page: Page, folder: Path, server: LiveServer
):
    printing = TRAIN.replace("optimizer.step()", "optimizer.step(); print('loss', epoch + 0.5)")
    (folder / "printing.py").write_text(printing)
    words = ("run", "--name", "tracked", "--metric", "loss=loss ([0-9.]+)", "printing.py", "0")
    variables = {**HERE, "HEADRACE_TRACKING_URI": ""}
    ended = run_here(folder, *words, **variables)
    assert ended.returncode == 0, ended.stderr
    run_file = folder / "runs" / "tracked" / "run.json"
    written = json.loads(run_file.read_text())
    group = {"name": "train", "hosts": 1, "instance_type": "g5.xlarge", "role": "training"}
    written["attempts"][0] |= {"groups": [group]}
    run_file.write_text(json.dumps(written))
    open_run_page(page, server, "tracked")
    expect(page.locator("#metrics h3").first).to_contain_text("loss")
    page.locator("#metrics").scroll_into_view_if_needed()
    expect(page.locator("#metrics canvas").first).to_be_visible()
    expect(page.locator("#cost-so-far")).to_contain_text("cost $0.0")


def test_a_running_job_is_seen_switched_and_stopped(
    page: Page, folder: Path, server: LiveServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS))
    with started(folder, "--name", "going", "train.py", "600") as job:
        visit(page, server)
        page.get_by_role("link", name="going").click()
        steps = page.locator("#verdict .tile", has_text="steps looked at")
        expect(steps).to_be_visible()
        before = steps.text_content() or ""
        expect(steps).not_to_have_text(before, timeout=150_000)  # without a reload
        page.get_by_role("button", name="Pause recording").click()
        expect(page.get_by_role("button", name="Record again")).to_be_visible()
        page.get_by_role("button", name="Record again").click()
        page.get_by_role("button", name=re.compile("Record deeply")).click()
        expect(page.locator("#controls")).to_contain_text("Recording deeply")
        server.change("/runs/going/switch", {"deep_s": 0})  # as another viewer
        expect(page.locator("#controls")).to_contain_text("Recording.")
        server.change("/runs/going/switch", {"recording": False})
        expect(page.locator("#controls")).to_contain_text("Recording is paused")
        server.change("/runs/going/switch", {"recording": True})
        expect(page.locator("#logs")).to_contain_text("the first line")
        copy = folder / "runs" / "going-copy"
        copy.mkdir()
        shutil.copy(folder / "runs" / "going" / "run.json", copy)
        refused = server.change("/runs/going-copy/stop").json["error"]
        assert refused == "going-copy is not running on this host: there is nothing to stop."
        shutil.rmtree(copy)
        page.get_by_role("button", name="Stop the run").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Stop going?")
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        assert job.poll() is None
        page.get_by_role("button", name="Stop the run").click()
        dialog.get_by_role("button", name="Stop the run").click()
        expect(page.get_by_role("button", name="Resume the run")).to_be_visible()
        job.wait(60)
        expect(page.locator("#subtitle")).to_contain_text("ended")


def collector_of(job: int) -> int:
    """The process that collects the records of a job."""
    (found,) = (pid for pid in descendants(job) if COLLECTOR in psutil.Process(pid).cmdline())
    return found


def test_silent_records_are_said_and_a_resumed_run_shows_its_new_attempt(
    page: Page, folder: Path, server: LiveServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS))
    banner = page.locator("#banner")
    with started(folder, "--name", "silent", "train.py", "120") as job:
        eventually((folder / "runs" / "silent" / "run.json").exists, "the run", 120)
        open_run_page(page, server, "silent")
        collector = collector_of(job.pid)
        os.kill(collector, signal.SIGSTOP)
        expect(banner).to_contain_text("Nothing was recorded since")
        os.kill(collector, signal.SIGCONT)
        expect(banner).to_be_empty()
        stop(page)
        job.wait(60)
    page.get_by_role("button", name="Resume the run").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume the run").click()
    expect(page.locator("#subtitle")).to_contain_text("attempt 2")
    expect(page.locator("#attempts")).to_contain_text("stopped")
    log = folder / "runs" / "silent" / "logs" / "attempt-2" / "rank-0.stdout"
    eventually(
        lambda: log.exists() and "the first line" in log.read_text(),
        "the script, in its environment",
    )
    stop(page)
    expect(page.locator("#subtitle")).to_contain_text("ended")


def test_a_full_disk_is_said_until_there_is_room_again(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS))
    banner = page.locator("#banner")
    with mounted_disk(tmp_path / "disk", "64m") as disk:
        (disk / "train.py").write_text(TRAIN)
        with (
            started(disk, "--name", "full", "train.py", "120") as job,
            live_server(disk, "--port", "0") as server,
        ):
            eventually((disk / "runs" / "full" / "run.json").exists, "the run", 120)
            open_run_page(page, server, "full")
            expect(banner).to_be_empty()
            filler = disk / "filler"
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(b"x" * 4096)
            expect(banner).to_contain_text("Nothing was recorded since")
            expect(page.locator("#verdict")).to_be_visible()
            filler.unlink()
            expect(banner).to_be_empty()
            stop(page)
            job.wait(60)
            expect(page.locator("#subtitle")).to_contain_text("ended")


def test_a_run_that_is_removed_stays_readable(page: Page, folder: Path, server: LiveServer):
    shutil.copytree(folder / "runs" / "base", folder / "runs" / "removed")
    open_run_page(page, server, "removed")
    shutil.rmtree(folder / "runs" / "removed")
    expect(page.locator("#banner")).to_contain_text("removed")
    expect(page.locator("#verdict h2")).to_be_visible()


def test_the_page_goes_on_with_another_server_in_the_place_of_one_that_is_gone(
    page: Page, folder: Path
):
    with live_server(folder, "--port", "0") as first:
        open_run_page(page, first)
        port = first.netloc.rpartition(":")[2]
        first.process.kill()
        first.process.wait(60)
        expect(page.locator("#banner")).to_contain_text("Not connected")
        page.get_by_label("Search in the log").fill("line")
        expect(page.locator("#logs")).to_contain_text("The server does not answer")
        expect(page.locator("#logs pre")).to_contain_text("the first line")
        with live_server(folder, "--port", port) as second:
            assert second.url == first.url
            expect(page.locator("#banner")).to_be_empty(timeout=60_000)
            second.process.kill()
            second.process.wait(60)
            shutil.rmtree(folder / "state")
        with live_server(folder, "--port", port):
            expect(page.locator("#banner")).to_contain_text("The token is missing", timeout=60_000)
            expect(page.locator("#banner")).not_to_contain_text("Trying again")
            expect(page.locator("#verdict h2")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_no_page_scrolls_sideways(browser: Browser, server: LiveServer, scheme: str, width: int):
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in ("/", "/runs/base", "/compare?run=base&run=second"):
        visit(page, server, path)
        expect(page.locator("main").first).not_to_be_empty()
        if path != "/":
            expect(page.locator(".chart canvas").first).to_be_visible()
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, path
    page.close()


LONG_NAME = "experiment_resnet50_bs256_lr0.1_wd1e-4_seed42_once_more_without_augmentation"


def test_long_names_do_not_make_a_narrow_page_scroll_sideways(
    browser: Browser, folder: Path, server: LiveServer
):
    run = folder / "runs" / LONG_NAME
    shutil.copytree(folder / "runs" / "base", run)
    log = run / "logs" / "attempt-1" / "restart-1" / f"{LONG_NAME}.stdout"
    log.parent.mkdir()
    log.write_text("a line\n")
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.set_default_timeout(60_000)
    for path in ("/", f"/runs/{LONG_NAME}", f"/compare?run=base&run={LONG_NAME}"):
        visit(page, server, path)
        if path == "/":
            expect(page.get_by_role("link", name=LONG_NAME)).to_be_attached()
        else:
            expect(page.locator(".chart canvas").first).to_be_visible()
        if path.startswith("/runs"):
            expect(page.locator("#logs select")).to_contain_text(LONG_NAME)
        elif path != "/":
            expect(page.locator("#runs table")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
    page.close()
    shutil.rmtree(run)


def test_the_output_follows_what_is_written_while_nothing_is_recorded(
    page: Page, folder: Path, server: LiveServer
):
    run = folder / "runs" / "printing"
    shutil.copytree(folder / "runs" / "base", run)
    open_run_page(page, server, "printing")
    expect(page.locator("#logs")).to_contain_text("the first line")
    with (run / "logs" / "attempt-1" / "rank-0.stdout").open("a") as log:
        log.write("\x1b[31mthe last line\x1b[0m\n")
    expect(page.locator("#logs")).to_contain_text("the last line")
    assert "[31m" not in page.locator("#logs").inner_text()
    newer = run / "logs" / "attempt-2" / "rank-0.stdout"
    newer.parent.mkdir()
    newer.write_text("of the second attempt\n")  # which nobody chose
    expect(page.locator("#logs")).to_contain_text("of the second attempt")
    page.get_by_label("Log", exact=True).select_option("attempt-1/rank-0.stdout")
    expect(page.locator("#logs")).to_contain_text("the last line")
    with page.expect_response(re.compile("/logs/attempt-")) as answered:  # by the next look at them
        newer.write_text("of the second attempt\nmore of it\n")
    assert "attempt-1" in answered.value.url
    shutil.rmtree(run)


def test_a_page_that_was_opened_in_the_background_holds_no_connection_until_it_is_seen(
    page: Page, server: LiveServer
):
    visit(page, server)
    page.add_init_script(
        "let hidden = true; Object.defineProperty(document, 'hidden', { get: () => hidden });"
        "addEventListener('shown', () => { hidden = false; });"
    )
    streams: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if "/events" in request.url
            else None)  # fmt: skip
    page.goto(f"{server.origin}/runs/base")
    expect(page.locator("#logs")).to_contain_text("the first line")
    assert streams == []
    with page.expect_request("**/runs/base/events"):
        page.evaluate(
            "dispatchEvent(new Event('shown'));"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
    expect(page.locator("#verdict h2")).to_have_text("Verdict")


def test_a_link_of_another_attempt_says_so(page: Page, server: LiveServer):
    visit(page, server, "/runs/base#span=0-1&attempt=3")
    banner = page.locator("#banner")
    expect(banner).to_contain_text(
        "The span of time in the address was one of attempt 3; attempt 1"
    )
    expect(page.locator("#chart-heatmap canvas").first).to_be_visible()
    assert "span" not in page.url
    drag(page, "chart-timeline", 0.2, 0.6)
    begin, end = span_of(page)
    assert page.url.endswith("&attempt=1")
    page.goto("about:blank")
    page.goto(f"{server.origin}/runs/base#span={begin}-{end}&attempt=1")
    expect(page.locator("#verdict h2")).to_have_text("Verdict")
    expect(banner).to_be_empty()
    assert span_of(page) == (begin, end)
