"""SageMaker Debugger's rules: each fires at its threshold, or says what it lacks."""

from __future__ import annotations

import pytest

from headrace.observe.doctor.debugger_rules import PATIENCE, SAGEMAKER_RULES, read_debugger_metrics
from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import Diagnosis, Finding, NotEvaluated
from run_tables import MS, Run, RunTables, play

SAMPLES = 1300
GIB = 2**30
Series = float | list[float]


def sampled(
    samples: int = SAMPLES,
    *,
    cores: tuple[Series, ...] = (50.0, 50.0),
    gpus: tuple[Series, ...] = (95.0,),
    memory: tuple[Series, ...] | None = None,
    io_wait: Series = 0.0,
) -> RunTables:
    """Return the tables of a host that was sampled every 500 ms; memory in percent of 80 GiB."""

    def series(values: Series) -> list[float]:
        return values if isinstance(values, list) else [values] * samples

    tables = RunTables()
    tables.system = {"t_ns": [500 * MS * number for number in range(samples)]}
    tables.system["io_wait_percent"] = series(io_wait)
    for number, values in enumerate(cores):
        tables.system[f"core_{number}_percent"] = series(values)
    for number, values in enumerate(gpus):
        tables.system[f"gpu_{number}_utilisation_percent"] = series(values)
    for number, values in enumerate(memory or ()):
        used = [round(percent / 100 * 80 * GIB) for percent in series(values)]
        tables.system[f"gpu_{number}_memory_bytes"] = used
        tables.system[f"gpu_{number}_memory_total_bytes"] = [80 * GIB] * samples
    return tables


def outcome(tables: RunTables, rule: str) -> Finding | NotEvaluated | None:
    return SAGEMAKER_RULES[rule](read_debugger_metrics(tables))


def switching(low: float, high: float, share_low: float, samples: int = SAMPLES) -> list[float]:
    """Return values that are low for a share of every hundred samples."""
    return [low if number % 100 < 100 * share_low else high for number in range(samples)]


def fires(tables: RunTables, rule: str) -> bool:
    found = outcome(tables, rule)
    assert not isinstance(found, NotEvaluated), found
    assert found is None or (found.rule, found.severity) == (rule, "warning")
    return found is not None


@pytest.mark.parametrize(
    ("core", "gpu", "alarm"),
    [
        (95.0, 5.0, True),
        (95.0, switching(5.0, 95.0, 0.52), True),
        (95.0, switching(5.0, 95.0, 0.48), False),
        (89.0, 5.0, False),
        (95.0, 11.0, False),
    ],
)
def test_cpu_bottleneck(core: Series, gpu: Series, alarm: bool):
    # One core is enough, and one GPU.
    tables = sampled(cores=(10.0, core), gpus=(95.0, gpu))
    assert fires(tables, "CPUBottleneck") == alarm


@pytest.mark.parametrize(
    ("io_wait", "gpu", "alarm"), [(30.0, 5.0, True), (20.0, 5.0, False), (30.0, 15.0, False)]
)
def test_io_bottleneck_adds_up_the_cores(io_wait: float, gpu: float, alarm: bool):
    assert fires(sampled(io_wait=io_wait, gpus=(gpu,)), "IOBottleneck") == alarm


@pytest.mark.parametrize(
    ("gpu", "alarm"),
    [
        (60.0, True),
        (95.0, False),
        (switching(5.0, 95.0, 0.1), True),
        (switching(5.0, 95.0, 0.03), False),
    ],
)
def test_low_gpu_utilization(gpu: Series, alarm: bool):
    assert fires(sampled(gpus=(95.0, gpu)), "LowGPUUtilization") == alarm


def test_a_gpu_that_was_idle_for_a_while_is_reported_although_it_is_busy_at_the_end():
    # Debugger looks every minute; what it saw then it does not take back.
    gpu = [95.0] * 600 + [20.0] * 600 + [95.0] * 1200
    found = outcome(sampled(2400, gpus=(gpu,)), "LowGPUUtilization")
    assert isinstance(found, Finding)
    assert found.evidence["gpu_p95_percent"] == pytest.approx(20.0)
    assert found.evidence["after_min"] == pytest.approx(10.0, abs=1.1)


@pytest.mark.parametrize(
    ("core", "gpu", "memory", "alarm"),
    [(60.0, 60.0, 60.0, True), (80.0, 60.0, 60.0, False), (60.0, 80.0, 60.0, False),
     (60.0, 60.0, 80.0, False)],
)  # fmt: skip
def test_batch_size(core: float, gpu: float, memory: float, alarm: bool):
    tables = sampled(cores=(core, core), gpus=(gpu,), memory=(memory,))
    assert fires(tables, "BatchSize") == alarm


@pytest.mark.parametrize(("to", "alarm"), [(80.0, True), (45.0, False)])
def test_gpu_memory_increase(to: float, alarm: bool):
    used = [40.0] * 1100 + [to] * 200
    assert fires(sampled(memory=(used,)), "GPUMemoryIncrease") == alarm


def test_memory_that_jumps_before_the_patience_ends_is_not_reported():
    used = [10.0] * 500 + [80.0] * 800
    assert not fires(sampled(memory=(used,)), "GPUMemoryIncrease")


@pytest.mark.parametrize(
    ("one", "other", "alarm"),
    [(95.0, 30.0, True), (95.0, 95.0, False), (100.0, 100.0, False), (100.0, 60.0, True)],
)
def test_load_balancing(one: float, other: float, alarm: bool):
    assert fires(sampled(gpus=(one, other)), "LoadBalancing") == alarm


def stepping(outliers: int, steps: int = 600) -> RunTables:
    tables = RunTables()
    for step in range(steps):
        wall = 40 * MS if step < outliers else (9 + step % 3) * MS
        tables.add("steps", step=step, kind="train", start_ns=step * 50 * MS, wall_ns=wall)
    return tables


@pytest.mark.parametrize(("outliers", "alarm"), [(11, True), (10, False), (0, False)])
def test_step_outlier(outliers: int, alarm: bool):
    assert fires(stepping(outliers), "StepOutlier") == alarm


def test_step_outliers_cost_what_they_take_longer():
    found = outcome(stepping(20), "StepOutlier")
    assert isinstance(found, Finding)
    assert found.evidence["outliers"] == 20
    assert found.seconds_lost == pytest.approx(20 * (0.040 - 0.011), rel=0.05)


@pytest.mark.parametrize(
    ("workers", "ranks", "alarm"), [(1, 1, True), (4, 1, False), (8, 1, False), (9, 1, True),
                                    (3, 2, False)],
)  # fmt: skip
def test_dataloader(workers: int, ranks: int, alarm: bool):
    tables = sampled(cores=(50.0,) * 4)
    for second in range(12):
        for rank in range(ranks):
            for worker in range(workers):
                start_ns = second * 1000 * MS + worker
                tables.add("batches", rank=rank, worker=worker, start_ns=start_ns, wall_ns=MS)
    assert fires(tables, "Dataloader") == alarm


@pytest.mark.parametrize(("minutes", "alarm"), [(25, True), (15, False)])
def test_max_initialization_time(minutes: int, alarm: bool):
    tables = sampled(10)
    tables.add("steps", kind="train", start_ns=minutes * 60_000 * MS, wall_ns=MS)
    assert fires(tables, "MaxInitializationTime") == alarm


def test_a_job_that_took_no_step_for_long_is_reported():
    found = outcome(sampled(25 * 120), "MaxInitializationTime")
    assert isinstance(found, Finding)
    assert found.title == "25 minutes have passed without a step"


def test_what_only_reports_is_no_issue_and_comes_last():
    tables = play(Run(workers=4, service_ms=8, busy_cores=3, batches=300))
    diagnosis = diagnose(tables, "sagemaker")
    assert [each.rule for each in diagnosis.findings][-2:] == [
        "OverallSystemUsage", "OverallFrameworkMetrics",
    ]  # fmt: skip
    system, framework = diagnosis.findings[-2:]
    assert system.severity == framework.severity == "info"
    assert system.evidence["cpu_p50_percent"] == pytest.approx(100 * 3 / 8)
    assert framework.evidence["training_share"] == pytest.approx(0.97, abs=0.03)
    shares = [v for name, v in framework.evidence.items() if name.startswith("step_")]
    assert sum(float(share or 0) for share in shares) == pytest.approx(1.0)


def reasons(diagnosis: Diagnosis) -> dict[str, str]:
    return {each.rule: each.reason for each in diagnosis.not_evaluated}


def test_without_a_gpu_no_rule_about_gpus_passes_in_silence():
    shown = reasons(diagnose(sampled(gpus=()), "sagemaker"))
    about_gpus = {
        "BatchSize", "CPUBottleneck", "GPUMemoryIncrease", "IOBottleneck", "LoadBalancing",
        "LowGPUUtilization",
    }  # fmt: skip
    assert {rule for rule, reason in shown.items() if reason == "no GPU was recorded"} == about_gpus


def test_a_gpu_that_never_reported_its_use_is_none():
    shown = reasons(diagnose(sampled(gpus=([float("nan")] * SAMPLES,)), "sagemaker"))
    assert shown["LowGPUUtilization"] == "no GPU was recorded"


def test_a_short_run_says_how_many_samples_it_lacks():
    shown = reasons(diagnose(sampled(PATIENCE), "sagemaker"))
    assert shown["CPUBottleneck"] == (
        "1,000 samples of the system were recorded, and it begins after 1,000"
    )
    assert shown["LoadBalancing"] == "only 1 GPU was recorded"
    assert shown["StepOutlier"] == "0 steps were recorded, and it begins after 100"


def test_memory_of_an_unknown_size_is_reported():
    shown = reasons(diagnose(sampled(), "sagemaker"))
    assert shown["BatchSize"] == "the size of the GPUs' memory was not recorded"


def test_every_rule_has_one_outcome_also_without_records():
    for tables in (RunTables(), sampled(), play(Run(workers=2, service_ms=40, busy_cores=2))):
        diagnosis = diagnose(tables, "sagemaker")
        outcomes = [each.rule for each in diagnosis.findings] + list(diagnosis.quiet)
        outcomes += reasons(diagnosis)
        assert sorted(outcomes) == sorted(SAGEMAKER_RULES)


def test_the_verdict_is_that_of_headraces_own_rules():
    tables = play(Run(workers=2, service_ms=50, cores=2, busy_cores=1.9))
    assert diagnose(tables, "sagemaker").verdict == diagnose(tables).verdict


def test_each_rule_is_named_after_its_function_and_gives_its_threshold():
    for name, rule in SAGEMAKER_RULES.items():
        assert rule.__name__.removeprefix("check_").replace("_", "") == name.lower()
        assert "Fires" in (rule.__doc__ or "")
