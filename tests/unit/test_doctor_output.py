"""A diagnosis as it is shown: its sentence, JSON, report in the terminal, documentation."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from documentation import rules_page
from rich.console import Console

from headrace.cli.doctor_report import print_diagnosis
from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import RULE_SETS, Remedy, RuleSet
from headrace.observe.doctor.rules import RULES
from headrace.report.charts.flame import FlameBox, flame_chart
from json_schemas import check, read_schema
from run_tables import AUGMENT, MS, SCRIPT, WORKER_LOOP, Run, RunTables, play, stack

LOOP = f"{SCRIPT}:50:<module>"


GENERATED = stack(WORKER_LOOP, f"{AUGMENT}:9:Faces.__getitem__", f"{AUGMENT}:None:Noise.__call__")


def sentence(run: Run) -> str:
    return diagnose(play(run)).verdict.sentence


def saving(every: int, batches: int) -> Run:
    save = stack(LOOP, f"{SCRIPT}:115:main", "/venv/lib/python3.11/site-packages/torch/x.py:5:save")
    run = Run(workers=4, service_ms=8, busy_cores=3, batches=batches)
    run.rank_stacks = [(save, "other", 0.2, 0.5)]
    run.outlier_every, run.outlier_ms = every, 43.0
    return run


def test_outliers_say_how_many_of_how_many_and_where():
    text = sentence(saving(every=50, batches=1202))
    assert text.startswith(
        "24 of 1,200 steps take 5.1 times as long as the others (every 50 steps, in main at "
        "train.py:115)"
    )
    assert text.endswith(".")


@pytest.mark.parametrize(("every", "long_of", "steps"), [(10, 23, 238), (20, 11, 238)])
def test_a_slow_step_in_which_an_epoch_begins_is_one_of_them(every: int, long_of: int, steps: int):
    """Its wait for workers that start is no part of it. The first epoch's begin is warm-up."""
    script = Run(workers=2, service_ms=8, busy_cores=3, batches=20, epochs=12, restart_ms=30)
    script.rank_stacks = [(stack(LOOP, f"{SCRIPT}:80:save_grid"), "other", 0.6, 0.5)]
    tables = play(script)
    for row in tables.rows["steps"][::every]:
        row["other_ns"] += 90 * MS
        row["wall_ns"] += 90 * MS
    finding = next(each for each in diagnose(tables).findings if each.rule == "step-outliers")
    assert finding.title.startswith(f"{long_of} of {steps} steps take")
    assert f"(every {every} steps, in save_grid at train.py:80)" in finding.title
    assert finding.seconds_lost == pytest.approx(long_of * 0.09, rel=0.03)


def test_workers_that_start_slowly_make_no_slow_steps():
    tables = play(Run(workers=2, service_ms=8, busy_cores=3, batches=20, epochs=12, restart_ms=300))
    assert "step-outliers" not in [each.rule for each in diagnose(tables).findings]


def test_what_goes_is_reported_as_without():
    text = sentence(saving(every=10, batches=402))
    assert "; without such steps the run would be 1.4 times as fast" in text


def test_outliers_at_no_known_place_are_reported_without_one():
    run = saving(every=50, batches=1202)
    run.rank_stacks = []
    assert "(every 50 steps)" in sentence(run)


@pytest.mark.parametrize(
    ("slow", "is_of_one_time"),
    [
        (range(10, 70), True),  # the host's cores were slower
        ([*range(10, 60), 90, 170, 180], True),  # and a few of the others as well
        (
            sorted({10 + 17 * number % 60 for number in range(21)}),
            True,
        ),  # and those between are slower, too
        (sorted({17 + 13 * number % 180 for number in range(0, 180, 6)}), False),
        (range(10, 17), False),  # few
    ],
    ids=["together", "mostly together", "some of a slow time", "everywhere", "few"],
)
def test_steps_that_are_slow_for_a_time_and_run_the_same_code_are_nothing_to_mend(
    slow: Sequence[int], is_of_one_time: bool
):
    tables = play(Run(workers=2, service_ms=8, busy_cores=1, batches=202))
    steps = sorted(tables.rows["steps"], key=lambda row: row["start_ns"])
    for number, row in enumerate(steps):
        row["start_ns"] += sum(each < number for each in slow) * 30 * MS
        row["start_ns"] += min(max(number - 10, 0), 60) * 4 * MS
        more = 30 * MS if number in slow else 4 * MS if number in range(10, 70) else 0
        row["backward_ns"] += more
        row["wall_ns"] += more
    diagnosis = diagnose(tables)
    finding = next(each for each in diagnosis.findings if each.rule == "step-outliers")
    assert ("ran slower" in finding.title) == is_of_one_time
    assert (finding.severity == "info") == is_of_one_time
    assert bool(finding.remedies) != is_of_one_time
    if is_of_one_time:
        assert "(from step 1" in finding.title


def test_steps_that_are_slow_for_a_time_with_a_line_of_their_own_name_it():
    run = Run(workers=2, service_ms=8, busy_cores=1, batches=202)
    run.rank_stacks = [(stack(LOOP, f"{SCRIPT}:80:mixed_resolution"), "backward", 0.6, 0.5)]
    tables = play(run)
    for row in tables.rows["steps"][10:70]:
        row["backward_ns"] += 30 * MS
        row["wall_ns"] += 30 * MS
    finding = next(each for each in diagnose(tables).findings if each.rule == "step-outliers")
    assert "ran slower" not in finding.title
    assert finding.severity != "info"


def test_code_that_slows_workers_down_is_reported_as_without():
    where = stack(WORKER_LOOP, f"{AUGMENT}:31:RandomBlur.__call__")
    run = Run(workers=2, service_ms=50, cores=2, busy_cores=1.9, worker_stacks=[(where, 0.6, 1.0)])
    run.worker_stacks.append((stack(WORKER_LOOP, f"{AUGMENT}:9:decode"), 0.4, 1.0))
    text = sentence(run)
    assert "RandomBlur at augment.py:31 takes 60% of the workers' time; without RandomBlur" in text
    assert " the run would be 2." in text


def test_a_slow_rank_is_reported_with_what_it_does():
    run = Run(workers=4, service_ms=8, ranks=2, cores=32, busy_cores=8)
    run.slow_rank, run.slow_rank_ms = 1, 5.0
    run.rank_stacks = [(stack(LOOP, f"{SCRIPT}:33:metrics"), "forward", 0.5, 1.0)]
    assert sentence(run).startswith("Rank 1 needs 1.5 times as long for a step as the others: it ")
    assert "computes longer, in metrics at train.py:33" in sentence(run)


def test_a_phase_is_named_in_words():
    run = Run(loader=False)
    run.phases_ms = {**run.phases_ms, "other": 40.0}
    text = sentence(run)
    assert text.endswith("% is outside the model: logging, saving and the like.")


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(1.08, 1.12, "1.1x"), (1.04, 1.12, "1.1x (1.0 to 1.1)"), (None, None, "")],
)
def test_an_interval_whose_ends_read_the_same_is_left_out(
    low: float | None, high: float | None, text: str
):
    speedup = None if low is None else 1.1
    remedy = Remedy(name="a", change="b", how="c", predicted_speedup=speedup, low=low, high=high)
    assert remedy.prediction == text


def test_a_line_that_is_not_known_is_not_shown():
    run = Run(workers=2, service_ms=50, cores=2, busy_cores=1.9)
    run.worker_stacks = [(GENERATED, 1.0, 1.0)]
    diagnosis = diagnose(play(run))
    cause = diagnosis.findings[0].cause
    assert cause is not None
    assert (cause.file, cause.line, cause.name) == (AUGMENT, 0, "Noise")
    assert "Noise at augment.py takes 100% of the workers' time" in diagnosis.verdict.sentence
    text = StringIO()
    print_diagnosis(diagnosis, Console(file=text, width=200, highlight=False))
    assert "augment.py Noise.__call__" in text.getvalue()
    assert ":0" not in text.getvalue()
    assert "None" not in text.getvalue()
    drawn = flame_chart(play(run))
    assert drawn is not None
    shown = list(boxes(drawn.root))
    assert any(box.name.endswith("Noise.__call__  augment.py") for box in shown)
    assert not any("None" in box.place or "line 0" in box.place for box in shown)


def boxes(box: FlameBox) -> Iterator[FlameBox]:
    yield box
    for below in box.below:
        yield from boxes(below)


@pytest.mark.parametrize("line", ["None", "", "-1", "0"])
def test_a_frame_without_a_line_belongs_to_its_function(line: str):
    run = Run(workers=2, service_ms=50, cores=2, busy_cores=1.9)
    run.worker_stacks = [
        (stack(WORKER_LOOP, f"{AUGMENT}:{line}:Noise.__call__"), 0.6, 1.0),
        (stack(WORKER_LOOP, f"{AUGMENT}:36:Noise.__call__"), 0.4, 1.0),
    ]
    cause = diagnose(play(run)).findings[0].cause
    assert cause is not None
    assert (cause.line, cause.share) == (36, pytest.approx(1.0))


SCHEMA = read_schema("diagnosis.schema.json")


RUNS = {
    "healthy": Run(workers=4, service_ms=8, busy_cores=3),
    "slow": Run(
        workers=2,
        service_ms=50,
        cores=2,
        busy_cores=1.9,
        worker_stacks=[(f"{AUGMENT}:31:RandomBlur.__call__", 1.0, 1.0)],
    ),
    "short": Run(batches=4),
    "no-loader": Run(loader=False),
}


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_diagnosis_is_what_the_schema_says(run: Run, rules: RuleSet):
    content = json.loads(json.dumps(diagnose(play(run), rules).to_json(), allow_nan=False))
    check(content, SCHEMA)
    assert content["rules"] == rules


def test_every_rule_has_found_something_or_is_quiet():
    content = diagnose(play(RUNS["slow"])).to_json()
    assert {finding["rule"] for finding in content["findings"]}.isdisjoint(content["quiet"])
    assert {"sync-bound", "memory-growth"} <= set(content["quiet"]) <= set(RULES)


def test_the_schema_itself_refuses_what_is_wrong():
    content = diagnose(play(RUNS["slow"])).to_json()
    content["findings"][0]["severity"] = "bad"
    with pytest.raises(AssertionError):
        check(content, SCHEMA)


@pytest.mark.parametrize("rules", RULE_SETS)
def test_a_run_without_any_record_conforms_too(rules: RuleSet):
    check(diagnose(RunTables(), rules).to_json(), SCHEMA)


def test_each_rule_is_named_after_its_function_and_gives_its_threshold():
    for name, rule in RULES.items():
        assert rule.__name__ == f"check_{name.replace('-', '_')}"
        assert "Fires" in (rule.__doc__ or "")
    files = {Path(inspect.unwrap(rule).__code__.co_filename) for rule in RULES.values()}
    text = "".join(path.read_text() for path in sorted(files))
    written = re.findall(r"^def (check_\w+)", text, re.MULTILINE)
    assert sorted(written) == sorted(rule.__name__ for rule in RULES.values())


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_report_fits_80_columns(run: Run, rules: RuleSet):
    text = StringIO()
    diagnosis = diagnose(play(run), rules)
    print_diagnosis(diagnosis, Console(file=text, width=80, highlight=False))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    printed = " ".join(text.getvalue().split())
    assert diagnosis.verdict.sentence in printed
    for finding in diagnosis.findings:
        assert finding.rule in printed
    for rule in (*(each.rule for each in diagnosis.not_evaluated), *diagnosis.quiet):
        assert rules == "headrace" or rule in printed
    if diagnosis.findings and diagnosis.findings[0].cause is not None:
        assert f"{AUGMENT}:31" in printed


EVENTS: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([], []),
    ([{"kind": "trace", "text": "rank-0.json.gz", "value": 10.0}], []),
    (
        [{"kind": "dropped-records", "text": "a", "value": 1000.0},
         {"kind": "dropped-records", "text": "b", "value": 234.0}],
        ["1,234 records were lost: they came faster than they could be collected."],
    ),
    (
        [{"kind": "probe-fault", "text": "Journal: KeyError: 1", "value": 1.0}],
        ["Recording failed once, and left that out; first: Journal: KeyError: 1."],
    ),
    (
        [{"kind": "switched", "text": "off"}, {"kind": "switched", "text": "on"},
         {"kind": "recording-stopped", "text": "after 100 faults"}],
        ["A process recorded no more after a hundred faults of the probe.",
         "Recording was switched off once: what ran then is not in the figures."],
    ),
    (
        [{"kind": "not-recorded", "text": "evaluate.py, process 7"}],
        [("A process that asked for batches left no records, as another process is the same "
          "rank; first: evaluate.py, process 7.")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("events", "gaps"), EVENTS)
@pytest.mark.parametrize("rules", ["headrace", "sagemaker"])
def test_each_kind_of_gap_is_one_sentence(
    events: list[dict[str, Any]], gaps: list[str], rules: Any
):
    tables = play(Run(workers=2, service_ms=10))
    for event in events:
        tables.add("events", **event)
    diagnosis = diagnose(tables, rules)
    assert list(diagnosis.gaps) == gaps
    assert diagnosis.to_json()["gaps"] == gaps


DOCS = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_page_is_up_to_date_and_has_every_rule():
    text = DOCS.read_text()
    assert text == rules_page()
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == sorted(RULES)
