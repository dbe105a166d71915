"""More ranks on a host, predicted from the run of one."""

from __future__ import annotations

import json
import re
from io import StringIO

import pytest
from rich.console import Console

from headrace.cli.doctor_report import print_forecast
from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.rules import RULES
from headrace.observe.doctor.scaling_forecast import (
    ScalingForecast,
    evidence_at_ranks,
    forecast_ranks,
)
from json_schemas import check, read_schema
from run_tables import AUGMENT, MS, WORKER_LOOP, Run, RunTables, play, stack

BLUR = stack(WORKER_LOOP, f"{AUGMENT}:9:Faces.__getitem__", f"{AUGMENT}:31:RandomBlur.__call__")
RULE = "cpu-starved-by-ranks"


def fed(**changes) -> Run:
    """A run of one rank that is fed: 15 ms of two workers' time for each step of 10.5 ms."""
    return Run(
        **{
            "workers": 2, "service_ms": 15, "cores": 4, "busy_cores": 2.0,
            "worker_stacks": [(BLUR, 1.0, 1.0)], **changes,
        }
    )  # fmt: skip


def looked_at(run: Run, rank_percent: float = 30.0) -> RunTables:
    """Play a run whose processes were looked at, each rank alike."""
    tables = play(run)
    used_ms = run.service_ms * run.worker_cpu * run.threads
    worker = 100.0 * used_ms / sum(run.phases_ms.values()) / max(run.workers, 1)
    shares = {100 + rank: rank_percent for rank in range(run.ranks)}
    shares |= {1000 + number: worker for number in range(run.workers)}
    for t_ms in range(0, 4000, 100):
        for pid, percent in shares.items():
            tables.add("process_usage", t_ns=t_ms * MS, pid=pid, cpu_percent=percent)
    return tables


def forecast_of(tables: RunTables, ranks: int) -> ScalingForecast:
    forecast = forecast_ranks(gather_evidence(tables), ranks)
    assert forecast is not None
    return forecast


def test_a_fed_rank_predicts_that_four_starve():
    finding = RULES[RULE](gather_evidence(looked_at(fed())))
    assert finding is not None
    assert (finding.severity, finding.seconds_lost, finding.forecast) == ("info", 0.0, True)
    assert finding.title.startswith("at 4 ranks this host's 4 cores starve: data wait 1% -> ")
    # 14.6 ms of the workers and 3.2 of the rank on one core each, where a step asks for 10.5.
    assert finding.evidence["data_wait_share_then"] == pytest.approx(1 - 10.4 / 17.7, abs=0.05)
    assert finding.cause is not None
    assert finding.cause.line == 31
    names = {remedy.name for remedy in finding.remedies}
    assert {"faster-code", "move-code", "auxiliary-hosts"} <= names
    assert all(remedy.predicted_speedup is not None for remedy in finding.remedies)


def test_it_stands_next_to_the_verdict_and_does_not_change_it():
    diagnosis = diagnose(looked_at(fed()))
    assert [finding.rule for finding in diagnosis.findings] == ["compute-bound", RULE]
    assert diagnosis.verdict.bound == "compute"
    assert "nothing to fix" in diagnosis.verdict.sentence


def test_as_many_ranks_as_accelerators_are_predicted():
    tables = looked_at(fed(cores=12, busy_cores=2.0))
    ticks = len(tables.system["t_ns"])
    for gpu in range(8):
        tables.system[f"gpu_{gpu}_utilisation_percent"] = [97.0] * ticks
    finding = RULES[RULE](gather_evidence(tables))
    assert finding is not None
    assert finding.evidence["ranks"] == 8
    del tables.system["gpu_0_utilisation_percent"]
    for gpu in range(2, 8):
        del tables.system[f"gpu_{gpu}_utilisation_percent"]
    assert RULES[RULE](gather_evidence(tables)) is None  # there is one accelerator, for one rank


@pytest.mark.parametrize(
    "run",
    [fed(cores=64), fed(service_ms=30), fed(service_ms=0.2, worker_cpu=0.5), fed(batches=6)],
    ids=["many cores", "starved already", "hardly any work", "too few steps"],
)
def test_nothing_is_predicted_where_nothing_is_known_or_nothing_starves(run: Run):
    assert RULES[RULE](gather_evidence(looked_at(run, rank_percent=5.0))) is None


def test_nothing_is_predicted_where_the_ranks_own_use_is_unknown():
    evidence = gather_evidence(play(fed()))
    assert forecast_ranks(evidence, 4) is None
    assert RULES[RULE](evidence) is None


def test_other_jobs_on_the_host_are_reported():
    tables = looked_at(fed(busy_cores=4.0))
    assert RULES[RULE](gather_evidence(tables)) is None
    text = StringIO()
    print_forecast(forecast_of(tables, 4), Console(file=text, width=200, highlight=False))
    assert "Other processes used 2.3 of the cores meanwhile" in text.getvalue()


def test_efficiency_is_of_one_rank_alone_whatever_was_measured():
    run = fed(ranks=2, cores=64, busy_cores=4.0)
    for row in (tables := looked_at(run)).rows["processes"]:
        row["pid"] = row["pid"] if row["role"] == "rank" else row["pid"] + 10 * row["rank"]
    forecast = forecast_of(tables, 2)
    assert forecast.now == forecast.then
    assert forecast.then.efficiency.value == pytest.approx(1.0)
    assert forecast_of(tables, 1).then.batches_per_s.value == pytest.approx(
        forecast.then.batches_per_s.value / 2, rel=0.02
    )


def test_remedies_are_of_the_crowded_host():
    forecast = forecast_of(looked_at(fed()), 4)
    gone = next(each for each in forecast.remedies if each.name == "move-code")
    assert gone.predicted_speedup == pytest.approx(1 / forecast.then.efficiency.value, rel=0.1)
    alone = forecast_of(looked_at(fed()), 1)
    assert alone.remedies == ()  # a fed rank needs none


def test_threads_of_the_rank_itself_can_be_limited():
    forecast = forecast_of(looked_at(fed(cores=4), rank_percent=180.0), 4)
    limited = next(each for each in forecast.remedies if each.name == "rank-threads")
    assert [str(each) for each in limited.overrides] == ["rank_threads=1"]
    assert limited.predicted_speedup is not None
    assert limited.predicted_speedup > 1.05


def threaded(**changes) -> Run:
    """A run as of docs/reference_a.md: one worker, two threads, a third of two cores in all."""
    run = fed(**{"workers": 1, "service_ms": 27, "worker_cpu": 0.9, "threads": 1.9, **changes})
    run.cores, run.busy_cores = changes.get("cores", 2), 0.6
    run.phases_ms = {**run.phases_ms, "forward": 80.0}
    return run


def test_threads_of_workers_that_will_outnumber_the_cores_are_predicted_as_a_range():
    forecast = forecast_of(looked_at(threaded(), rank_percent=8.0), 2)
    then = forecast.then
    assert forecast.now.wait_share.value < 0.03
    assert then.wait_share.low < 0.05  # where none spins, 106 ms of CPU fit
    assert 0.4 < then.wait_share.value < 0.7
    assert then.wait_share.high > 0.85
    assert then.wait_share.low < 0.49 < then.wait_share.high  # as was measured
    assert (then.spin_factor.low, then.spin_factor.high) == (1.0, 20.0)
    assert forecast.may_starve
    assert not forecast.starves
    one_each = next(remedy for remedy in forecast.remedies if remedy.name == "threads")
    assert one_each.predicted_speedup == pytest.approx(1 / then.efficiency.value, rel=0.1)


def test_one_rank_says_that_more_may_starve_of_such_threads():
    tables = looked_at(threaded(), rank_percent=8.0)
    finding = next(each for each in diagnose(tables).findings if each.rule == RULE)
    assert finding.severity == "info"
    assert finding.title.startswith("at 2 ranks this host's 2 cores may starve: data wait ")
    assert re.search(r"-> \d\d% \(\d% to \d\d%\)$", finding.title)
    shown = StringIO()
    print_forecast(forecast_of(tables, 2), Console(file=shown, width=80))
    assert "4.5 (1 to 20) times the CPU for a batch" in " ".join(shown.getvalue().split())


@pytest.mark.parametrize(
    "run", [threaded(threads=1.2), threaded(cores=16), threaded(service_ms=2)],
    ids=["one thread", "a core for each", "seldom at once"],
)  # fmt: skip
def test_threads_that_will_find_a_core_take_no_more_than_they_did(run: Run):
    then = forecast_of(looked_at(run, rank_percent=2.0), 2).then
    assert then.spin_factor.high == 1.0
    assert then.wait_share.value < 0.05
    assert then.wait_share.high < 0.2  # what is not counted may still come


def test_the_low_end_allows_for_what_one_rank_does_not_show_as_far_as_cores_are_used():
    def left(service_ms: float) -> float:
        run = looked_at(threaded(threads=1.0, service_ms=service_ms), rank_percent=2.0)
        rate, alone = forecast_of(run, 2).then.batches_per_s, forecast_of(run, 1).then.batches_per_s
        return rate.low / (2 * alone.low)

    assert left(27) < 0.9 < left(2) < 1.0


def test_more_ranks_want_more_cores_and_other_jobs_no_more_than_before():
    now = gather_evidence(looked_at(fed(busy_cores=3.5)))
    then = evidence_at_ranks(now, 4)
    assert then.wanted_threads == pytest.approx(4 * now.wanted_threads)
    assert then.host.foreign_cores == now.host.foreign_cores > 0
    # A rank and its workers use 1.7 cores, and who wants one of the free ones has it.
    assert now.wanted_threads == pytest.approx(1.7, abs=0.1)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_json_is_what_the_schema_says(ranks: int):
    forecast = forecast_of(looked_at(fed()), ranks).to_json()
    check(json.loads(json.dumps(forecast, allow_nan=False)), read_schema("forecast.schema.json"))
    assert forecast["then"]["ranks"] == ranks
    assert forecast["now"]["samples_per_s"]["value"] == pytest.approx(
        32 * forecast["now"]["batches_per_s"]["value"], rel=0.001
    )


def test_it_is_printed_in_80_columns():
    text = StringIO()
    console = Console(file=text, width=80, highlight=False)
    print_forecast(forecast_of(looked_at(fed()), 4), console)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    printed = " ".join(text.getvalue().split())
    assert printed.startswith("At 4 ranks: ")
    assert "samples/s" in printed
    assert "scaling efficiency" in printed
    assert "Measured at 1 rank: " in printed
    assert "What would help at 4 ranks:" in printed
