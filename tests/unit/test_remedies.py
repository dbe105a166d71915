"""Each remedy is predicted from what the run measured."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.overrides import Override
from headrace.jobs.tune import best_remedy
from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.findings import Finding, Remedy
from headrace.observe.doctor.rules import RULES
from headrace.observe.whatif.train_steps import fixed_cost_ns, read_steps
from run_tables import AUGMENT, MS, SCRIPT, WORKER_LOOP, Run, RunTables, play, stack

BLUR = stack(WORKER_LOOP, f"{AUGMENT}:9:Faces.__getitem__", f"{AUGMENT}:31:RandomBlur.__call__")
DECODE = stack(WORKER_LOOP, f"{AUGMENT}:12:decode")
READ = stack(WORKER_LOOP, f"{AUGMENT}:14:read_sample")
COLLATE = stack(WORKER_LOOP, f"{AUGMENT}:60:pad_collate")
TRANSFORMS = [
    ("Faces.transform: Compose", AUGMENT, 1, 0.9),
    ("Faces.transform.transforms[0]: RandomBlur", AUGMENT, 28, 0.7),
    ("Faces.transform.transforms[1]: ToTensor", AUGMENT, 44, 0.2),
]


def found(tables: RunTables, rule: str) -> Finding:
    finding = RULES[rule](gather_evidence(tables))
    assert finding is not None
    return finding


@pytest.mark.parametrize(
    ("kind", "style", "name", "applies"),
    [
        ("torch", "map", "num_workers", True),
        ("torch", "iterable", "num_workers", False),
        ("torch", "iterable", "prefetch_factor", True),
        ("headrace", "shards", "num_workers", True),
        ("headrace", "shards", "prefetch_factor", True),
        ("headrace", "shards", "batch_size", False),
        ("ray", "iterable", "prefetch_factor", False),
    ],
)
def test_what_a_loader_can_be_given_without_editing(
    kind: str, style: str, name: str, applies: bool
):
    tables = play(Run(workers=2))
    for row in tables.rows["loaders"]:
        row |= {"kind": kind, "style": style}
    loader = gather_evidence(tables).loader
    assert loader is not None
    given = (Override(name, 4, f"{SCRIPT.rpartition('/')[2]}:40"),)
    assert loader.overridden(name, 4) == (given if applies else ())


def remedy(finding: Finding, name: str) -> Remedy:
    (one,) = [each for each in finding.remedies if each.name == name]
    assert one.predicted_speedup is not None
    assert one.low is not None
    assert one.high is not None
    assert one.low <= one.predicted_speedup <= one.high
    return one


def blurred(**changes) -> Run:
    return Run(
        **{
            "workers": 2, "service_ms": 50, "cores": 2, "busy_cores": 1.9,
            "worker_stacks": [(BLUR, 0.7, 1.0), (DECODE, 0.3, 1.0)], "transforms": TRANSFORMS,
            **changes,
        }
    )  # fmt: skip


def copying(**changes) -> RunTables:
    run = Run(**{"workers": 4, "service_ms": 8, "busy_cores": 3, **changes})
    run.phases_ms = {**run.phases_ms, "copy": 5.0}
    return play(run)


def test_pinned_memory_shortens_the_copies_and_can_be_tried_without_an_edit():
    finding = found(copying(), "blocking-copy")
    pinned = remedy(finding, "pinning")
    step = 5.0 + 10.3
    assert pinned.low <= step / (step - 5 / 3)
    assert pinned.high >= step / (step - 5 * 0.8)
    assert step / (step - 5 / 3) < pinned.predicted_speedup < step / (step - 5 * 0.8)
    assert pinned.overrides == (Override("pin_memory", 1, "train.py:40"),)
    overlapped = remedy(finding, "asynchronous-copies")
    assert overlapped.high > pinned.high
    assert overlapped.overrides == ()


def test_pinned_memory_is_not_proposed_twice():
    tables = copying()
    for row in tables.rows["loaders"]:
        row["pinned"] = 1
    for row in tables.rows["steps"]:
        row["pageable_copies"] = 0
    names = [each.name for each in found(tables, "blocking-copy").remedies]
    assert names == ["asynchronous-copies"]


def test_copies_that_the_loader_does_not_wait_for_gain_nothing_from_pinning():
    tables = copying(workers=1, service_ms=40, cores=1, busy_cores=1)
    assert remedy(found(tables, "blocking-copy"), "pinning").predicted_speedup < 1.05


def test_copies_without_a_loader_are_predicted_from_the_steps():
    pinned = remedy(found(copying(loader=False), "blocking-copy"), "asynchronous-copies")
    assert 15.3 / (15.3 - 5 / 3) < pinned.predicted_speedup < 15.3 / 10.3


def test_a_transform_on_the_device_costs_the_step_what_the_device_takes():
    finding = found(play(blurred()), "cpu-bound-worker")
    gone, there = remedy(finding, "move-code"), remedy(finding, "device-transform")
    # 35 of 50 ms in one of two workers: 0.35 to 1.75 ms of the device beside a step of 10.3 ms.
    assert there.predicted_speedup <= gone.predicted_speedup
    assert there.predicted_speedup >= 25.3 / (10.7 + 1.75) * 0.95
    assert there.change == "RandomBlur on the accelerator"
    assert "device_transform" in there.how


def test_collating_is_not_moved_to_the_device():
    run = blurred(collate_ms=30, transforms=[], worker_stacks=[(COLLATE, 0.6, 1), (DECODE, 0.4, 1)])
    names = {each.name for each in found(play(run), "slow-collate").remedies}
    assert "device-transform" not in names
    assert "faster-code" in names


def test_full_cores_ask_for_auxiliary_hosts_and_idle_ones_do_not():
    offloaded = remedy(found(play(blurred()), "cpu-bound-worker"), "auxiliary-hosts")
    # Two more cores like these: 1.5 to 2 times the batches, as a core there does half to all.
    assert 1.4 < offloaded.predicted_speedup < 2.5
    idle = found(play(blurred(workers=1, cores=8, busy_cores=1.5)), "cpu-bound-worker")
    assert "auxiliary-hosts" not in {each.name for each in idle.remedies}


def test_reading_falls_to_what_the_fastest_batches_took():
    run = Run(workers=2, service_ms=60, worker_cpu=0.1, busy_cores=0.5, read_bytes=1_000_000)
    run.worker_stacks = [(READ, 0.9, 0.02), (DECODE, 0.1, 0.9)]
    tables = play(run)
    cached = remedy(found(tables, "slow-storage"), "shards")
    # 6 ms of work; reading 1 MB, 32 samples, takes 0.5 to 8.2 ms: faster than a step of 10.6 ms.
    assert cached.predicted_speedup == pytest.approx(30 / 10.6, rel=0.1)
    # Some batches came from the page cache, and the disk is slow: those show what is left.
    for place, row in enumerate(tables.rows["batches"]):
        row["read_bytes"] = 20_000_000
        if place % 5 == 0:
            row["wall_ns"] = 30 * MS
            row["cpu_ns"] = 6 * MS
    partly = remedy(found(tables, "slow-storage"), "shards")
    assert partly.low < cached.low
    assert 1.2 < partly.predicted_speedup < cached.predicted_speedup


def test_threads_of_workers_can_be_limited_without_an_edit():
    run = Run(workers=4, service_ms=240, cores=4, busy_cores=4, threads=3, worker_cpu=0.3)
    limited = remedy(found(play(run), "oversubscribed-threads"), "threads")
    assert limited.overrides == (Override("worker_threads", 1),)
    assert limited.low <= 1.0  # the threads may do work
    assert limited.high > 1.3  # or one of three
    # Twelve threads want four cores.
    assert "33% is taken to be work" in limited.how
    assert "at the low end all of it is work, at the high end 5%." in limited.how


def two_workers_on_full_cores(run_percent: float) -> RunTables:
    """Play two workers of some threads each, and a rank that uses little, on four full cores."""
    run = Run(workers=2, service_ms=240, cores=4, busy_cores=4, threads=2.4, worker_cpu=0.9)
    tables = play(run)
    for t_ns in tables.system["t_ns"]:
        for pid, percent in ((100, 10.0), (1000, run_percent), (1001, run_percent)):
            tables.add("process_usage", t_ns=t_ns, pid=pid, cpu_percent=percent, threads=6)
    return tables


def test_threads_wait_for_each_other_by_what_the_job_and_others_want_of_its_cores():
    tables = two_workers_on_full_cores(190)  # five threads on four cores
    alone = remedy(found(tables, "oversubscribed-threads"), "threads")
    assert "at the high end 42%." in alone.how
    # Of the machine: a container's own threads are not distinguished there.
    tables.system["running_threads"] = [400.0] * len(tables.system["t_ns"])
    assert remedy(found(tables, "oversubscribed-threads"), "threads") == alone
    crowded = two_workers_on_full_cores(100)  # others take 1.9 of the cores
    shared = remedy(found(crowded, "oversubscribed-threads"), "threads")
    assert "at the high end 5%." in shared.how
    assert shared.high > alone.high


def test_a_worker_wants_no_more_cores_than_it_has_threads():
    tables = two_workers_on_full_cores(190)
    for row in tables.rows["batches"]:  # its main thread sleeps while its threads work
        row["cpu_ns"] //= 100
    assert gather_evidence(tables).wanted_threads == pytest.approx(2 * 6, rel=0.05)
    for row in tables.rows["process_usage"]:
        row["threads"] = 0  # not recorded
    assert gather_evidence(tables).wanted_threads > 100


def test_threads_of_ranks_that_wait_for_a_core_are_counted():
    model = stack(f"{SCRIPT}:50:<module>", f"{SCRIPT}:9:Net.forward")
    run = Run(workers=1, service_ms=2, ranks=2, cores=2, busy_cores=2)
    run.rank_stacks = [(model, "forward", 1.0, 0.25)]
    tables = play(run)
    for t_ns in tables.system["t_ns"]:
        for rank in range(2):
            for pid, percent in ((100 + rank, 100.0), (1000 + 10_000 * rank, 0.0)):
                tables.add("process_usage", t_ns=t_ns, pid=pid, cpu_percent=percent)
    # On full cores each main thread gets a quarter of one, and each rank uses a whole one.
    assert gather_evidence(tables).wanted_threads == pytest.approx(2 * 4, rel=0.15)


def test_what_batches_take_beyond_the_calmest_is_what_their_threads_waited_for_each_other():
    run = Run(workers=4, service_ms=240, cores=4, busy_cores=4, threads=3, worker_cpu=0.3)
    alike, tables = play(run), play(run)
    for row in tables.rows["batches"][::5]:
        row["cpu_ns"] //= 5
        row["process_cpu_ns"] //= 5
    before, after = (
        remedy(found(each, "oversubscribed-threads"), "threads") for each in (alike, tables)
    )
    assert before.low <= 1.0 < after.low
    assert after.high / after.low < before.high / before.low
    assert "as in the calmest of the batches" in after.how


@pytest.mark.parametrize(("workers", "rule"), [(1, "cpu-starved-by-ranks"), (2, None)])
def test_threads_of_a_rank_alone_spin_only_where_they_have_no_cores(workers: int, rule: str | None):
    run = Run(workers=workers, ranks=4, service_ms=60, cores=4, busy_cores=4, threads=3,
              worker_cpu=1.0)  # fmt: skip
    alike, uncontended = play(run), play(run)
    for row in uncontended.rows["batches"][::5]:
        row["cpu_ns"] //= 8
        row["process_cpu_ns"] //= 8
    assert RULES["cpu-starved-by-ranks"](gather_evidence(alike)) is None
    proposed = RULES["cpu-starved-by-ranks"](gather_evidence(uncontended))
    assert (proposed.rule if proposed is not None else None) == rule


def test_too_many_workers_are_shown_that_fewer_lose_nothing():
    run = Run(workers=12, service_ms=200, cores=2, busy_cores=2, worker_cpu=0.15)
    fewer = remedy(found(play(run), "oversubscribed-threads"), "workers")
    assert fewer.change == "2 workers instead of 12"
    assert fewer.overrides == (Override("num_workers", 2, "train.py:40"),)


def test_batches_of_few_tensors_go_over_in_half_the_time_or_less():
    sent = remedy(
        found(play(Run(workers=2, service_ms=10, send_ms=45, busy_cores=2)), "slow-transfer"),
        "tensors",
    )
    # Handing over takes 45 ms and two workers share it; half of it or none is left.
    assert 22.5 / 11.4 * 0.9 <= sent.predicted_speedup <= 22.5 / 10.4 * 1.1


def test_batches_of_few_tensors_are_taken_in_half_the_time_or_less():
    tables = play(Run(workers=2, service_ms=10, send_ms=45, busy_cores=2))
    for row in tables.rows["fetches"]:
        row["receive_ns"], row["receive_cpu_ns"] = 10 * MS, int(10 * MS / 1.5)
    taken = remedy(found(tables, "slow-transfer"), "tensors")
    # A step of 10.5 ms takes a batch in 10 more: as long as workers need to hand one over.
    assert 22.5 / 15.5 * 0.9 <= taken.predicted_speedup <= 22.5 / 10.5 * 1.1


@pytest.mark.parametrize(("cpu_ms", "most_left_ms"), [(24.0, 2.0), (12.0, 2.0), (3.0, 0.75)])
def test_what_a_rank_reads_of_many_tensors_goes_with_them_whatever_their_size(
    cpu_ms: float, most_left_ms: float
):
    """A tensor goes by handle: where reading a batch takes the rank long, it is of many of them."""
    tables = play(Run(workers=4, service_ms=10, send_ms=25, busy_cores=3))
    for row in tables.rows["fetches"]:
        row["receive_ns"] = row["receive_cpu_ns"] = int(cpu_ms * MS)
        row["wait_ns"] = max(row["wait_ns"], int(cpu_ms * MS))
    for row in tables.rows["steps"]:
        longer = max(int(cpu_ms * MS) - row["data_wait_ns"], 0)
        row["data_wait_ns"] += longer
        row["wall_ns"] += longer
    few = remedy(found(tables, "slow-transfer"), "tensors")
    assert few.predicted_speedup is not None
    assert few.low is not None
    step_ms = 10.5
    least = (step_ms + cpu_ms) / (step_ms + most_left_ms)
    assert few.low >= least * 0.9
    assert least * 0.97 <= few.predicted_speedup <= (step_ms + cpu_ms) / step_ms * 1.03


def test_half_the_syncs_save_half_their_time():
    run = Run(workers=4, service_ms=8, ranks=2, cores=16, busy_cores=4)
    run.phases_ms = {**run.phases_ms, "sync": 6.0}
    saved = remedy(found(play(run), "sync-bound"), "sync-less")
    assert saved.predicted_speedup == pytest.approx(16.6 / 13.6, rel=0.03)


def test_a_script_without_a_loader_is_shown_what_workers_would_give():
    load = stack(f"{SCRIPT}:50:<module>", f"{SCRIPT}:21:make_batch")
    model = stack(
        f"{SCRIPT}:50:<module>", "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:9:f"
    )
    run = Run(loader=False, rank_stacks=[(load, "forward", 0.6, 1.0), (model, "forward", 0.4, 1.0)])
    loader = remedy(found(play(run), "data-wait"), "loader")
    assert loader.change == "a DataLoader with 2 workers"
    assert loader.predicted_speedup == pytest.approx(1 / 0.4, rel=0.25)


def gpu_used(tables: RunTables, percent: float) -> RunTables:
    ticks = len(tables.system["t_ns"])
    tables.system["gpu_0_utilisation_percent"] = [percent] * ticks
    return tables


def test_twice_the_batch_gives_at_least_what_the_device_idles():
    tables = gpu_used(play(Run(workers=4, service_ms=4, busy_cores=3)), 30.0)
    bigger = remedy(found(tables, "small-batch"), "bigger-batch")
    # Of 10.5 ms 70 to 100 % are paid once for two batches.
    assert 1 / (1 - 0.7 / 2) * 0.97 <= bigger.predicted_speedup <= 2.0 * 1.03
    assert bigger.high >= 1.9


def test_steps_of_different_sizes_show_what_a_step_costs_whatever_its_batch():
    tables = play(Run(workers=4, service_ms=4, busy_cores=3, batches=200))
    random = np.random.default_rng(5)
    for row in tables.rows["steps"]:
        row["samples"] = int(random.integers(8, 64))
        own = int((2.0 + 0.25 * row["samples"]) * MS)
        row["wall_ns"] = own + row["data_wait_ns"]
        row["forward_ns"] = own - 5 * MS
        row["backward_ns"], row["optimizer_ns"] = 4 * MS, 1 * MS
    steps = read_steps(tables)
    fixed = fixed_cost_ns(steps)
    assert fixed is not None
    assert fixed == pytest.approx((2 * MS, 2 * MS), rel=0.1)
    assert fixed_cost_ns(read_steps(play(Run()))) is None
    proposed = remedy(found(gpu_used(tables, 30.0), "small-batch"), "bigger-batch")
    step = 2.0 + 0.25 * 35.5
    assert proposed.predicted_speedup == pytest.approx(step / (step - 1.0), rel=0.05)
    assert "steps of different sizes" in proposed.how


def test_every_remedy_of_a_starved_run_is_predicted():
    diagnosis = diagnose(play(blurred(threads=2.0)))
    remedies = [each for finding in diagnosis.findings for each in finding.remedies]
    assert {"threads", "faster-code", "auxiliary-hosts"} <= {each.name for each in remedies}
    assert all(each.predicted_speedup is not None for each in remedies)


def test_what_would_help_another_run_is_not_tried_on_this_one():
    helps = Remedy(
        name="workers", change="", predicted_speedup=2.0, low=1.9, high=2.1, how="",
        overrides=(Override("num_workers", 4),),
    )  # fmt: skip
    diagnosis = diagnose(play(Run(workers=4, service_ms=10, busy_cores=3)))
    proposed = Finding(
        rule="cpu-starved-by-ranks", severity="info", title="", seconds_lost=0.0, evidence={},
        remedies=(helps,), forecast=True,
    )  # fmt: skip
    assert best_remedy(type(diagnosis)(verdict=diagnosis.verdict, findings=(proposed,))) is None
