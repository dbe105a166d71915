"""The live page of a run on several hosts: what is on each of them, and switches that reach all."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Page, expect

from jobs import eventually
from live_pages import drag, expect_drawn, note_drawn_texts, open_run_page, span_of, stop
from machine import needs
from pages import with_numbers
from services.live_server import live_server
from two_host_job import steps_of, switched_off, two_host_job

pytestmark = [needs("chromium"), needs("networks")]


def test_hosts_are_apart_and_all_are_switched_and_stopped(page: Page, tmp_path: Path):
    note_drawn_texts(page)
    with (
        two_host_job(tmp_path) as (head, jobs, records),
        live_server(tmp_path, "--port", "0") as server,
    ):
        eventually(lambda: min(steps_of(records, rank) for rank in (0, 1)) > 60, "steps of both")
        open_run_page(page, server, "b")
        heatmap = json.loads(server.ask("/runs/b/charts/heatmap").body, object_hook=with_numbers)
        hosts = {band["host"] for band in heatmap["bands"]}
        assert len(hosts) == 2
        expect_drawn(page, [f"{band['title']} · {band['host']}" for band in heatmap["bands"]])
        expect_drawn(page, [f"rank {rank} worker {worker}" for rank in (0, 1) for worker in (0, 1)])
        drag(page, "chart-timeline", 0.4, 0.7)
        span_of(page)
        expect(page.locator("#heatmap .span-note")).to_contain_text("s to")
        page.set_viewport_size({"width": 400, "height": 800})
        expect_drawn(page, ["r0 w0", "r0 w1", "r1 w0", "r1 w1"])
        page.get_by_role("button", name="Pause recording").click()
        eventually(lambda: switched_off(records) == {"switched", "host-switched"}, "both hosts")
        stop(page)
        codes = [job.wait(120) for job in jobs]
        assert all(codes), head.output(tmp_path / "code")
        expect(page.locator("#subtitle")).to_contain_text("ended")
