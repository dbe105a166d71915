"""What the doctor says where the rank's sampler takes the time, or one worker makes it all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import Finding
from headrace.observe.whatif.measured_pipeline import measure, read_batch_work
from headrace.observe.whatif.prediction import Simulator
from headrace.observe.whatif.tables import Columns, columns
from headrace.observe.whatif.worker_shares import read_worker_shares
from run_tables import AUGMENT, SCRIPT, WORKER_LOOP, Run, RunTables, play, stack

TORCH_DATA = "/venv/lib/python3.11/site-packages/torch/utils/data"
PACKAGES = "/venv/lib/python3.11/site-packages"
LOOP = f"{SCRIPT}:50:main"
NEXT = stack(
    LOOP,
    f"{TORCH_DATA}/dataloader.py:732:_BaseDataLoaderIter.__next__",
    f"{TORCH_DATA}/dataloader.py:1540:_MultiProcessingDataLoaderIter._try_put_index",
    f"{TORCH_DATA}/dataloader.py:715:_BaseDataLoaderIter._next_index",
)
BUCKETS = f"{SCRIPT}:30:Buckets.__iter__"
RANDOM = stack(
    f"{TORCH_DATA}/sampler.py:356:BatchSampler.__iter__",
    f"{TORCH_DATA}/sampler.py:189:RandomSampler.__iter__",
)
DISTRIBUTED = stack(
    f"{TORCH_DATA}/sampler.py:356:BatchSampler.__iter__",
    f"{TORCH_DATA}/distributed.py:112:DistributedSampler.__iter__",
)
LIBRARY = stack(
    f"{PACKAGES}/graphs/sampler.py:12:NeighborSampler.__iter__",
    f"{PACKAGES}/graphs/walks.py:88:walk",
)
EAGER = stack(
    LOOP,
    f"{TORCH_DATA}/dataloader.py:690:_BaseDataLoaderIter.__init__",
    f"{SCRIPT}:30:Buckets.__iter__",
)
OWN = stack(
    LOOP,
    f"{PACKAGES}/headrace/data/loader/iteration.py:431:BatchStream._give_out",
    f"{PACKAGES}/headrace/data/loader/iteration.py:73:SamplerBatchSpecs.__iter__",
    f"{SCRIPT}:30:Buckets.__iter__",
)
IDLE: dict[str, Any] = {"workers": 4, "service_ms": 8, "busy_cores": 3}


def worst(run: Run) -> Finding:
    return diagnose(play(run)).findings[0]


@pytest.mark.parametrize(
    ("seen", "line", "name"),
    [
        (stack(NEXT, BUCKETS), 30, "Buckets.__iter__"),
        (stack(NEXT, f"{TORCH_DATA}/sampler.py:356:BatchSampler.__iter__", BUCKETS), 30, "Buckets"),
        (stack(NEXT, BUCKETS, f"{PACKAGES}/numpy/sorting.py:9:argsort"), 30, "Buckets.__iter__"),
        (stack(NEXT, BUCKETS, f"{AUGMENT}:5:distance"), 30, "Buckets.__iter__"),
        (stack(NEXT, BUCKETS, f"{SCRIPT}:12:Buckets._draw", f"{AUGMENT}:5:distance"), 12, "._draw"),
        (stack(NEXT, RANDOM), 40, "RandomSampler"),
        (stack(NEXT, DISTRIBUTED), 40, "DistributedSampler"),
        (stack(NEXT, LIBRARY), 40, "NeighborSampler"),
        (EAGER, 30, "Buckets.__iter__"),
        (OWN, 30, "Buckets.__iter__"),
    ],
)
@pytest.mark.parametrize("workers", [4, 0])
def test_a_slow_sampler_is_named_whatever_the_workers_do(
    seen: str, line: int, name: str, workers: int
):
    run = Run(
        **{**IDLE, "workers": workers, "service_ms": 8 if workers else 0.5}, sampler_ms=8,
        rank_stacks=[(seen, "data_wait", 0.4, 1.0), (LOOP, "forward", 0.6, 1.0)],
    )  # fmt: skip
    finding = worst(run)
    assert (finding.rule, finding.severity) == ("slow-sampler", "critical")
    assert finding.cause is not None
    assert (finding.cause.file, finding.cause.line) == (SCRIPT, line)
    assert name in str(finding.cause)
    assert finding.evidence["sampler_share"] == pytest.approx(8 / 18.6, rel=0.05)
    (remedy,) = finding.remedies
    assert remedy.predicted_speedup == pytest.approx(18.6 / 12.6, rel=0.1)
    lists_all = {stack(NEXT, RANDOM), stack(NEXT, DISTRIBUTED)}
    assert ("headrace.DataLoader" in remedy.how) == (seen in lists_all)


def test_a_sampler_that_no_stack_shows_is_named_by_its_loader():
    finding = worst(Run(**IDLE, sampler_ms=8))
    assert finding.rule == "slow-sampler"
    assert finding.cause is not None
    assert (finding.cause.place, finding.cause.name) == ("train.py:40", "")


def test_the_time_in_a_sampler_is_no_handing_over():
    rules = {finding.rule for finding in diagnose(play(Run(**IDLE, sampler_ms=8))).findings}
    assert not rules & {"slow-transfer", "data-wait", "too-few-workers"}
    healthy = {finding.rule for finding in diagnose(play(Run(**IDLE, sampler_ms=0.3))).findings}
    assert "slow-sampler" not in healthy


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_stays_in_the_rank_when_workers_are_predicted(workers: int):
    measured = measure(play(Run(workers=workers, service_ms=10, busy_cores=1, sampler_ms=8)))
    assert measured is not None
    assert measured.consume_ns.mean() / 1e6 == pytest.approx(10.5 + 8, rel=0.05)
    assert measured.taking_ns / 1e6 < 0.5


def made(*epochs: list[int], ranks: int = 1) -> tuple[Columns, Columns]:
    """Return `batches` and `fetches` of epochs in which workers made so many batches each."""
    batches, fetches, now = [], [], 0
    for epoch, counts in enumerate(epochs):
        workers = [worker for worker, count in enumerate(counts) for _ in range(count)]
        for number, worker in enumerate(workers):
            now += 10
            batches += [(rank, worker, now) for rank in range(ranks)]
            fetches += [(rank, epoch, number, now + 5) for rank in range(ranks)]
    rows = np.array(batches), np.array(fetches)
    return (
        Columns(dict(zip(("rank", "worker", "start_ns"), rows[0].T, strict=True))),
        Columns(dict(zip(("rank", "epoch", "batch", "start_ns"), rows[1].T, strict=True))),
    )


@pytest.mark.parametrize(
    ("epochs", "workers", "effective", "idle"),
    [
        ([[300, 0, 0, 0]], 4, 1.0, 3),  # one file
        ([[100, 100, 100, 0]], 4, 3.0, 1),  # three files for four workers
        ([[288, 13], [288, 13]], 2, 1.045, 0),  # files of unlike size
        ([[40, 0], [0, 40]], 2, 1.0, 1),  # the file goes to another worker in each epoch
        ([[50, 50], [50, 49]], 2, 2.0, 0),
        ([[13, 12, 12]] * 3, 3, 3.0, 0),  # an epoch's last batch
        ([[6, 5, 5, 5, 5, 5, 5, 5]] * 4, 8, 8.0, 0),
        ([[4, 3, 3, 3]] * 9, 4, 4.0, 0),
        ([[9, 4, 4, 4, 4, 4, 4, 4]] * 4, 8, 8 * 5 / 9, 0),  # 5 at the most equal shares
        ([[30]], 1, 1.0, 0),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_shares_are_counted_epoch_by_epoch(
    epochs: list[list[int]], workers: int, effective: float, idle: int, ranks: int
):
    shares = read_worker_shares(*made(*epochs, ranks=ranks), workers)
    assert shares is not None
    assert shares.effective == pytest.approx(effective, rel=0.02)
    assert shares.idle == idle
    assert shares.unequal == (workers > 1 and effective < 0.9 * workers)


def test_shares_are_unknown_without_workers_or_in_an_epoch_just_begun():
    batches, fetches = made([40])
    assert read_worker_shares(batches, fetches, 0) is None
    assert read_worker_shares(*made([3, 0, 0]), 3) is None


STREAM: dict[str, Any] = {
    "workers": 4, "service_ms": 33, "worker_cpu": 0.05, "busy_cores": 0.5,
    "worker_stacks": [(stack(WORKER_LOOP, f"{SCRIPT}:14:Files.__iter__"), 0.9, 0.05)],
}  # fmt: skip


def test_where_one_worker_makes_all_batches_no_more_workers_are_proposed():
    diagnosis = diagnose(play(Run(**STREAM, order=(0,))))
    finding = diagnosis.findings[0]
    assert finding.rule == "unequal-workers"
    assert finding.title == "worker 0 makes 100% of the batches, 3 of the 4 workers make none"
    (remedy,) = finding.remedies
    assert remedy.predicted_speedup == pytest.approx(33.2 / 10.6, rel=0.1)
    assert "more workers do not help" in remedy.how
    names = {each.name for found in diagnosis.findings for each in found.remedies}
    assert "workers" not in names
    assert "with equal shares for its 4 workers" in diagnosis.verdict.sentence


def test_workers_that_make_one_batch_an_epoch_make_some():
    tables = play(Run(**STREAM, order=(0,)))
    batches = tables.rows["batches"]
    for worker, row in enumerate(sorted(batches, key=lambda row: row["start_ns"])[:4]):
        row |= {"worker": worker, "batch": 0}
    loaders = columns(tables, "loaders")
    work = read_batch_work(tables, int(loaders["loader"][0]))
    assert work is not None
    shares = work.shares(loaders, columns(tables, "fetches"))
    assert shares is not None
    assert shares.idle == 0
    assert shares.largest < 1.0


def test_where_two_of_four_workers_share_the_batches_they_count_as_two():
    measured = measure(play(Run(**STREAM, order=(0, 1))))
    assert measured is not None
    assert (measured.pipeline.workers, measured.pipeline.depth) == (2, 8)
    finding = worst(Run(**STREAM, order=(0, 1)))
    assert finding.rule == "unequal-workers"
    assert "worker 0 makes 50% of the batches, 2 of the 4 workers make none" in finding.title


@pytest.mark.parametrize(("order", "speedup"), [((0, 1, 0, 1, 0), 1.2), ((0, 1, 0), 1.33)])
def test_a_worker_that_makes_a_little_more_than_its_share_is_told(
    order: tuple[int, ...], speedup: float
):
    diagnosis = diagnose(play(Run(**{**STREAM, "workers": 2}, order=order)))
    finding = diagnosis.findings[0]
    assert finding.rule == "unequal-workers"
    share = order.count(0) / len(order)
    assert f"share unequally: worker 0 makes {share:.0%} of the batches" in finding.title
    assert finding.remedies[0].predicted_speedup == pytest.approx(speedup, rel=0.05)
    assert "with equal shares for its 2 workers" in diagnosis.verdict.sentence


def test_a_stream_that_is_shared_equally_may_have_more_workers():
    diagnosis = diagnose(play(Run(**{**STREAM, "workers": 2}, order=(0, 1))))
    assert not [each for each in diagnosis.findings if each.rule == "unequal-workers"]
    (how,) = {
        each.how for found in diagnosis.findings for each in found.remedies
        if each.name == "workers"
    }  # fmt: skip
    assert "unless its __iter__ gives each worker a part" in how
    assert "the workers beyond that idle" in how


def test_one_rank_that_reads_for_all_is_told():
    run = Run(workers=2, service_ms=40, ranks=2, busy_cores=2)
    tables = play(run)
    # The other's workers only made the first few ahead.
    rows = tables.rows["batches"]
    tables.rows["batches"] = [row for row in rows if row["rank"] == 0 or row["batch"] < 2]
    diagnosis = diagnose(tables)
    finding = diagnosis.findings[0]
    assert finding.rule == "single-reader"
    assert finding.title == "rank 0 makes the batches of all 2 ranks, and the others wait for it"
    assert finding.remedies[0].name == "read-by-rank"
    assert "dispatch_batches=False" in finding.remedies[0].how
    both = {each.rule for each in diagnose(play(run)).findings}
    assert "single-reader" not in both


def taken_elsewhere(*, share: float) -> RunTables:
    """Return the tables of a run whose batches another thread takes, but for a share of them."""
    tables = play(
        Run(
            workers=1, service_ms=40, busy_cores=1,
            rank_stacks=[(f"{SCRIPT}:12:Background.__next__", "other", 0.7, 0.02)],
        )
    )  # fmt: skip
    for row in tables.rows["steps"]:
        row["batches"] = row["samples"] = 0
        row["forward_ns"], row["data_wait_ns"] = row["forward_ns"] + row["data_wait_ns"], 0
    tables.rows["fetches"] = tables.rows["fetches"][: int(120 * share)]
    return tables


def test_a_loader_that_is_not_followed_is_said_to_be_so():
    diagnosis = diagnose(taken_elsewhere(share=0.1))
    assert diagnosis.findings[0].rule == "data-wait"
    assert diagnosis.findings[0].remedies == ()
    sentence = diagnosis.verdict.sentence
    assert "Background.__next__ at train.py:12 takes" in sentence
    assert sentence.count("The loader at train.py:40 is not followed") == 1
    assert "itself waits for its data" not in sentence


def test_a_loader_without_any_batch_of_torchs_is_not_followed_either():
    tables = taken_elsewhere(share=0)
    tables.rows["batches"] = []
    assert "train.py:40 is not followed" in diagnose(tables).verdict.sentence


def made_by_thread(run: Run) -> RunTables:
    """Return the tables of a run whose one worker is a thread of the script's own."""
    tables = play(run)
    tables.rows["loaders"][0] |= {"workers": 0, "prefetch_factor": 0, "start_method": ""}
    for row in tables.rows["batches"]:
        row["worker"] = -1
    return tables


def test_a_thread_that_makes_all_batches_is_no_worker_and_not_the_training_thread():
    # What the training thread is at meanwhile is a queue, and no code that makes batches.
    waiting = (f"{SCRIPT}:12:Background.__next__", "data_wait", 0.5, 0.0)
    run = Run(workers=1, service_ms=20, cores=2, busy_cores=1.1, rank_stacks=[waiting])
    finding, *others = diagnose(made_by_thread(run)).findings
    assert (finding.rule, finding.cause) == ("too-few-workers", None)
    assert "one thread of the rank makes all batches of the loader at train.py:40" in finding.title
    (remedy,) = finding.remedies
    assert remedy.change == "2 workers instead of none"
    # The rank, which waits 10 of 20 ms, may also wait for the interpreter while it computes.
    assert remedy.low < 20 / 12 < remedy.high
    assert all("Background" not in each.title for each in others)


def test_cores_that_a_job_has_used_were_not_taken_by_others():
    run = Run(workers=2, service_ms=22, worker_cpu=0.95, cores=2, busy_cores=2.0)
    tables = play(run)
    end_ns = max(tables.system["t_ns"])
    for pid in (100, 1000, 1001):  # sampled as if they had used 0.9 of the 1.9 cores
        for t_ns in range(0, end_ns, 100_000_000):
            tables.add("process_usage", t_ns=t_ns, pid=pid, cpu_percent=30.0)
    measured = measure(tables)
    assert measured is not None
    used = 2 * 0.95
    assert measured.pipeline.cores >= used
    assert Simulator(measured).calibration == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("torchdata/nodes/loader.py", "torchdata.nodes"),
        ("fastai/data/load.py", "fastai"),
        ("nvidia/dali/plugin/pytorch/__init__.py", "NVIDIA DALI"),
    ],
)
def test_a_librarys_loader_that_is_none_of_torchs_is_said_not_to_be_followed(
    file: str, library: str
):
    site = "/venv/lib/python3.11/site-packages"
    asking = stack(f"{SCRIPT}:12:<module>", f"{site}/{file}:90:Loader.__next__")
    run = Run(loader=False, rank_stacks=[(asking, "other", 0.7, 0.02)])
    diagnosis = diagnose(play(run))
    finding = diagnosis.findings[0]
    assert (finding.rule, finding.remedies) == ("data-wait", ())
    assert f"The loader of {library} is not followed" in diagnosis.verdict.sentence
    assert "DataLoader with" not in diagnosis.verdict.sentence


def test_loaders_for_evaluation_are_followed_where_the_script_makes_its_own_batches():
    assert "not followed" not in diagnose(taken_elsewhere(share=1)).verdict.sentence
    assert "not followed" not in diagnose(play(Run(workers=2))).verdict.sentence
    assert "not followed" not in diagnose(play(Run(loader=False))).verdict.sentence
