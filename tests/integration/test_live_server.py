"""The live page's server: what it answers, to whom, and what it never shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.parquet as pq
import pytest

from headrace.records.live_switch import LiveSwitch
from headrace.records.run_folder import process_identity
from jobs import eventually, headrace, run_here, started
from pages import Page, with_numbers
from recorded import SCRIPTS
from services.live_server import LiveServer, events_of, live_server, next_event

GENERATE = Path(__file__).parents[2] / "benchmarks" / "live_page" / "generate.py"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
TRAIN = """
import sys, time
import torch
from points import Descent
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = Descent(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
deadline = time.monotonic() + float(sys.argv[1])
print("the first line", sys.argv[-1], flush=True)
epoch = 0
while epoch < 1 or time.monotonic() < deadline:
    for (batch,) in loader:
        model(batch).mean().backward()
        optimizer.step()
    epoch += 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    (folder / "train.py").write_text(TRAIN)
    ended = run_here(
        folder, "run", "--name", "base", "train.py", "0", HOSTILE, PYTHONPATH=str(SCRIPTS)
    )
    assert ended.returncode == 0, ended.stderr
    (folder / "outside").mkdir()
    shutil.copytree(folder / "runs" / "base", folder / "outside" / "secret")
    (folder / "runs" / "linked").symlink_to(folder / "outside" / "secret")
    (folder / "runs" / "base" / "logs" / "attempt-1" / "passwd").symlink_to("/etc/passwd")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with live_server(folder, "--port", "0") as server:
        yield server


def test_documents_load_only_their_own_script_and_style(server: LiveServer):
    for path in ("/", "/runs/base"):
        answer = server.ask(path)
        assert answer.status == 200
        page = Page(answer.body.decode())
        loaded = [value for _, attributes in page.elements for value in (
            attributes.get("src"), attributes.get("href")) if value]  # fmt: skip
        assert all(value.startswith(("/", "#", "data:")) for value in loaded)
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert page.scripts == []
    assert server.ask("/static/page.js").headers["content-type"].startswith("text/javascript")


def test_the_list_has_every_run_but_those_a_link_leads_out_to(server: LiveServer):
    found = server.ask("/api/runs").json
    (run,) = found["runs"]
    assert (run["name"], run["state"], run["script"], run["ranks"]) == (
        "base",
        "done",
        "train.py",
        1,
    )
    assert "step" in run["verdict"]
    assert 0 < run["began_unix_s"] < found["now_unix_s"]


def test_sections_are_those_of_the_file_and_their_texts_are_escaped(server: LiveServer):
    found = server.ask("/runs/base/sections").json
    written = Page((server_folder(server) / "base" / "report.html").read_text())
    sections = [attributes["id"] for tag, attributes in written.elements if tag == "section"]
    assert [section["id"] for section in found["sections"]] == sections
    shown = Page("".join(section["html"] for section in found["sections"]))
    assert shown.scripts == []
    assert "img" not in shown.tags
    assert HOSTILE in shown.text
    again = server.ask("/runs/base/sections").json
    assert [each["stamp"] for each in again["sections"]] == [
        each["stamp"] for each in found["sections"]
    ]


def server_folder(server: LiveServer) -> Path:
    return Path(server.ask("/api/runs").json["folder"])


def test_charts_are_those_of_the_file_and_follow_a_span(server: LiveServer):
    written = Page((server_folder(server) / "base" / "report.html").read_text()).charts
    assert written.keys() >= {"heatmap", "timeline", "phases"}
    for name, chart in written.items():
        found = server.ask(f"/runs/base/charts/{name}").json
        assert (found["kind"], found.keys()) == (chart["kind"], chart.keys())
    limits = written["timeline"]["limits"]
    begin, end = written["timeline"]["first_span"]
    middle = (begin + end) / 2
    part = server.ask(f"/runs/base/charts/timeline?from={middle}&to={end}&columns=7").json
    assert part["limits"] == limits
    assert part["span"] == [pytest.approx(middle, abs=1e-5), pytest.approx(end, abs=1e-5)]


def changed_copy(folder: Path, name: str, *attempts: dict[str, Any]) -> Path:
    """Copy the run `base`, with its attempt replaced by several that differ from it."""
    run = folder / "runs" / name
    shutil.copytree(folder / "runs" / "base", run)
    written = json.loads((run / "run.json").read_text())
    (base,) = written["attempts"]
    written["attempts"] = [
        base | {"number": place + 1, "started_boot_s": 0.0} | each
        for place, each in enumerate(attempts)
    ]
    (run / "run.json").write_text(json.dumps(written))
    if len(attempts) > 1:
        shutil.copytree(run / "records" / "attempt-1", run / "records" / f"attempt-{len(attempts)}")
    return run


def section_texts(server: LiveServer, run: str, query: str = "") -> dict[str, str]:
    found = server.ask(f"/runs/{run}/sections{query}").json["sections"]
    return {each["id"]: Page(each["html"]).text for each in found}


def read_chart(server: LiveServer, path: str) -> dict[str, Any]:
    return json.loads(server.ask(path).body, object_hook=with_numbers)


def test_attempts_are_shown_with_how_they_ended(folder: Path, server: LiveServer):
    assert "attempts" not in section_texts(server, "base")
    changed_copy(
        folder,
        "tried",
        {"started_s": 1000.0, "ended_s": 1060.0, "exit_code": 3},
        {"started_s": 1070.0, "ended_s": None, "exit_code": None},
        {"started_s": 1100.0, "ended_s": 1300.0, "exit_code": 1, "reason": "MaxRuntimeExceeded"},
        {"started_s": 1400.0, "ended_s": 1500.0, "exit_code": 0},
    )
    shown = section_texts(server, "tried")["attempts"]
    for words in ("attempt 4", "failed: exit code 3", "killed", "stopped: MaxRuntimeExceeded"):
        assert words in shown
    first = section_texts(server, "tried", "?attempt=1")["verdict"]
    assert "Attempt 1 failed: it ended with exit code 3." in first
    unrecorded = server.ask("/runs/tried/sections?attempt=2")
    assert unrecorded.status == 409
    assert "no records of attempt 2" in unrecorded.json["error"]
    chart = read_chart(server, "/runs/tried/charts/attempts")
    assert chart["rows"] == [f"attempt {number}" for number in (1, 2, 3, 4)]
    named = {part["name"]: part["values"] for part in chart["parts"]}
    assert named == {
        "": [0, 70, 100, 400],
        "failed": [60, 0, 0, 0],
        "killed": [0, 30, 0, 0],
        "stopped": [0, 0, 200, 0],
        "succeeded": [0, 0, 0, 100],
    }


def test_the_list_has_no_verdict_of_an_earlier_attempt(folder: Path, server: LiveServer):
    assert runs_of(server)["base"]["verdict"]
    begun = {"ended_s": None, "exit_code": None, "launcher": {}}
    changed_copy(folder, "killed-later", {"exit_code": 0}, begun)
    eventually(lambda: "killed-later" in runs_of(server), "the run in the list")
    listed = runs_of(server)["killed-later"]
    assert (listed["state"], listed["attempts"]) == ("killed", 2)
    assert (listed["samples_per_s"], listed["data_wait_share"]) == (None, None)
    assert listed["verdict"] == ""


def test_a_killed_last_attempt_lasts_until_its_last_record(folder: Path, server: LiveServer):
    (base,) = json.loads((folder / "runs" / "base" / "run.json").read_text())["attempts"]
    begin = base["started_s"] - 1000
    changed_copy(
        folder,
        "cut",
        {"started_s": begin, "ended_s": None, "exit_code": None},
        {"started_s": begin + 100, "ended_s": None, "exit_code": None},
    )
    chart = read_chart(server, "/runs/cut/charts/attempts")
    assert {part["name"] for part in chart["parts"]} == {"", "killed"}
    lasted = next(part["values"] for part in chart["parts"] if part["name"] == "killed")
    assert lasted[0] == pytest.approx(100)
    assert lasted[1] == pytest.approx(base["ended_s"] - begin - 100, abs=1)  # by its records


def test_a_span_without_steps_has_an_empty_chart(folder: Path, server: LiveServer):
    empty = "from=0&to=0.000001"
    rows = read_chart(server, f"/runs/base/charts/timeline?{empty}")["rows"]
    assert {len(row["start_s"]) for row in rows} == {0}
    sections = server.ask(f"/runs/base/sections?{empty}").json["sections"]
    (text,) = (each["html"] for each in sections if each["id"] == "timeline")
    assert 'id="chart-timeline"' in text
    assert "No step is in this span of time." in text


def test_a_span_without_an_end_reaches_to_that_of_the_records(server: LiveServer):
    whole = read_chart(server, "/runs/base/charts/timeline")
    middle = sum(whole["limits"]) / 2
    found = read_chart(server, f"/runs/base/charts/timeline?from={middle}")
    assert found["span"] == [pytest.approx(middle, abs=1e-6), whole["limits"][1]]


def test_the_cost_is_that_of_the_moment_it_is_asked_for(folder: Path, server: LiveServer):
    group = {"name": "train", "hosts": 2, "instance_type": "g5.xlarge", "role": "training"}
    going = {"ended_s": None, "exit_code": None, "launcher": process_identity(os.getpid())}
    begin = time.time() - 7200
    changed_copy(folder, "ticking", {"groups": [group], "started_s": begin, **going})
    answers = []
    for _ in range(3):  # of one diagnosis
        asked_s = time.monotonic()
        cost = server.ask("/runs/ticking/sections").json["cost"]
        answers.append((asked_s, cost["usd"] / cost["usd_per_s"], time.monotonic()))
        server.ask("/runs/ticking/charts/heatmap")
    assert begin + answers[0][1] == pytest.approx(time.time(), abs=60)
    for (asked_s, lasted_s, answered_s), (again_s, then_s, at_last_s) in pairwise(answers):
        assert again_s - answered_s - 0.01 <= then_s - lasted_s <= at_last_s - asked_s + 0.01


@pytest.mark.long
def test_a_clock_that_was_set_back_and_a_thousand_runs_are_listed(tmp_path: Path, folder: Path):
    base = json.loads((folder / "runs" / "base" / "run.json").read_text())
    (attempt,) = base["attempts"]
    for number in range(1000):
        run = tmp_path / "runs" / f"run-{number:03}"
        run.mkdir(parents=True)
        began = 4e9 if number == 0 else 1e9 + number  # in a year's time; and before this one
        attempts = [attempt | {"started_s": began, "ended_s": began - 5.0, "exit_code": 1}]
        (run / "run.json").write_text(json.dumps(base | {"attempts": attempts}))
    shutil.copytree(folder / "runs" / "base" / "records", tmp_path / "runs" / "run-000" / "records")
    with live_server(tmp_path, "--port", "0") as server:
        found = server.ask("/api/runs").json["runs"]
        assert len(found) == 1000
        assert found[0]["name"] == "run-000"
        assert {run["state"] for run in found} == {"failed"}
        assert "failed" in section_texts(server, "run-000")["attempts"]


def test_the_cost_counts_on_while_a_run_goes_on(folder: Path, server: LiveServer):
    assert server.ask("/runs/base/sections").json["cost"] is None
    group = {"name": "train", "hosts": 2, "instance_type": "g5.xlarge", "role": "training"}
    changed_copy(folder, "paid", {"groups": [group]})
    cost = server.ask("/runs/paid/sections").json["cost"]
    assert cost["usd"] > 0
    assert cost["usd_per_s"] == 0  # it has ended


@pytest.mark.long
def test_a_long_run_is_shown_by_its_totals_and_hosts(folder: Path, server: LiveServer):
    """16 ranks on two hosts for 45 minutes: too many rows to read all of them."""
    path = folder / "runs" / "long"
    sizes = ("--hours", "0.75", "--ranks", "16", "--hosts", "2", "--cores", "4")
    subprocess.run([sys.executable, str(GENERATE), str(path), *sizes], check=True, timeout=240)
    shown = section_texts(server, "long")["verdict"]
    assert "The run is long" in shown
    assert "Of the whole run, made when it ended: GPUs wait" in shown
    heatmap = read_chart(server, "/runs/long/charts/heatmap")
    assert [(band["host"], band["title"], len(band["rows"])) for band in heatmap["bands"]] == [
        (f"train · node-{host}", kind, rows)
        for host in (0, 1)
        for kind, rows in (("ranks", 8), ("GPUs", 8), ("workers", 32), ("cores", 4))
    ]
    whole = read_chart(server, "/runs/long/charts/timeline")
    assert sum(whole["rows"][0]["count"]) == 0.75 * 3600 * 2
    part = read_chart(server, "/runs/long/charts/timeline?from=1200&to=1210")
    assert sum(part["rows"][0]["count"]) in range(20, 23)  # row by row


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/runs/none", 404, "no run 'none'"),
        ("/runs/none/events", 404, "no run 'none"),
        ("/runs/linked", 404, "no run 'linked'"),
        ("/runs/..%2f..%2fetc", 404, "no run"),
        ("/runs/base/../../outside/secret", 404, "There is no"),
        ("/runs/%2e%2e/outside/secret/sections", 404, "no run"),
        ("/runs/base%00/sections", 404, "no run"),
        ("/runs//etc/passwd", 404, "no run"),
        ("/static/..%2fdocument.py", 404, ""),
        ("/static/page.py", 404, "no such file"),
        ("/runs/base/charts/none", 404, "no chart 'none'"),
        ("/runs/base/charts/heatmap?from=3&to=1", 404, "`from` before `to`"),
        ("/runs/base/charts/heatmap?from=nan&to=1", 404, "`from` before `to`"),
        ("/runs/base/charts/heatmap?from=0&to=inf", 404, "`from` before `to`"),
        ("/runs/base/charts/heatmap?columns=-1", 404, "whole number"),
        ("/runs/base/charts/heatmap?columns=0", 404, "whole number"),
        ("/runs/base/sections?from=x&to=", 404, "`from` before `to`"),
        ("/runs/base/logs/attempt-1/passwd", 404, "no log"),
        ("/runs/base/logs/..%2f..%2frun.json", 404, "no log"),
        ("/runs/base/logs/%2fetc%2fpasswd", 404, "no log"),
        ("/compare?run=base", 400, "two to"),
        ("/compare?run=base&run=base", 400, "two to"),
        ("/nothing", 404, "Not Found"),
        ("/api/comparison?run=base&run=none", 404, "no run 'none'"),
        ("/runs/base/stop", 404, "no stop"),
        ("/runs/base/nothing", 404, "no nothing"),
        ("/compare?run=base&run=none", 404, "no run 'none'"),
    ],
)
def test_what_is_not_there_is_said_and_nothing_else_is_shown(
    server: LiveServer, path: str, status: int, said: str
):
    answer = server.ask(path)
    assert answer.status == status
    assert said in answer.body.decode()
    assert b"root:" not in answer.body
    assert b"Traceback" not in answer.body


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": ""},
        {"Host": "[::1"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://["},
        {"Origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/page.js", "/runs/base/events"])
def test_other_sites_get_nothing_by_any_path(
    server: LiveServer, path: str, headers: dict[str, str]
):
    answer = server.ask(path, **headers)
    assert answer.status == 403
    assert b"base" not in answer.body


def test_changes_come_from_the_page_alone(server: LiveServer):
    for headers in (
        {},
        {"X_Headrace": "1"},
        {"Origin": server.origin},
        {"Origin": "http://evil.example", "X_Headrace": "1"},
    ):
        for path in ("/runs/base/stop", "/runs/base/resume", "/runs/base/switch"):
            assert server.ask(path, "POST", {}, **headers).status == 403
    assert server.ask("/runs/base/stop").status == 404
    refused = server.change("/runs/base/stop")
    assert refused.status == 404
    assert "not running on this host" in refused.json["error"]


def test_the_page_answers_under_a_forwarded_port_of_localhost(server: LiveServer):
    assert server.ask("/api/runs", Host="localhost:9999").status == 200


def test_what_is_not_there_is_a_page_for_a_browser_with_the_way_to_all_runs(server: LiveServer):
    for path in ("/runs/nope", "/compare?run=base&run=nope"):
        answer = server.ask(path, Accept="text/html,*/*")
        page = Page(answer.body.decode())
        assert answer.status == 404
        assert "There is no run 'nope'" in page.text
        assert ("a", "/") in [(tag, attributes.get("href")) for tag, attributes in page.elements]


def test_runs_are_compared_once_for_all_viewers(folder: Path, server: LiveServer):
    shutil.copytree(folder / "runs" / "base", folder / "runs" / "same", symlinks=True)
    path = "/api/comparison?run=base&run=same"
    first = server.ask(path).json
    assert [each["id"] for each in first["sections"]][:1] == ["runs"]
    assert "1.00x" in first["sections"][0]["html"]
    assert first["subtitle"] == ""  # neither goes on
    assert server.ask(path).json == first
    shutil.rmtree(folder / "runs" / "same" / "records")
    assert "no records" in server.ask(path).json["sections"][0]["html"]
    shutil.rmtree(folder / "runs" / "same")


COMPARED = "/api/comparison?run=short&run=base&run=third"


def compared_texts(server: LiveServer, path: str = COMPARED) -> dict[str, str]:
    answer = server.ask(path)
    assert answer.status == 200, answer.body
    return {each["id"]: Page(each["html"]).text for each in answer.json["sections"]}


def test_a_run_that_cannot_be_compared_keeps_no_others_from_it(folder: Path, server: LiveServer):
    made = [shutil.copytree(folder / "runs" / "base", folder / "runs" / name, symlinks=True)
            for name in ("short", "third")]  # fmt: skip
    steps = made[0] / "records" / "attempt-1" / "steps.parquet"
    pq.write_table(pq.read_table(steps).slice(0, 5), steps)
    found = compared_texts(server)
    assert "short is left out: short has 3 training steps after its warm-up" in found["runs"]
    assert "None is faster than base beyond noise." in found["runs"]
    assert "third" in found["runs"]
    assert {"phases", "timelines", "heatmaps"} <= found.keys()
    shutil.rmtree(made[0] / "records")
    os.utime(made[0] / "run.json", (1, 1))
    assert "short is left out: " in (text := compared_texts(server)["runs"])
    assert "short has no records" in text
    assert "None is faster than base beyond noise." in text
    alone = compared_texts(server, "/api/comparison?run=short&run=base")
    assert "short is left out: " in alone["runs"]
    assert "phases" not in alone
    for run in made:
        shutil.rmtree(run)


def test_metrics_that_could_not_be_read_are_read_again(folder: Path, server: LiveServer):
    run = folder / "runs" / "unread"
    shutil.copytree(folder / "runs" / "base", run, symlinks=True)
    (run / "experiment").mkdir(exist_ok=True)
    target = run / "experiment" / "target.json"
    target.write_text("{")
    path, said = "/api/comparison?run=base&run=unread", "Where unread is tracked cannot be read"
    assert said in compared_texts(server, path)["runs"]
    target.unlink()
    eventually(lambda: said not in compared_texts(server, path)["runs"], "a new comparison", 60)
    target.write_text("{")
    assert said not in compared_texts(server, path)["runs"]  # an ended run is not read again,
    (run / "experiment" / "sent.json").write_text("{}")
    assert said in compared_texts(server, path)["runs"]  # but as more of it was sent
    shutil.rmtree(run)


def test_numbers_of_a_run_that_may_go_on_elsewhere_are_of_a_moment(
    folder: Path, server: LiveServer
):
    launcher = {"host": "elsewhere", "pid": 1, "began_s": 0.0}
    run = changed_copy(
        folder, "elsewhere", {"launcher": launcher, "exit_code": None, "ended_s": None}
    )
    found = server.ask("/api/comparison?run=base&run=elsewhere").json["subtitle"]
    assert re.match(r"Numbers as of [-\d]+ [:\d]+ UTC: not all of the runs have ended$", found)
    shutil.rmtree(run)


def test_logs_are_listed_searched_and_cut(server: LiveServer):
    names = [file["name"] for file in server.ask("/runs/base/logs").json["files"]]
    assert "attempt-1/rank-0.stdout" in names
    assert not [name for name in names if "passwd" in name]
    found = server.ask("/runs/base/logs/attempt-1/rank-0.stdout?query=FIRST").json
    assert found["matches"] == 1
    assert found["lines"][0].startswith("the first line")
    assert server.ask("/runs/base/logs/attempt-1/rank-0.stdout?query=none").json["lines"] == []


def test_the_logs_of_the_ranks_started_last_come_first(folder: Path, server: LiveServer):
    run = changed_copy(folder, "restarted", {"exit_code": 1}, {"exit_code": 0})
    in_order = [
        f"{start}/{file}"
        for start in (
            "attempt-10", "attempt-2/restart-10", "attempt-2/restart-2", "attempt-2/restart-1",
            "attempt-2",
        )
        for file in (
            "rank-0.stdout", "rank-2.stdout", "rank-10.stdout", "rank-100.stdout",
            "rank-0.stderr", "rank-10.stderr",
        )
    ]  # fmt: skip
    for name in sorted(in_order):
        log = run / "logs" / name
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(name)
    listed = [file["name"] for file in server.ask("/runs/restarted/logs").json["files"]]
    assert [name for name in listed if not name.startswith("attempt-1/")] == in_order
    of_second = server.ask("/runs/restarted/logs?attempt=2").json["files"]
    assert [file["name"] for file in of_second] == in_order[6:]
    shutil.rmtree(run)


def test_hidden_files_are_no_logs(folder: Path, server: LiveServer):
    logs = folder / "runs" / "base" / "logs"
    hidden = (logs / ".headrace-mark", logs / "attempt-1" / ".headrace-mark")
    for file in hidden:
        file.write_text("a mark")
    names = [file["name"] for file in server.ask("/runs/base/logs").json["files"]]
    assert "attempt-1/rank-0.stdout" in names
    assert not [name for name in names if "mark" in name]
    assert server.ask("/runs/base/logs/attempt-1/.headrace-mark").status == 404
    for file in hidden:
        file.unlink()


def test_long_lines_are_cut_around_what_is_searched_and_colours_left_out(
    folder: Path, server: LiveServer
):
    log = folder / "runs" / "base" / "logs" / "attempt-1" / "wide.log"
    link = "\x1b]8;;http://h\x1b\\linked\x1b]8;;\x07"
    reset = "\x1b(B\x1b]R\x1bc"  # as tput has them, one of them without an end
    log.write_text(f"{reset}\x1b[1;31mer\x1b[0mror\x1b[K {link}\n{'a' * 9000}needle{'b' * 9000}\n")
    read = f"/runs/base/logs/attempt-1/{log.name}"
    first, second = server.ask(read).json["lines"]
    assert first == "error linked"
    assert second == f"{'a' * 2000} ... [16,006 characters]"
    assert server.ask(f"{read}?query=ERROR").json["lines"] == ["error linked"]
    (found,) = server.ask(f"{read}?query=needle").json["lines"]
    assert found.startswith("[8,000 characters] ... aaa")
    assert "needle" in found
    assert found.endswith("bbb ... [8,006 characters]")
    log.unlink()


def test_of_a_long_log_it_is_said_how_much_was_searched(folder: Path, server: LiveServer):
    log = folder / "runs" / "base" / "logs" / "attempt-1" / "long.log"
    log.write_text("needle\n" + "hay\n" * 1_500_000)
    found = server.ask("/runs/base/logs/attempt-1/long.log?query=needle").json
    log.unlink()
    assert found == {"lines": [], "matches": 0, "size": 6_000_007, "searched": 4 << 20}


WRONG_CHANGES: tuple[dict[str, object], ...] = (
    {"interval_s": 0}, {"deep_s": 10**400}, {"deep_s": "x"}, {"recording": 1}, {"other": 1},
)  # fmt: skip


def test_a_running_job_is_followed_switched_and_stopped(folder: Path, server: LiveServer):
    arguments = ("--name", "going", "train.py", "600")
    os.environ["PYTHONPATH"] = str(SCRIPTS)
    try:
        with started(folder, *arguments) as job:
            eventually(lambda: state_of(server, "going") == "running", "the run in the list")
            first = eventually(lambda: steps_shown(server), "its first steps")
            eventually(lambda: steps_shown(server) > first, "more steps")
            switch = server.ask("/runs/going/switch").json
            assert switch["recording"]
            changed = server.change("/runs/going/switch", {"interval_s": 2.0, "recording": False})
            assert (changed.json["interval_s"], changed.json["recording"]) == (2.0, False)
            with events_of(server, "going") as stream:  # of other viewers
                state = json.loads(next_event(stream, b"event: changed"))
                assert state["recording"] == [False, False, 2.0, 1]
                LiveSwitch(folder / "runs" / "going" / "records" / "attempt-1").interval_s = 1.0
                while json.loads(next_event(stream, b"event: changed"))["recording"][2] != 1.0:
                    pass
            assert server.change("/runs/going/switch", {"deep_s": 20}).json["deep"]
            for wrong in WRONG_CHANGES:
                answer = server.change("/runs/going/switch", wrong)
                assert answer.status == 404
                assert "cannot be" in answer.json["error"]
            assert server.change("/runs/going/stop").json["done"] == "going was stopped."
            job.wait(60)
    finally:
        del os.environ["PYTHONPATH"]
    eventually(lambda: state_of(server, "going") == "stopped", "its end in the list")


def test_a_job_without_recording_can_be_stopped_and_says_why_nothing_is_switched(
    folder: Path, server: LiveServer
):
    os.environ["PYTHONPATH"] = str(SCRIPTS)
    try:
        with started(folder, "--name", "unrecorded", "--profile", "off", "train.py", "600") as job:
            eventually(lambda: state_of(server, "unrecorded") == "running", "the run in the list")
            found = server.ask("/runs/unrecorded/switch").json
            assert "was started with --profile off" in found["why"]
            assert (found["running"], found["stoppable"], "recording" in found) == (
                True, True, False,
            )  # fmt: skip
            refused = server.change("/runs/unrecorded/switch", {"recording": True})
            assert (refused.status, refused.json["error"]) == (409, found["why"])
            with events_of(server, "unrecorded") as stream:
                state = json.loads(next_event(stream, b"event: changed"))
            assert state["fault"] == found["why"]
            server.change("/runs/unrecorded/stop")
            job.wait(60)
    finally:
        del os.environ["PYTHONPATH"]


def test_recording_on_another_host_is_changed_there(folder: Path, server: LiveServer):
    launcher = {"host": "elsewhere", "pid": 1, "began_s": 0.0}
    changed_copy(folder, "distant", {"launcher": launcher, "exit_code": None, "ended_s": None})
    refused = server.change("/runs/distant/switch", {"recording": True})
    assert refused.json["error"] == "distant was started on elsewhere: change its recording there."
    found = server.ask("/runs/distant/switch").json
    assert not found["stoppable"]
    shutil.rmtree(folder / "runs" / "distant")


def state_of(server: LiveServer, name: str) -> str | None:
    runs = runs_of(server)
    return str(runs[name]["state"]) if name in runs else None


def steps_shown(server: LiveServer) -> float:
    """Return the end of the last step that the chart has; 0 without any."""
    answer = server.ask("/runs/going/charts/timeline?columns=2000")
    if answer.status != 200:
        return 0.0
    ends = Page(f'<script type="application/json" id="model-x">{answer.body.decode()}</script>')
    return max(ends.charts["x"]["rows"][0]["end_s"], default=0.0)


def test_events_have_new_records_and_the_removal_of_a_run(folder: Path, server: LiveServer):
    copy = folder / "runs" / "copy"
    shutil.copytree(folder / "runs" / "base", copy, symlinks=True)
    with events_of(server, "copy") as stream:
        while not (state := json.loads(next_event(stream, b"event: changed")))["sections"]:
            pass
        assert (state["state"], state["attempt"], state["fault"]) == ("done", 1, "")
        assert state["now_s"] > 0
        shutil.rmtree(copy)
        assert "was removed" in json.loads(next_event(stream, b"event: gone"))["error"]
        assert stream.read().strip() in {b"", b"0"}  # it ends
    answer = server.ask("/runs/copy/charts/timeline")
    assert (answer.status, answer.json["removed"]) == (404, True)
    assert server.ask("/runs/never/charts/timeline").json["removed"] is False
    assert server.ask("/runs/copy").status == 404


def test_why_a_verdict_cannot_be_made_is_said_after_the_next_look_too(
    folder: Path, server: LiveServer
):
    copy = folder / "runs" / "undiagnosed"
    shutil.copytree(folder / "runs" / "base", copy, symlinks=True)
    (copy / "records" / "attempt-1" / "transforms.parquet").write_bytes(b"damaged")
    with events_of(server, "undiagnosed") as stream:
        while not (state := json.loads(next_event(stream, b"event: changed")))["fault"]:
            pass
        os.utime(copy / "run.json", (1, 1))  # then the run is read again
        while (again := json.loads(next_event(stream, b"event: changed")))["records"] < 2:
            pass
    for said in (state["fault"], again["fault"]):
        assert "transforms.parquet cannot be read" in said
    answer = server.ask("/runs/undiagnosed/sections")
    assert (answer.status, "transforms.parquet" in answer.json["error"]) == (409, True)
    shutil.rmtree(copy)


def test_the_lists_events_have_all_runs_and_then_those_that_change(
    folder: Path, server: LiveServer
):
    with events_of(server) as stream:
        everything = json.loads(next_event(stream, b"event: runs"))
        assert {run["name"] for run in everything["runs"]} >= {"base"}
        copy = changed_copy(folder, "appearing", {"argv": ["appearing.py"]})
        try:
            found, run = changes_of(stream, "appearing")
            assert found["gone"] == []
            assert found["now_unix_s"] > everything["now_unix_s"]
            while run["script"] != "appearing.py":  # it was looked at while it was copied
                found, run = changes_of(stream, "appearing")
        finally:
            shutil.rmtree(copy)
        while "appearing" not in found["gone"]:
            found = json.loads(next_event(stream, b"event: changes"))
    with events_of(server) as stream:  # of a viewer that comes later
        names = {run["name"] for run in json.loads(next_event(stream, b"event: runs"))["runs"]}
    assert "base" in names
    assert "appearing" not in names


def changes_of(stream: BinaryIO, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the next changes that hold a run, and the run; others may change meanwhile."""
    while True:
        found: dict[str, Any] = json.loads(next_event(stream, b"event: changes"))
        for run in found["changed"]:
            if run["name"] == name:
                return found, run


def runs_of(server: LiveServer) -> dict[str, dict[str, Any]]:
    return {run["name"]: run for run in server.ask("/api/runs").json["runs"]}


def test_a_browser_needs_the_token_which_moves_into_a_cookie(folder: Path, server: LiveServer):
    token = server.token
    assert len(token) >= 32
    assert server.ask("/", Cookie="").status == 403
    assert "is missing" in server.ask("/api/runs", Cookie="").body.decode()
    assert "is wrong" in server.ask(f"/?token={token[:-1]}", Cookie="").body.decode()
    assert server.ask("/api/runs", Cookie=f"{server.cookie}x").status == 403
    moved = server.ask(f"/runs/a%23b?token={token}&x=1", Cookie="")
    assert moved.status == 200
    assert b'content="0; url=/runs/a%23b?x=1"' in moved.body
    assert token.encode() not in moved.body
    cookie = moved.headers["set-cookie"]
    assert re.search("httponly", cookie, re.IGNORECASE)
    assert re.search("samesite=strict", cookie, re.IGNORECASE)
    assert server.ask("/api/runs", Cookie=cookie.partition(";")[0]).status == 200
    injected = server.ask(f'/"><script>x</script>?token={token}'.replace(" ", ""), Cookie="")
    assert b"<script>" not in injected.body


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.2"])  # noqa: S104
def test_other_addresses_answer_at_the_url_that_is_printed(folder: Path, address: str):
    with live_server(folder, "--bind", address, "--port", "0") as server:
        port = server.netloc.rpartition(":")[2]
        if address == "127.0.0.2":
            assert server.ask("/api/runs").status == 200
        else:
            assert server.netloc.partition(":")[0] == socket.gethostname()
            url = server.url.replace(server.netloc, f"127.0.0.1:{port}")
            here = LiveServer(url, server.process)
            assert here.ask("/api/runs").status == 200
            assert here.ask("/api/runs", Cookie="").status == 403
            refused = here.ask("/api/runs", Host="evil.example", Origin="http://evil.example")
            assert refused.status == 403
            assert "--allow-host" in refused.body.decode()


def test_further_names_of_the_host_are_taken_where_they_are_given(folder: Path):
    with live_server(folder, "--allow-host", "GPU.example", "--port", "0") as server:
        assert server.ask("/api/runs", Host="gpu.example:80").status == 200
        assert server.ask("/api/runs", Host="other.example").status == 403


def test_a_browser_is_opened_without_the_token_among_its_arguments(folder: Path, tmp_path: Path):
    opened = tmp_path / "opened"
    program = tmp_path / "xdg-open"
    program.write_text(
        f'#!/bin/sh\n(echo "$@"; cat "${{1#file://}}") > {opened}.new\nmv {opened}.new {opened}\n'
    )
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    with live_server(folder, "--open", "--port", "0", PATH=path) as server:
        eventually(opened.exists, "the browser")
        arguments, page = opened.read_text().split("\n", 1)
        assert server.token not in arguments
        assert f"url={server.url}" in page
        file = Path(arguments.strip().removeprefix("file://"))
        assert file.parent.stat().st_mode & 0o077 == 0
    assert not file.exists()


def test_damaged_runs_are_listed_with_what_is_wrong_and_spoil_no_others(
    folder: Path, server: LiveServer
):
    entry = json.loads((folder / "runs" / "base" / "run.json").read_text())
    damages = {
        "launcher": lambda attempt: attempt | {"launcher": {"pid": 1}, "exit_code": None},
        "argv": lambda attempt: attempt | {"argv": [5]},
        "started": lambda attempt: attempt | {"started_s": "x"},
        "surrogate": lambda attempt: attempt | {"argv": ["\udcff.py"]},
    }
    made = []
    for name, damage in damages.items():
        made.append(folder / "runs" / f"damaged {name} #%?")
        made[-1].mkdir()
        text = json.dumps({**entry, "attempts": [damage(entry["attempts"][0])]})
        (made[-1] / "run.json").write_text(text)
    made.append(folder / "runs" / "newer")
    shutil.copytree(folder / "runs" / "base", made[-1], symlinks=True)
    (made[-1] / "diagnosis.json").write_text('{"verdict": {"data_wait_share": NaN}}')
    (made[-1] / "run.json").write_text(json.dumps({**entry, "version": 99}))
    made.append(folder / "runs" / os.fsdecode(b"not \xff text"))
    shutil.copytree(folder / "runs" / "base", made[-1], symlinks=True)
    try:
        listed = eventually(lambda: found_in(server, len(made)), "all in the list")
        assert listed["base"]["state"] == "done"
        assert "newer Headrace" in listed["newer"]["fault"]
        with events_of(server, "newer") as stream:  # its own page says so, too
            while (
                "newer Headrace" not in json.loads(next_event(stream, b"event: changed"))["fault"]
            ):
                pass
        assert all(listed[f"damaged {name} #%?"]["fault"] for name in ("launcher", "started"))
        assert server.ask("/runs/damaged%20launcher%20%23%25%3F/sections").status in {404, 409}
        assert server.ask(f"/runs/not%20{'%EF%BF%BD'}%20text/sections").status == 200
        assert server.ask("/runs/base/sections").status == 200
    finally:
        for path in made:
            shutil.rmtree(path)


def found_in(server: LiveServer, damaged: int) -> dict[str, dict[str, object]] | None:
    runs = runs_of(server)
    return runs if len(runs) > damaged else None


def test_runs_may_be_called_as_parts_of_a_page_are(folder: Path, server: LiveServer):
    for name in ("events", "charts", "logs"):
        shutil.copytree(folder / "runs" / "base", folder / "runs" / "sweep" / name, symlinks=True)
    try:
        for name in ("events", "charts", "logs"):
            assert server.ask(f"/runs/sweep/{name}/sections").status == 200
            assert server.ask(f"/runs/sweep/{name}/charts/heatmap").status == 200
            assert b"<h1>sweep/" in server.ask(f"/runs/sweep/{name}").body
    finally:
        shutil.rmtree(folder / "runs" / "sweep")


def test_a_folder_of_logs_that_leads_elsewhere_is_not_read(folder: Path, server: LiveServer):
    run = folder / "runs" / "leads"
    shutil.copytree(folder / "runs" / "base", run, symlinks=True)
    shutil.rmtree(run / "logs")
    (run / "logs").symlink_to("/etc")
    try:
        assert server.ask("/runs/leads/logs").json == {"files": []}
        assert server.ask("/runs/leads/logs/passwd").status == 404
    finally:
        shutil.rmtree(run)


def test_ctrl_c_ends_the_server_while_requests_are_under_way(folder: Path):
    with ExitStack() as clients:
        with live_server(folder, "--port", "0") as server:
            address = tuple(server.netloc.split(":"))
            half = clients.enter_context(socket.create_connection(address, 60))
            half.sendall(
                f"POST /runs/base/switch HTTP/1.1\r\nHost: {server.netloc}\r\n"
                f"Origin: {server.origin}\r\nX-Headrace: 1\r\nCookie: {server.cookie}\r\n"
                "Content-Length: 100\r\n\r\n{".encode()
            )
            events = clients.enter_context(events_of(server, "base"))
            next_event(events, b"event: changed")
        assert b" 503 " in half.recv(1000).partition(b"\r\n")[0]


def test_a_port_in_use_is_replaced_by_the_next_free_one(folder: Path, server: LiveServer):
    port = server.netloc.rpartition(":")[2]
    with live_server(folder, "--port", port) as other:
        assert other.netloc != server.netloc
        assert other.ask("/api/runs").status == 200
        assert f"Port {port} is in use" in (folder / "live.out").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "There is no run 'nothing'"),
        (["--bind", "example.com"], "give an IP address"),
        (["--bind", "203.0.113.9"], "--bind 203.0.113.9"),
        (["--output", "x.html"], "give one of them"),
        (["--port", "70000"], "65535"),
        (["--port", "-1"], "equal to 0"),
    ],
)
def test_wrong_arguments_are_one_sentence(folder: Path, arguments: list[str], said: str):
    done = subprocess.run(
        [*headrace("report", "--live"), *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
