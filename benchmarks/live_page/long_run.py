"""How long does the live page of a long run on many hosts take, and how much memory?

    python benchmarks/live_page/generate.py FOLDER/runs/long      # five minutes
    python benchmarks/live_page/long_run.py FOLDER

With `--hours 1 --ranks 28 --hosts 4` the heatmap has 552 rows instead of 1,152.

Chromium opens the run's page: the first view is there once the verdict stands and the heatmap and
the steps are drawn. Then a reader drags over the steps, again and again: a frame later the charts
show the span, stretched from what is at hand; a little later the server's answers are drawn. Last,
on a page whose heatmap has 2,000 columns, a key in each frame moves the span.
"""

from __future__ import annotations

import argparse
import itertools
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

from report import machine, print_medians

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

WIDE = {"width": 2400, "height": 1000}
"""The page is at most 1,200 pixels wide; without that limit its heatmap has 2,000 columns."""
FRAMES = 120
PREPARE = """
() => {
  addEventListener("DOMContentLoaded", () => {
    const style = document.createElement("style");
    style.textContent = "main { max-width: none !important }";
    document.head.append(style);
  });
  window.pictures = { rows: 0, columns: 0 };
  const draw = CanvasRenderingContext2D.prototype.drawImage;
  CanvasRenderingContext2D.prototype.drawImage = function (picture, ...rest) {
    if (this.canvas.closest("#chart-heatmap") !== null) {
      pictures.rows += picture.height;
      pictures.columns = Math.max(pictures.columns, rest[2]);
    }
    return draw.call(this, picture, ...rest);
  };
}
"""
MOVE = """
async (frames) => {
  const place = document.getElementById("chart-heatmap");
  const next = () => new Promise(requestAnimationFrame);
  const press = (key) => place.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  Object.assign(pictures, { rows: 0, columns: 0 });
  const times = [performance.now()];
  for (let frame = 0; frame < frames; frame++) {
    press(frame % 2 ? "," : ".");
    await next();
    times.push(performance.now());
  }
  return { times, rows: pictures.rows / frames, columns: Math.round(pictures.columns) };
}
"""


@contextmanager
def live_server(folder: Path, run: str = "long") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the server; yield its process and the URL of a run's page."""
    command = [sys.executable, "-m", "headrace.cli.main", "report", "--live", run, "--port", "0"]
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


def drag(page: Page, chart: str, begin: float, end: float) -> None:
    """Choose a span on a chart: from a share of its width to another."""
    place = page.locator(f"#chart-{chart} .u-over").first
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    y = min(box["y"] + box["height"] / 2, 900)
    page.mouse.move(box["x"] + begin * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], y, steps=5)
    page.mouse.up()


def brush_ms(page: Page, begin: float, end: float) -> tuple[float, float]:
    """Drag over the steps; return the ms to the next frame, and until the answers are there."""
    page.evaluate(f"() => {{ window.frame = ({FRAME})(); }}")
    drag(page, "timeline", begin, end)
    frame_ms: float = page.evaluate("() => window.frame")
    settle(page)
    answered_ms: float = page.evaluate("() => window.lastAnswer - window.released")
    return frame_ms, answered_ms


def frame_rate(page: Page, url: str) -> dict[str, float]:
    """Move the span by a key in each frame; return frames a second and how much each draws."""
    page.add_init_script(f"({PREPARE})()")
    first_view_s(page, url)
    settle(page)
    drag(page, "heatmap", 0.02, 0.98)
    settle(page)
    moved = page.evaluate(MOVE, FRAMES)
    times = moved["times"]
    took_ms = sorted(after - before for before, after in itertools.pairwise(times))
    return {
        "frames a second": FRAMES * 1000 / (times[-1] - times[0]),
        "of 20 frames the slowest, ms": took_ms[-(len(took_ms) // 20)],
        "rows drawn a frame": moved["rows"],
        "columns drawn a frame": moved["columns"],
    }


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
        wide = browser.new_page(viewport=WIDE, bypass_csp=True)
        wide.set_default_timeout(WAIT_MS)
        wide.add_init_script(f"({WATCH})()")
        found |= frame_rate(wide, url)
        wide.close()
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
    print_medians(rounds)


if __name__ == "__main__":
    main()
