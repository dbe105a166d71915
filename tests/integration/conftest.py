"""A browser, and a page in it, for the tests that need one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

WAIT_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser) -> Iterator:
    """A page without errors or violations of its policy, and whose title no record may change."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if "Policy" in message.text
            else None)  # fmt: skip
    yield page
    assert page.title() != "0"
    assert faults == []
    context.close()
