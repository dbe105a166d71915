"""What the doctor, the page and notebooks report of steps by the device's own clock.

The records are real, written by the probe's clocks and the records' own writer; the device is not.
"""

from __future__ import annotations

import shutil
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from device_runs import Loop, record
from headrace.cli.doctor_report import print_diagnosis
from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.findings import Diagnosis, Finding
from headrace.observe.doctor.rules import RULES
from headrace.observe.whatif.train_steps import read_steps
from headrace.records.reader import open_records
from headrace.records.schema import PHASES
from headrace.report.open_run import open_run
from headrace.report.page import write_report
from json_schemas import check, read_schema
from pages import Page, check_alone
from run_tables import SCRIPT, stack

LOOP = f"{SCRIPT}:50:<module>"
PRINTED = stack(
    LOOP, f"{SCRIPT}:57:log",
    "/venv/lib/python3.11/site-packages/torch/_tensor.py:1100:Tensor.__format__",
)  # fmt: skip

# A step takes the device 10.2 ms and the host 1.5 ms. Where it had run dry it gets the first kernel
# 0.3 ms after the copy, which counts for forward: fed every 20.4 ms, it waits for 9.9 of them.
FED_LATE_MS = 20.4
WAITED = 9.9 / FED_LATE_MS


def played(folder: Path, **loop) -> tuple[Diagnosis, Diagnosis]:
    """Return the diagnosis of a loop's records, and of the same without the device's clock."""
    run = record(folder / "run", Loop(**loop))
    bare = shutil.copytree(run, folder / "bare")
    (bare / "records/attempt-1/device_steps.parquet").unlink()
    return diagnose(open_records(run)), diagnose(open_records(bare))


def found(diagnosis: Diagnosis, rule: str) -> Finding | None:
    return next((each for each in diagnosis.findings if each.rule == rule), None)


def first(diagnosis: Diagnosis) -> str:
    return diagnosis.findings[0].rule


def step_ms(run: Path) -> float:
    return float(read_steps(open_records(run)).steady.wall_ns.mean() / 1e6)


def test_waits_of_the_script_that_the_device_does_not_feel_are_free(tmp_path: Path):
    timed, bare = played(tmp_path, batch_ms=10.8)
    assert [each.rule for each in timed.findings] == ["compute-bound"]
    assert timed.verdict.bound == "compute"
    assert timed.verdict.data_wait_share == pytest.approx(0.3 / 10.8, abs=0.002)
    assert timed.findings[0].evidence["script_data_wait_share"] == pytest.approx(0.85, abs=0.03)
    assert timed.findings[0].evidence["device_model_share"] == pytest.approx(10.3 / 10.8, abs=0.01)
    assert bare.verdict.bound == "data"
    assert bare.verdict.data_wait_share == pytest.approx(0.85, abs=0.03)


def test_data_wait_is_the_device_s_and_so_is_what_a_remedy_gives(tmp_path: Path):
    timed, bare = played(tmp_path, batch_ms=FED_LATE_MS)
    assert timed.verdict.bound == "data"
    assert timed.verdict.data_wait_share == pytest.approx(WAITED, abs=0.005)
    assert bare.verdict.data_wait_share == pytest.approx(0.92, abs=0.02)
    worst = timed.findings[0]
    assert worst.evidence["data_wait_share"] == pytest.approx(WAITED, abs=0.005)
    before = step_ms(tmp_path / "run")
    after = step_ms(record(tmp_path / "faster", Loop(batch_ms=5.0)))
    workers = next(each for each in worst.remedies if each.name == "workers")
    assert workers.low is not None
    assert workers.high is not None
    assert workers.low <= before / after <= workers.high  # twice as fast, and no more
    assert before / after == pytest.approx(2.0, abs=0.02)
    without = next(each for each in bare.findings[0].remedies if each.name == "workers")
    assert without.low is not None
    assert without.low > before / after


def test_a_copy_in_which_the_script_waits_for_the_step_before_is_not_blamed(tmp_path: Path):
    timed, bare = played(tmp_path, copy_ms=0.3, pinned=False)
    assert [each.rule for each in timed.findings] == ["compute-bound"]
    assert first(bare) == "blocking-copy"


@pytest.mark.parametrize(
    ("pinned", "remedies"),
    [(False, ["pinning", "asynchronous-copies"]), (True, ["copies-beside"])],
)
def test_copies_cost_what_they_take_on_the_device(
    tmp_path: Path, pinned: bool, remedies: list[str]
):
    timed, bare = played(tmp_path, copy_ms=5.0, pinned=pinned)
    worst = timed.findings[0]
    assert worst.rule == "blocking-copy"
    assert "hold the accelerator up for 3" in worst.title
    assert worst.evidence["copy_share"] == pytest.approx(1 / 3, abs=0.02)
    assert "script_copy_share" in worst.evidence
    assert [each.name for each in worst.remedies] == remedies
    best = worst.remedies[-1]
    assert best.high is not None
    assert best.high >= 1.45  # at best the copy is hidden: 15 ms become 10
    # Pinned and asynchronous, a copy costs the host nothing, so it cannot know.
    assert (found(bare, "blocking-copy") is None) == pinned


def test_waiting_for_a_loss_while_the_device_is_at_work_costs_nothing(tmp_path: Path):
    stacks = {"other": PRINTED, "forward": LOOP}
    timed, bare = played(tmp_path, prints=True, stacks=stacks)
    assert [each.rule for each in timed.findings] == ["compute-bound"]
    assert first(bare) == "device-sync"


def test_waiting_for_a_loss_costs_what_the_device_idles_meanwhile(tmp_path: Path):
    stacks = {"other": PRINTED, "forward": LOOP}
    timed, _ = played(tmp_path, prints=True, log_ms=10.0, stacks=stacks)
    sync = found(timed, "device-sync")
    assert sync is not None
    assert sync.cause is not None
    assert sync.cause.line == 57
    assert sync.evidence["share_of_step_time"] == pytest.approx(0.98, abs=0.03)
    assert sync.evidence["device_idle_share"] == pytest.approx(0.5, abs=0.06)
    assert [each.name for each in sync.remedies] == ["sync"]
    assert sync.remedies[0].high == pytest.approx(2.0, abs=0.3)
    assert sync.remedies[0].low == pytest.approx(1.0, abs=0.05)


def test_the_accelerator_is_the_limit_only_where_it_is_busy(tmp_path: Path):
    # The host says forward and backward, and so does the device's clock, as gaps between kernels
    # belong to the phase that they lie in; but three quarters of it are gaps.
    timed, bare = played(tmp_path, forward_ms=40.0, backward_ms=30.0, gpu_percent=25.0)
    assert timed.findings == ()
    assert timed.verdict.sentence.startswith("Nothing wrong was found")
    assert "56% is the forward pass" in timed.verdict.sentence
    assert first(bare) == "compute-bound"


def test_an_accelerator_that_idles_while_the_script_logs_is_not_the_limit(tmp_path: Path):
    timed, _ = played(tmp_path, prints=True, log_ms=10.0)
    assert timed.findings == ()
    assert "48% is outside the model" in timed.verdict.sentence


@pytest.mark.parametrize(("log_ms", "fires"), [(0.0, True), (20.0, False)])
def test_a_bigger_batch_fills_gaps_in_the_model_s_time_alone(
    tmp_path: Path, log_ms: float, fires: bool
):
    timed, bare = played(tmp_path, log_ms=log_ms, prints=log_ms > 0, gpu_percent=20.0)
    small = found(timed, "small-batch")
    assert (small is not None) == fires
    assert found(bare, "small-batch") is not None
    if small is not None:
        assert small.evidence["device_model_share"] == pytest.approx(0.98, abs=0.01)


# A step takes the device 3.7 ms and the script 0.6; with what taking a batch over takes it, 4.6.
SHORT = {
    "batch_ms": 0.3, "launch_ms": 0.2, "forward_ms": 1.0, "backward_ms": 2.0, "optimizer_ms": 0.5
}  # fmt: skip
TAKEN_MS, FELT = 4.0, 0.9 / 4.6


def test_taking_batches_over_costs_what_the_device_waits_meanwhile(tmp_path: Path):
    timed, bare = played(tmp_path, take_ms=TAKEN_MS, **SHORT)
    worst, script = timed.findings[0], bare.findings[0]
    assert (worst.rule, worst.severity) == ("slow-transfer", "serious")
    assert (script.rule, script.severity) == ("slow-transfer", "critical")
    assert worst.evidence["wait_for_ready_batch_ms"] == pytest.approx(TAKEN_MS, abs=0.1)
    assert worst.evidence["wait_for_ready_batch_share"] == pytest.approx(FELT, abs=0.02)
    assert worst.evidence["script_data_wait_share"] == pytest.approx(TAKEN_MS / 4.6, abs=0.02)
    assert worst.seconds_lost < script.seconds_lost / 2
    before = step_ms(tmp_path / "run")
    after = step_ms(record(tmp_path / "at-hand", Loop(**SHORT)))
    tensors, by_script = (
        next(each for each in finding.remedies if each.name == "tensors")
        for finding in (worst, script)
    )
    assert tensors.low is not None
    assert tensors.high is not None
    assert by_script.low is not None
    assert tensors.low <= before / after <= tensors.high
    assert by_script.low > before / after


def test_short_steps_lose_to_taking_over_what_the_device_waits(tmp_path: Path):
    records = open_records(record(tmp_path / "run", Loop(take_ms=TAKEN_MS, **SHORT)))
    short, steps = RULES["data-wait"](gather_evidence(records)), read_steps(records)
    assert short is not None
    assert short.severity == "warning"
    assert "the accelerator waits 0.9" in short.title
    assert short.evidence["wait_for_batch_ms"] == pytest.approx(0.9, abs=0.05)
    assert short.seconds_lost == pytest.approx(steps.data_wait_seconds)
    assert short.seconds_lost < steps.share("data_wait") * steps.total_seconds / 2


@pytest.fixture(scope="module")
def fed_late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("device") / "run", Loop(batch_ms=FED_LATE_MS))


def test_the_page_shows_both_clocks_and_what_the_accelerator_waited(fed_late: Path):
    page = Page(write_report(fed_late).read_text(encoding="utf-8"))
    check_alone(page)
    assert "Accelerator, a step" in page.text
    assert "for want of data in 49% of its time; the script waited for data in 93%" in page.text
    assert "49%of step time the accelerator waits for data" in page.text
    drawn = page.charts["phases"]
    assert drawn["rows"] == ["rank 0", "rank 0, accelerator"]
    backward = next(part for part in drawn["parts"] if part["name"] == "backward")
    assert backward["labels"] == ["", "29%"]  # 0.5 and 6 ms of 20.4
    text = StringIO()
    print_diagnosis(diagnose(open_records(fed_late)), Console(file=text, width=200))
    assert "by the accelerator's own clock: data wait 49%, copy 1%, forward 16%" in text.getvalue()


def test_a_diagnosis_with_both_clocks_is_what_the_schema_says(fed_late: Path):
    content = diagnose(open_records(fed_late)).to_json()
    check(content, read_schema("diagnosis.schema.json"))
    assert sum(content["verdict"]["device_phase_shares"].values()) == pytest.approx(1, abs=1e-3)


def test_notebooks_have_phases_by_both_clocks(fed_late: Path):
    run = open_run(fed_late)
    phases, device = run.phases, run.device_steps
    assert list(phases.columns)[-4:] == [
        "phase_ns", "share", "device_phase_ns", "device_share"
    ]  # fmt: skip
    one = phases[(phases["kind"] == "train") & (phases["step"] == 40)].set_index("phase")
    row = device[(device["kind"] == "train") & (device["step"] == 40)].iloc[0]
    for phase in PHASES:
        assert one["device_phase_ns"][phase] == row[f"device_{phase}_ns"]
    assert one["device_share"].sum() == pytest.approx(1)
    assert one["share"]["data_wait"] == pytest.approx(0.92, abs=0.02)
    assert one["device_share"]["data_wait"] == pytest.approx(WAITED, abs=0.0001)


def cut(run: Path, copy: Path, rows: slice) -> Path:
    """Copy a run of which only some of the device's rows were kept."""
    shutil.copytree(run, copy)
    path = copy / "records/attempt-1/device_steps.parquet"
    table = pq.read_table(path)
    places = np.arange(table.num_rows)[rows]
    pq.write_table(table.take(places), path)
    return copy


def test_rows_that_were_lost_are_filled_by_what_the_others_say(fed_late: Path, tmp_path: Path):
    run = cut(fed_late, tmp_path / "cut", slice(None, 80))
    assert diagnose(open_records(run)).verdict.data_wait_share == pytest.approx(WAITED, abs=0.005)
    # And the time after the last step.
    assert open_run(run).phases["device_phase_ns"].isna().sum() == 41 * len(PHASES)
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "By the accelerator's clock 40 of these steps were not recorded." in page.text


def test_few_rows_by_the_device_s_clock_are_not_relied_on(fed_late: Path, tmp_path: Path):
    few = open_records(cut(fed_late, tmp_path / "few", slice(None, 40)))
    none = open_records(cut(fed_late, tmp_path / "none", slice(0)))
    assert diagnose(few).to_json() == diagnose(none).to_json()
    assert "device_phase_shares" not in diagnose(few).to_json()["verdict"]
    page = Page(write_report(few.path).read_text(encoding="utf-8"))
    assert "ccelerator, a step" not in page.text
    assert page.charts["phases"]["rows"] == ["rank 0"]
