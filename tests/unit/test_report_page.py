"""The page of a run: complete, safe against names as HTML, its numbers formatted."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.whatif.tables import CachedTables
from headrace.records.run_folder import Attempt
from headrace.report.charts.base import MAX_COLUMNS, ChartSpan, chart_json, time_axis
from headrace.report.charts.flame import flame_chart
from headrace.report.charts.heatmap import UNKNOWN_PERCENT, heatmap_chart
from headrace.report.charts.phases import phases_chart
from headrace.report.charts.steps import steps_chart
from headrace.report.charts.waits import waits_chart
from headrace.report.formatting import format_fact, format_share
from headrace.report.markup import Html, element, table
from headrace.report.page import SECTIONS, PageData, page_of
from headrace.report.sections.diagnosis import read_excerpt
from pages import Page, check_alone
from run_tables import AUGMENT, MS, PIL, WORKER_LOOP, Run, RunTables, play

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"
SLOW = Run(
    workers=2,
    service_ms=50,
    cores=2,
    busy_cores=1.9,
    worker_stacks=[(f"{WORKER_LOOP}\n{AUGMENT}:31:RandomBlur.__call__\n{PIL}:80:filter", 0.8, 1.0)],
    rank_stacks=[("/home/ann/train.py:44:main", "forward", 0.5, 1.0)],
    transforms=[("transform[0]: RandomBlur", AUGMENT, 30, 0.8)],
)


def material(tables: RunTables, **changes: object) -> PageData:
    known = {
        "name": "a-run", "path": Path("/runs/a-run"), "attempt": 1, "attempts": (),
        "outcome": "succeeded", "outcomes": (),
        "tables": tables, "diagnosis": diagnose(tables), "cost": None, "read_s": time.time(),
    }  # fmt: skip
    return PageData(**{**known, **changes})


def page_about(data: PageData) -> Page:
    return Page(b"".join(page_of(data)).decode())


@pytest.mark.parametrize(
    "run",
    [SLOW, Run(workers=0), Run(loader=False), Run(batches=3), Run(ranks=3, busy_cores=4, epochs=2)],
)
def test_every_kind_of_run_makes_a_whole_page(run: Run):
    page = page_about(material(play(run)))
    check_alone(page)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert sum(tag == "section" for tag, _ in page.elements) == len(SECTIONS) - 4, (
        "nobody helped, no price, one attempt, nothing logged"
    )
    assert "nan" not in page.text.lower().split()
    assert "timeline" in page.charts


def test_nothing_recorded_makes_a_page_that_says_so():
    page = page_about(material(RunTables()))
    check_alone(page)
    assert page.charts == {}
    assert "No step was recorded" in page.text
    assert "No data loader was seen" in page.text


def test_a_run_that_evaluates_for_half_of_its_time_says_so():
    tables = play(Run(workers=4, service_ms=8))
    for row in tables.rows["steps"][60:]:
        row.update(kind="eval", loader=1)
    page = page_about(material(tables))
    assert "What the run spends its time on" in page.text
    assert "evaluation" in page.text


def test_a_run_without_an_optimizer_has_a_chart_of_its_batches():
    tables = play(Run(workers=4, service_ms=8))
    for row in tables.rows["steps"]:
        row.update(kind="eval")
    page = page_about(material(tables))
    assert "What a batch spends its time on" in page.text
    assert "phases" in page.charts


def test_findings_have_evidence_cause_and_remedies():
    page = page_about(material(play(SLOW)))
    assert f"{AUGMENT}:31" in page.text
    assert "Evidence" in page.text
    assert "What would help" in page.text
    assert "svg" in page.tags


def test_hostile_names_are_text():
    tables = play(
        Run(
            workers=1, service_ms=60, cores=2,
            worker_stacks=[(f"{WORKER_LOOP}\n/home/{HOSTILE}.py:3:{HOSTILE}", 0.9, 1.0)],
            transforms=[(f"transform[0]: {HOSTILE}", HOSTILE, 3, 0.8)],
        )
    )  # fmt: skip
    tables.add("events", kind=HOSTILE, text=HOSTILE, value=1.0)
    tables.rows["hosts"][0]["host"] = HOSTILE
    for loader in tables.rows["loaders"]:
        loader |= {"kind": HOSTILE, "dataset": HOSTILE, "file": HOSTILE, "start_method": HOSTILE}
    attempt = Attempt(
        number=1, command=(HOSTILE,), argv=(HOSTILE,), world_size=1, started_s=1.0,
        versions={HOSTILE: HOSTILE},
    )  # fmt: skip
    known = material(
        tables, name=HOSTILE, path=Path(f"/runs/{HOSTILE}"), attempts=(attempt,), outcome="killed",
        outcomes=("killed",),
    )  # fmt: skip
    page = page_about(known)
    check_alone(page)
    assert page.text.count(HOSTILE) > 5
    assert any(HOSTILE in box["name"] for box in boxes(page.charts["flame-workers"]["root"]))


def boxes(box: dict[str, Any]) -> list[dict[str, Any]]:
    return [box, *(found for below in box["below"] for found in boxes(below))]


def test_a_long_run_has_few_columns_and_still_shows_its_one_stall():
    tables = play(Run(batches=3000, service_ms=1, workers=4))
    stalled = tables.rows["steps"][1777]
    stalled["data_wait_ns"] += 80 * MS
    stalled["wall_ns"] += 80 * MS
    drawn = steps_chart(tables)
    waits_ms = drawn.rows[0].parts[[phase.name for phase in drawn.phases].index("data wait")]
    assert len(waits_ms) <= MAX_COLUMNS
    assert waits_ms.max() >= 80
    assert drawn.rows[0].wall_ms.max() >= 80
    assert drawn.rows[0].count.sum() == 3000
    ranks = heatmap_chart(tables).bands[0]
    assert ranks.rows == ("rank 0",)
    assert ranks.values.shape[1] <= MAX_COLUMNS
    assert ranks.values.min() < 20


@pytest.mark.parametrize(
    ("changes", "said"), [({}, True), ({"of_a_span": True}, False), ({"part": "its end"}, False)]
)
def test_only_a_page_about_all_of_the_time_tells_of_the_axes(changes: dict[str, Any], said: bool):
    tables = play(Run(batches=120, service_ms=1, workers=4))
    tables.rows["steps"][77]["other_ns"] += 900 * MS
    tables.rows["steps"][77]["wall_ns"] += 900 * MS
    tables.system = {"t_ns": [3600 * 1000 * MS]}  # long after the last step
    text = page_about(replace(material(play(Run(batches=30))), tables=tables, **changes)).text
    above = "1 step reached above the top, as arrows there show; the longest took"
    assert (above in text) == said
    assert ("after the last step is left out at first" in text) == said
    assert "to see them whole" not in text


def test_timeline_phases_add_up_to_the_step():
    tables = play(Run(batches=40))
    (row,) = steps_chart(tables).rows
    np.testing.assert_allclose(sum(row.parts), row.wall_ms, rtol=1e-3)
    walls = [each["wall_ns"] / 1e6 for each in tables.rows["steps"]]
    np.testing.assert_allclose(sorted(row.wall_ms), sorted(walls), rtol=1e-3)


def test_a_span_shows_what_reaches_into_it_and_its_stall():
    tables = play(Run(batches=3000, service_ms=1, workers=4))
    stalled = tables.rows["steps"][1777]
    stalled["data_wait_ns"] += 80 * MS
    stalled["wall_ns"] += 80 * MS
    axis = time_axis(tables)
    begin_s = axis.seconds(stalled["start_ns"])
    span = ChartSpan.of(axis, (begin_s + 0.01, begin_s + 0.02), 100)
    (row,) = steps_chart(tables, span).rows
    assert row.wall_ms.max() >= 80
    assert row.count.sum() < 100
    drawn = heatmap_chart(tables, span)
    assert (drawn.span, drawn.columns) == (span.seconds, 100)
    assert drawn.limits == axis.limits
    known = drawn.bands[0].values[drawn.bands[0].values != UNKNOWN_PERCENT]
    assert known.max() < 20


@pytest.mark.parametrize(
    ("ranks", "left_out"),
    [(64, ""), (65, "1 more {} is left out."), (70, "6 more {}s are left out.")],
)
def test_ranks_and_loaders_are_not_left_out_without_a_word(ranks: int, left_out: str):
    tables = CachedTables(play(Run(ranks=ranks, batches=30, workers=2)))
    # The diagnosis of few ranks takes less time, and is of no account here.
    page = page_about(replace(material(play(Run(batches=30))), tables=tables))
    assert len(page.charts["phases"]["rows"]) == 64
    for noun in ("rank", "loader"):
        if left_out:
            assert left_out.format(noun) in page.text
        assert (f"{noun} is left out" in page.text) == (ranks == 65)
        assert (f"{noun}s are left out" in page.text) == (ranks == 70)
    described = [attributes.get("aria-label", "") for _, attributes in page.elements]
    bars = "a bar for each of the first 64 ranks" if left_out else "a bar for each rank"
    assert any(text.endswith(bars) for text in described)
    of = f", the first 64 of {ranks} ranks" if left_out else ""
    assert page.charts["phases"]["x_title"] == f"mean time of a step (ms){of}"


@pytest.mark.parametrize(("workers", "said"), [(40, ""), (41, ", the first 400 of 410")])
def test_rows_of_the_heatmap_are_not_left_out_without_a_word(workers: int, said: str):
    tables = play(Run(ranks=10, batches=workers, workers=workers))
    bands = {band.title: band for band in heatmap_chart(tables).bands}
    assert {title for title in bands if title.startswith("workers")} == {f"workers{said}"}
    assert len(bands[f"workers{said}"].rows) == len(bands[f"workers{said}"].values) == 400
    assert len(bands["ranks"].rows) == 10


def test_transforms_of_auxiliary_hosts_are_not_left_out_without_a_word():
    tables = play(Run())
    data = material(tables)
    tables.add("arrivals", rank=0, loader=0, host="aux", wall_ns=MS, counted=1)
    for number in range(130):
        tables.add("auxiliary_transforms", host="aux", name=f"transform {number:03}", calls=1)
    text = page_about(data).text
    assert "2 more are left out." in text
    assert "transform 127" in text
    assert "transform 128" not in text


def test_hosts_of_one_name_are_apart_in_the_heatmap():
    tables = play(Run(ranks=2))
    tables.rows["hosts"][0]["number"] = 0
    tables.add("hosts", host="one", cores=2, memory_bytes=2**36, attempt=1, number=1)
    for row in tables.rows["processes"]:
        row["host"] = row["rank"]
    found = {
        (each.host, each.rows) for each in heatmap_chart(tables).bands if each.title == "ranks"
    }
    assert found == {("one (0)", ("rank 0",)), ("one (1)", ("rank 1",))}


@pytest.mark.parametrize("hosts", [1, 2])
def test_workers_of_ranks_that_have_no_step_so_far_are_in_the_heatmap(hosts: int):
    tables = play(Run(ranks=2, workers=2))
    for number in range(1, hosts):
        tables.add("hosts", host="two", cores=2, memory_bytes=2**36, attempt=1, number=number)
        for row in tables.rows["processes"]:
            row["host"] = row["rank"]
    tables.rows["steps"] = [row for row in tables.rows["steps"] if row["rank"] == 0]
    found = [(each.host, each.title, each.rows) for each in heatmap_chart(tables).bands]
    names = [tuple(f"rank {rank} worker {worker}" for worker in (0, 1)) for rank in (0, 1)]
    if hosts == 1:
        assert found == [("", "ranks", ("rank 0",)), ("", "workers", names[0] + names[1])]
    else:
        assert found == [
            ("one", "ranks", ("rank 0",)), ("one", "workers", names[0]),
            ("two", "workers", names[1]),
        ]  # fmt: skip
    tables.rows["steps"] = []
    assert [each.title for each in heatmap_chart(tables).bands] == ["workers"] * hosts


def test_of_a_host_that_came_later_nothing_is_known_before():
    tables = play(Run(ranks=1))
    tables.add("hosts", host="two", cores=1, memory_bytes=2**36, attempt=1, number=1)
    ticks = [(at_ms, host) for at_ms in range(0, 10_001, 100) for host in (0, 1)]
    ticks = [(at_ms, host) for at_ms, host in ticks if host == 0 or at_ms >= 5000]
    tables.system = {
        "t_ns": [at_ms * MS for at_ms, _ in ticks],
        "host": [host for _, host in ticks],
        "core_0_percent": [50.0] * len(ticks),
    }
    drawn = heatmap_chart(tables)
    begin, end = drawn.span
    middles_s = begin + (np.arange(drawn.columns) + 0.5) * (end - begin) / drawn.columns
    began_s = time_axis(tables).began_ns / 1e9
    cores = {each.host: each.values[0] for each in drawn.bands if each.title == "cores"}
    assert (cores["one"] == 50).all()
    assert (cores["two"][middles_s + began_s < 4.7] == UNKNOWN_PERCENT).all()
    assert (cores["two"][middles_s + began_s > 4.9] == 50).all()


def test_a_heatmap_says_at_which_time_of_day_it_begins():
    tables = play(Run(ranks=1))
    assert heatmap_chart(tables).began_unix_s is None
    tables.rows["hosts"][0]["unix_offset_ns"] = 1_700_000_000 * 10**9
    began_s = time_axis(tables).began_ns / 1e9
    assert heatmap_chart(tables).began_unix_s == pytest.approx(1_700_000_000 + began_s, abs=1e-6)


def test_a_chart_is_plain_json_with_arrays_in_base64():
    tables = play(SLOW)
    for draw in (heatmap_chart, steps_chart, phases_chart, waits_chart, flame_chart):
        chart = draw(tables)
        found = json.loads(chart_json(chart))
        assert found["kind"] == chart.kind
        assert "<" not in chart.kind
    (rank,) = json.loads(chart_json(steps_chart(tables)))["rows"]
    assert rank["wall_ms"]["dtype"] == "float32"


def test_elements_escape_text_and_keep_html():
    assert element("p", "a < b", Html("<br>"), title='"') == '<p title="&quot;">a &lt; b<br></p>'
    assert '<td class="number">&lt;</td>' in table(("a", "b"), [("<", "<")], numbers=1)


@pytest.mark.parametrize(
    ("name", "fact", "printed"),
    [
        ("batch_wall_ms", 12.345, ("Making a batch takes", "12.3 ms")),
        ("data_wait_share", 0.204, ("Step time without data", "20%")),
        ("seconds_to_first_batch", 75.0, ("To first batch", "1 min 15 s")),
        ("growth_mb_per_min", 3.0, ("Growth", "3 MB a minute")),
        ("workers", 4, ("Workers", "4")),
        ("phase", "data_wait", ("Phase", "data wait")),
    ],
)
def test_evidence_is_printed_with_its_unit(name, fact, printed):
    assert format_fact(name, fact) == printed


def test_shares_are_printed_with_two_digits():
    assert [format_share(value) for value in (0, 0.0004, 0.012, 0.5)] == [
        "0%",
        "< 0.1%",
        "1.2%",
        "50%",
    ]


def test_only_python_source_is_shown_and_without_secrets(tmp_path: Path):
    source = tmp_path / "train.py"
    source.write_text(
        "    model = load(size=3, path='/data/x y')\n"
        "API_KEY = 'abc123'; open('s3://ann:abc123@b/x?sig=abc123')\n"
        "login(token='abc123', user=\"ann\")\n"
        "config = {'password': \"abc123\", 'a': 1}\n"
        "client.secret_key = f'abc123\n"
    )
    excerpt = read_excerpt(str(source), 2, began_s=time.time() + 60)
    assert excerpt is not None
    assert (excerpt.first, excerpt.changed) == (1, False)
    assert excerpt.lines[0] == "    model = load(size=3, path='/data/x y')"
    assert excerpt.lines[2] == "login(token='***', user=\"ann\")"
    assert "abc123" not in "".join(excerpt.lines)
    assert read_excerpt(str(source), 2, began_s=1.0).changed
    (tmp_path / "shadow").write_text("secret")
    assert read_excerpt(str(tmp_path / "shadow"), 1, None) is None
    assert read_excerpt(str(source), 9, None) is None
    assert read_excerpt(str(tmp_path / "gone.py"), 1, None) is None
    assert read_excerpt("nul\0.py", 1, None) is None
