"""The live page under its reader's conditions: without a network, a clipboard, or good eyes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from headrace.observe.doctor.diagnosis import diagnose
from headrace.report.page import PageData, page_of
from live_pages import HERE, open_run_page, record, visit
from machine import needs
from run_tables import Run, play
from services.live_server import LiveServer, live_server

pytestmark = needs("chromium")

LEAST_CONTRAST, LEAST_CONTRAST_OF_LARGE = 4.5, 3.0  # WCAG 2.2, level AA
CONTRASTS = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const over = (top, below) => {
    context.fillStyle = below;
    context.fillRect(0, 0, 1, 1);
    context.fillStyle = top;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b] = context.getImageData(0, 0, 1, 1).data;
    return `rgb(${r}, ${g}, ${b})`;
  };
  const ground = (element) => {
    if (!element) return "rgb(255, 255, 255)";
    return over(getComputedStyle(element).backgroundColor, ground(element.parentElement));
  };
  const luminance = (colour) => {
    const parts = colour.match(/\\d+/g).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE)
      .map((node) => node.textContent.trim()).join(" ").trim();
    const isSeen = element.checkVisibility({ visibilityProperty: true });
    if (!text || element.disabled || !isSeen) continue;
    const style = getComputedStyle(element);
    const behind = ground(element);
    const [one, other] = [over(style.color, behind), behind].map(luminance);
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const px = parseFloat(style.fontSize);
    const isLarge = px >= 24 || (px >= 18.66 && style.fontWeight >= 700);
    found.push([element.tagName + "." + element.className, text.slice(0, 40), contrast, isLarge]);
  }
  return found;
}"""
"""Each visible text of the page with its contrast to what is behind it, and whether it is large."""


RESTARTS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4, num_workers=1)
for _ in range(12):
    for (batch,) in loader:
        model(batch).mean().backward()
        optimizer.step()
"""
"""Starts a worker anew for each short epoch, which a change of the loader's arguments spares it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conditions")
    shutil.copytree(record(folder, "base", "1"), folder / "runs" / "second")
    record(folder, "restarts", script=RESTARTS)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with live_server(folder, "--port", "0", **HERE) as server:
        yield server


def test_a_browser_that_is_offline_says_so_and_goes_on_once_it_is_back(
    page: Page, server: LiveServer
):
    open_run_page(page, server)
    banner = page.locator("#banner")
    page.context.set_offline(offline=True)
    expect(banner).to_contain_text("Not connected: this computer is offline.")
    expect(page.locator("#verdict h2")).to_have_text("Verdict")  # what is shown stays
    page.context.set_offline(offline=False)
    expect(banner).not_to_contain_text("Not connected")
    page.reload()
    expect(page.locator("#verdict h2")).to_have_text("Verdict")


def test_a_command_is_copied_where_the_clipboard_has_no_interface(page: Page, server: LiveServer):
    # As over plain HTTP from another machine, or from a disk.
    page.add_init_script("delete Navigator.prototype.clipboard")
    open_run_page(page, server, "restarts")
    assert page.evaluate("() => navigator.clipboard === undefined")
    button = page.locator("button[data-copy]").first
    command = button.get_attribute("data-copy")
    assert command
    button.click()
    expect(button).to_have_text("Copied")
    search = page.get_by_label("Search in the log")
    search.focus()
    page.keyboard.press("Control+V")
    expect(search).to_have_value(command)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(
    browser: Browser, server: LiveServer, scheme: str
):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    faint = []
    for path in ("/", "/runs/base", "/compare?run=base&run=second"):
        visit(page, server, path)
        page.wait_for_load_state("load")
        if path == "/runs/base":
            expect(page.locator("#verdict h2")).to_have_text("Verdict")
        elif path == "/":
            expect(page.get_by_role("link", name="base")).to_be_visible()
        else:
            expect(page.locator("#runs table")).to_be_visible()
        texts = page.evaluate(CONTRASTS)
        assert len(texts) > 5
        for name, text, contrast, is_large in texts:
            if contrast < (LEAST_CONTRAST_OF_LARGE if is_large else LEAST_CONTRAST):
                faint.append(f"{path}: {name} {text!r}: {contrast:.2f}")
    context.close()
    assert faint == []


def test_long_terms_do_not_make_a_narrow_page_scroll_sideways(browser: Browser, tmp_path: Path):
    tables = play(Run(workers=4, service_ms=8))
    diagnosis = diagnose(tables)
    parts = ("steps", "evaluation", "passed_over", "batch_lists", "between", "open", "unrecorded")
    verdict = replace(
        diagnosis.verdict, time_shares=dict.fromkeys(parts, 1 / len(parts)), run_seconds=700.0
    )
    data = PageData(
        name="spent", path=tmp_path, attempt=1, attempts=(), outcome="succeeded", outcomes=(),
        tables=tables, diagnosis=replace(diagnosis, verdict=verdict), cost=None,
        read_s=time.time(),
    )  # fmt: skip
    file = tmp_path / "report.html"
    file.write_bytes(b"".join(page_of(data)))
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(file.as_uri())
    expect(page.locator(".chart canvas").first).to_be_visible()
    expect(page.locator("#verdict")).to_contain_text("before the first of them is trained on")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.close()
