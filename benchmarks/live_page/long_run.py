"""How long does the live page of a long run on many hosts take, and how much memory?

    python benchmarks/live_page/generate.py FOLDER/runs/long      # five minutes
    python benchmarks/live_page/long_run.py FOLDER

Chromium opens the run's page: the first view is there once the verdict stands and the heatmap and
the steps are drawn. Then a reader drags over the steps, again and again: a frame later the charts
show the span, stretched from what is at hand; a little later the server's answers are drawn.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import machine

WAIT_MS = 120_000
SPANS = ((0.2, 0.8), (0.45, 0.55), (0.6, 0.62), (0.1, 0.35), (0.7, 0.9))
WATCH = """
() => {
  window.drawn = [];
  addEventListener("headrace-drawn", (event) => drawn.push([performance.now(), event.target.id]));
  const fetched = window.fetch;
  window.underWay = 0;
  window.fetch = async (...args) => {
    window.underWay++;
    try {
      return await fetched(...args);
    } finally {
      window.underWay--;
      window.lastAnswer = performance.now();
    }
  };
}
"""
QUIET = "() => window.underWay === 0 && performance.now() - window.lastAnswer > 400"
FRAME = """
() => new Promise((done) => {
  addEventListener("mouseup", () => {
    const at = window.released = performance.now();
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - at)));
  }, { once: true, capture: true });
})
"""


@contextmanager
def live_server(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the server; yield its process and its URL."""
    command = [sys.executable, "-m", "headrace.cli.main", "report", "--live", "long", "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"http://\S+", line):
                yield process, found[0]
                break
    finally:
        process.terminate()
        process.wait()


def memory_mb(process: psutil.Process, what: str) -> float:
    """Return a figure of /proc/PID/status in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(rf"{what}:\s*(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def renderer_mb(browser_pid: int) -> float:
    """Return the memory that Chromium's process with the page, its largest renderer, has alone."""
    children = psutil.Process(browser_pid).children(recursive=True)
    renderers = [each for each in children if "--type=renderer" in " ".join(each.cmdline())]
    return max(each.memory_full_info().uss for each in renderers) / 2**20


def first_view_s(page: Page, url: str) -> float:
    """Open the run's page; return the seconds until verdict, heatmap and steps are there."""
    began = time.perf_counter()
    page.goto(url)
    page.locator("#verdict h2").wait_for()
    for chart in ("heatmap", "timeline"):
        page.locator(f"#chart-{chart} canvas").first.wait_for()
    return time.perf_counter() - began


def settle(page: Page) -> None:
    """Wait until the page has asked for nothing for a while."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(QUIET):
        if time.monotonic() > deadline:
            raise TimeoutError(page.url)
        time.sleep(0.05)


def brush_ms(page: Page, begin: float, end: float) -> tuple[float, float]:
    """Drag over the steps; return the ms to the next frame, and until the answers are there."""
    place = page.locator("#chart-timeline .u-over").first
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.evaluate(f"() => {{ window.frame = ({FRAME})(); }}")
    page.mouse.move(box["x"] + begin * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], y, steps=5)
    page.mouse.up()
    frame_ms: float = page.evaluate("() => window.frame")
    settle(page)
    answered_ms: float = page.evaluate("() => window.lastAnswer - window.released")
    return frame_ms, answered_ms


def measure(folder: Path, browser: Browser, browser_pid: int) -> dict[str, Any]:
    """Return the figures of one server and one page."""
    with live_server(folder) as (process, url):
        server = psutil.Process(process.pid)
        page = browser.new_page(viewport={"width": 1280, "height": 1000}, bypass_csp=True)
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(f"({WATCH})()")
        first_s = first_view_s(page, url)
        settle(page)
        brushes = []
        for begin, end in SPANS:
            brushes.append(brush_ms(page, begin, end))
            page.get_by_role("button", name="Show all time").first.click()
            settle(page)
        found = {
            "first view, s": first_s,
            "brush to frame, ms": statistics.median(frame for frame, _ in brushes),
            "worst brush to frame, ms": max(frame for frame, _ in brushes),
            "brush to all answers, ms": statistics.median(answer for _, answer in brushes),
            "page, MB": renderer_mb(browser_pid),
            "server at most, MB": memory_mb(server, "VmHWM"),
            "server, MB": memory_mb(server, "VmRSS"),
        }
        page.close()
        return found


def main() -> None:
    """Measure several times, and print medians and ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        mine = {each.pid for each in psutil.Process().children(recursive=True)}
        pid = min(mine)
        rounds = [measure(options.folder, browser, pid) for _ in range(options.times)]
        browser.close()
    for name in rounds[0]:
        values = sorted(each[name] for each in rounds)
        print(f"| {name} | {statistics.median(values):.3g} | {values[0]:.3g} to {values[-1]:.3g} |")


if __name__ == "__main__":
    main()
