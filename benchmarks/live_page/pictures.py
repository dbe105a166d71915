"""Reference case A on the live page, as pictures in docs/live/: what a reader does in a minute.

    python benchmarks/live_page/pictures.py

Two ranks whose loaders fight for the cores are started. The page is opened while they run, the line
at fault is read, the remedy's command is copied and typed, and both runs are seen side by side.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "live"
CASE = ROOT / "benchmarks" / "reference_a"
SCRIPT = "segmentation.py"
HEADRACE = [sys.executable, "-m", "headrace.cli.main"]
STEPS = ("--steps", "700")
SEEN_S = 45.0
"""So long the first run goes on before its page is opened: its verdict is settled then."""
WAIT_MS = 180_000


@contextmanager
def process(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a verb in a folder; it is stopped at the end."""
    environment = {**os.environ, "HEADRACE_TRACKING_URI": "off"}
    started = subprocess.Popen([*HEADRACE, *words], cwd=folder, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGINT)
        started.wait(120)


def play(folder: Path, browser: Browser) -> None:
    """Play the case through, and take the pictures."""
    for name in (SCRIPT, "scenes.py"):
        shutil.copy(CASE / name, folder)
    words = ["run", "--name", "before", "--nproc-per-node", "2", SCRIPT, *STEPS]
    with (
        process(folder, "report", "--live", "--port", "0") as server,
        process(folder, *words) as job,
    ):
        assert server.stdout is not None
        found = (re.search(r"http://\S+", line) for line in server.stdout)
        url = next(each[0] for each in found if each)
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        time.sleep(SEEN_S)
        assert job.poll() is None, "the first run has ended too early"
        command = see_the_first_run(page, url)
        page.get_by_role("button", name="Stop the run").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop the run").click()
        job.wait(120)
        name = see_the_second_run(page, url, folder, command)
        beside(page, url, name)
        in_all_themes(browser, context, url, name)


def see_the_first_run(page: Page, url: str) -> str:
    """Open the starving run from the list; return the command of its first remedy."""
    page.goto(url)
    expect(page.locator("#run-list")).to_contain_text("running")
    picture(page, "1-runs")
    page.get_by_role("link", name="before").click()
    expect(page.locator("#chart-heatmap canvas").first).to_be_visible(timeout=WAIT_MS)
    expect(page.locator("#verdict .sentence")).to_contain_text("waits for data", timeout=WAIT_MS)
    picture(page, "2-a-run-that-starves")
    page.locator("#heatmap").scroll_into_view_if_needed()
    settled(page)
    picture(page, "3-its-heatmap")
    page.locator("#findings").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('#findings').scrollIntoView()")
    settled(page)
    picture(page, "4-the-line")
    button = page.locator("button.copy").first
    button.scroll_into_view_if_needed()
    button.click()
    expect(button).to_have_text("Copied")
    picture(page, "5-the-remedy-is-copied")
    command: str = page.evaluate("navigator.clipboard.readText()")
    return command


def see_the_second_run(page: Page, url: str, folder: Path, command: str) -> str:
    """Type the command, and open its run while it goes on; return its name."""
    words = shlex.split(command)
    assert words[:2] == ["headrace", "run"], command
    print(command)
    with process(folder, *words[1:]):
        page.goto(url)
        row = page.locator("#run-list tbody tr").first
        expect(row).to_contain_text("running", timeout=WAIT_MS)
        time.sleep(SEEN_S)
        name = row.get_by_role("link").first.text_content() or ""
        page.get_by_role("link", name=name).click()
        expect(page.locator("#chart-heatmap canvas").first).to_be_visible(timeout=WAIT_MS)
        settled(page)
        picture(page, "6-the-second-run")
        page.get_by_role("button", name="Stop the run").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop the run").click()
        expect(page.get_by_role("button", name="Resume the run")).to_be_visible(timeout=WAIT_MS)
    return name


def beside(page: Page, url: str, name: str) -> None:
    """Tick both runs, and compare them."""
    page.goto(url)
    for each in ("before", name):
        page.get_by_label(f"Compare {each}", exact=True).check()
    picture(page, "7-both-are-ticked")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_contain_text(name)
    settled(page)
    picture(page, "8-beside-each-other")
    page.evaluate("document.querySelector('#heatmaps').scrollIntoView()")
    settled(page)
    picture(page, "9-their-heatmaps")


def in_all_themes(browser: Browser, context: BrowserContext, url: str, name: str) -> None:
    """Take pictures of both runs in dark and light, wide and narrow."""
    cookies = context.cookies()
    for run, shown in (("before", "before"), (name, "after")):
        for scheme in ("light", "dark"):
            for width in (1280, 400):
                own = browser.new_context(
                    viewport={"width": width, "height": 900},
                    color_scheme="dark" if scheme == "dark" else "light",
                )
                own.add_cookies(cookies)  # type: ignore[arg-type]
                page = own.new_page()
                page.goto(f"{url.split('?', maxsplit=1)[0].rstrip('/')}/runs/{run}")
                for place in ("#verdict h2", "#chart-heatmap canvas"):
                    expect(page.locator(place).first).to_be_visible(timeout=WAIT_MS)
                page.evaluate("document.querySelector('#heatmap').scrollIntoView()")
                settled(page)
                picture(page, f"{shown}-{scheme}-{width}")
                own.close()


def settled(page: Page) -> None:
    """Wait until charts on the screen are drawn."""
    page.wait_for_load_state("load")
    time.sleep(2.5)


def picture(page: Page, name: str) -> None:
    """Write what is on the screen."""
    page.screenshot(path=PICTURES / f"{name}.png")


def main() -> None:
    """Take the pictures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    PICTURES.mkdir(exist_ok=True)
    folder = Path(tempfile.gettempdir()) / "street-scenes"  # it is seen in the pictures
    folder.mkdir()
    try:
        with sync_playwright() as playwright:
            path = shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            play(folder, browser)
            browser.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
