"""What tests of the live page in a browser share: a script to record, and what readers do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from playwright.sync_api import Page, expect

from jobs import run_here
from recorded import SCRIPTS
from services.live_server import LiveServer

TRAIN = """
import sys, time
import torch
from points import Descent
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.randn(4)

model = torch.nn.Linear(4, 1)
optimizer = Descent(model.parameters())
deadline = time.monotonic() + float(sys.argv[1])
print("the first line", flush=True)
epoch = 0
while epoch < 1 or time.monotonic() < deadline:
    for batch in DataLoader(Slow(), batch_size=4):
        model(batch).mean().backward()
        optimizer.step()
    epoch += 1
"""
"""Trains for so many seconds, an epoch of 40 steps at least."""
HERE = {"PYTHONPATH": str(SCRIPTS)}
"""Variables that the script needs."""


def record(folder: Path, name: str, *arguments: str, script: str = TRAIN, **flags: str) -> Path:
    """Record a run of a script, and return its folder; flags are those of `headrace run`."""
    (folder / "train.py").write_text(script)
    given = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
    ended = run_here(folder, "run", "--name", name, *given, "train.py", *arguments, **HERE)
    assert ended.returncode == 0, ended.stderr
    return folder / "runs" / name


def visit(page: Page, server: LiveServer, path: str = "/") -> None:
    """Open a page as its reader does: by the printed URL first, which has the token."""
    page.goto(server.url)
    page.wait_for_url(f"{server.origin}/")
    if path != "/":
        page.goto(server.origin + path)


def open_run_page(page: Page, server: LiveServer, name: str = "base") -> None:
    """Open a run's page, and wait for its verdict and its heatmap."""
    visit(page, server, f"/runs/{name}")
    expect(page.locator("#verdict h2")).to_have_text("Verdict")
    expect(page.locator("#chart-heatmap canvas").first).to_be_visible()


def drag(page: Page, chart: str, begin: float, end: float) -> None:
    """Drag over a chart, from one share of its width to another."""
    place = page.locator(f'[id="{chart}"] .u-over').first
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + begin * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], y, steps=5)
    page.mouse.up()


def span_of(page: Page) -> tuple[float, float]:
    """Return the span in the page's address, once it is there."""
    page.wait_for_url(re.compile("#span=[0-9]"))  # the browser tells of it a little later
    found = re.search(r"#span=([\d.]+)-([\d.]+)", page.url)
    assert found is not None, page.url
    return float(found[1]), float(found[2])


def note_drawn_texts(page: Page) -> None:
    """Note what charts write on their canvases, of pages that are opened from now on."""
    page.add_init_script("""
        window.drawnTexts = new Set();
        const draw = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
            window.drawnTexts.add(text);
            return draw.call(this, text, ...place);
        };
    """)


def expect_drawn(page: Page, texts: Iterable[str]) -> None:
    """Wait until charts have written texts on their canvases."""
    page.wait_for_function("texts => texts.every(text => drawnTexts.has(text))", arg=list(texts))


def stop(page: Page) -> None:
    """Stop the run that a page shows."""
    page.get_by_role("button", name="Stop the run").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop the run").click()
