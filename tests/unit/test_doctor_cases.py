"""The doctor on runs with one thing wrong: a table of runs, and what the doctor says of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import Diagnosis, Finding
from run_tables import AUGMENT, MS, PIL, SCRIPT, WORKER_LOOP, Run, RunTables, play, stack

TORCH = "/venv/lib/python3.11/site-packages/torch"
LOOP = f"{SCRIPT}:50:<module>"
GETITEM = f"{AUGMENT}:9:Faces.__getitem__"
BLUR = stack(WORKER_LOOP, GETITEM, f"{AUGMENT}:31:RandomBlur.__call__", f"{PIL}:160:filter")
DECODE = stack(WORKER_LOOP, GETITEM, f"{AUGMENT}:12:decode")
READ = stack(WORKER_LOOP, f"{AUGMENT}:14:read_sample")
COLLATE = stack(WORKER_LOOP, f"{AUGMENT}:60:pad_collate")
LOCKED = stack(
    WORKER_LOOP,
    f"{AUGMENT}:20:Faces.__getitem__",
    "/usr/lib/python3.11/multiprocessing/synchronize.py:95:SemLock.__enter__",
)
FETCH = f"{TORCH}/utils/data/_utils/fetch.py"
DISTANCES = stack(WORKER_LOOP, f"{FETCH}:55:_MapDatasetFetcher.fetch", f"{SCRIPT}:60:distances")
STACK = f"{TORCH}/utils/data/_utils/collate.py"
STACKED = stack(
    WORKER_LOOP, f"{FETCH}:55:_MapDatasetFetcher.fetch", f"{STACK}:398:default_collate",
    f"{STACK}:272:collate_tensor_fn",
)  # fmt: skip
ITEM = stack(WORKER_LOOP, f"{FETCH}:52:_MapDatasetFetcher.fetch", f"{SCRIPT}:70:Data.__getitem__")
NOISE = f"{AUGMENT}:9:Compose.__call__"
SAVE = stack(LOOP, f"{SCRIPT}:77:save", f"{TORCH}/x.py:5:save")
QUEUE = "/usr/lib/python3.11/queue.py:171:Queue.get"
FORWARD = f"{SCRIPT}:12:Network.forward"
EVALUATE = stack(f"{SCRIPT}:58:main", f"{SCRIPT}:30:evaluate", FORWARD)
MODEL = stack(LOOP, f"{TORCH}/nn/modules/module.py:9:_call_impl")
THREAD = stack(
    WORKER_LOOP,
    "/home/ann/data.py:12:Distant.__getitem__",
    "/usr/lib/python3.11/threading.py:969:Thread.start",
    "/usr/lib/python3.11/threading.py:327:Condition.wait",
)
PHASES_MS = Run().phases_ms
HEALTHY: dict[str, Any] = {"workers": 4, "service_ms": 8, "busy_cores": 3}
FULL: dict[str, Any] = {"workers": 2, "service_ms": 50, "cores": 2, "busy_cores": 1.9}
WAITING: dict[str, Any] = {"workers": 2, "service_ms": 60, "worker_cpu": 0.1, "busy_cores": 0.5}
EPOCHS: dict[str, Any] = {**HEALTHY, "workers": 2, "batches": 20, "epochs": 6, "restart_ms": 300}


def unchanged(tables: RunTables) -> None:
    """Leave the tables of a run as they are."""


def slow_steps(every: int, **more_ms: int) -> Callable[[RunTables], None]:
    """Have every so many steps take longer, in these phases."""

    def change(tables: RunTables) -> None:
        for row in tables.rows["steps"][every - 1 :: every]:
            for phase, ms in more_ms.items():
                row[f"{phase}_ns"] += ms * MS
                row["wall_ns"] += ms * MS

    return change


def slow_host(tables: RunTables) -> None:
    """Have all that rank 2 does take half as long again."""
    for row in tables.rows["steps"]:
        if row["rank"] == 2:
            for phase in ("forward", "backward", "optimizer", "other"):
                more = row[f"{phase}_ns"] // 2
                row[f"{phase}_ns"] += more
                row["wall_ns"] += more


def first_batch_after(seconds: int) -> Callable[[RunTables], None]:
    def change(tables: RunTables) -> None:
        tables.rows["fetches"][0]["wait_ns"] = seconds * 1000 * MS

    return change


def chance(every: int) -> Callable[[RunTables], None]:
    """Have some steps be slow by chance, elsewhere than each twentieth."""

    def change(tables: RunTables) -> None:
        for row in tables.rows["steps"][33:400:every]:
            row["forward_ns"] += 15 * MS
            row["wall_ns"] += 15 * MS

    return change


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run, and its diagnosis; nothing is checked of what is not given.

    Attributes:
        worst: Rule of the first finding; None: there is no finding.
        rules: Rules of all findings, in order.
        absent: Rules that have found nothing.
        cause: Attributes of the first finding's cause.
        evidence: Of the first finding.
        remedies: Names of the first finding's remedies.
        no_remedy: A name that is not among them.
        speedup: What the first of them, or that of the name before, is predicted to give.
        words: In the verdict's sentence, which has this start and end.
    """

    run: Run
    change: Callable[[RunTables], None] = unchanged
    worst: str | None = None
    severity: str = ""
    rules: tuple[str, ...] | None = None
    absent: tuple[str, ...] = ()
    cause: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    remedies: set[str] | None = None
    no_remedy: str = ""
    speedup: tuple[str, float] | None = None
    bound: str = ""
    words: tuple[str, ...] = ()
    starts: str = ""
    ends: str = ""


CASES = {
    "a healthy run": Case(
        run=Run(workers=4, service_ms=10, busy_cores=3),
        rules=("compute-bound",),
        remedies=set(),
        bound="compute",
        starts="The accelerator is the limit:",
        ends="nothing to fix.",
    ),
    "a worker bound by one transform": Case(
        run=Run(
            **FULL,
            worker_stacks=[(BLUR, 0.71, 1.0), (DECODE, 0.29, 1.0)],
            transforms=[
                ("Faces.transform: Compose", AUGMENT, 1, 0.9),
                ("Faces.transform.transforms[0]: RandomBlur", AUGMENT, 28, 0.7),
                ("Faces.transform.transforms[1]: ToTensor", AUGMENT, 44, 0.2),
            ],
        ),
        worst="cpu-bound-worker",
        severity="critical",
        cause={
            "file": AUGMENT,
            "line": 31,
            "share": pytest.approx(0.71, abs=0.01),
            "function": "RandomBlur.__call__ > PIL/ImageFilter.py:filter",
            "transform": "Faces.transform.transforms[0]: RandomBlur",
        },
        no_remedy="workers",  # no core is idle
        speedup=("move-code", pytest.approx(25 / 10.6, rel=0.1)),
        bound="data",
        words=("RandomBlur at augment.py:31 takes 71% of the workers' time",),
    ),
    "one worker, and idle cores": Case(
        run=Run(
            workers=1,
            service_ms=30,
            busy_cores=1.5,
            worker_stacks=[(BLUR, 0.3, 1.0), (DECODE, 0.7, 1.0)],
        ),
        worst="too-few-workers",
        speedup=("workers", pytest.approx(30 / 10.6, rel=0.1)),
        words=(" instead of 1 the run would be 2.8 times as fast (",),
    ),
    "no workers": Case(
        run=Run(workers=0, service_ms=10, busy_cores=1),
        worst="too-few-workers",
        speedup=("workers", pytest.approx(20.5 / 10.6, rel=0.1)),
    ),
    "slow storage": Case(
        run=Run(
            **WAITING,
            read_bytes=1_000_000,
            worker_stacks=[(READ, 0.9, 0.02), (DECODE, 0.1, 0.9)],
        ),
        worst="slow-storage",
        cause={"line": 14},
        evidence={"bound": "latency"},
        remedies={"workers", "shards"},
    ),
    "waits of workers that read nothing but what the probe itself reads": Case(
        run=Run(
            **WAITING, read_bytes=100, worker_stacks=[(stack(WORKER_LOOP, GETITEM), 0.95, 0.05)]
        ),
        absent=("slow-storage",),
    ),
    "a line that reads": Case(
        run=Run(
            **WAITING,
            read_bytes=100,
            worker_stacks=[(stack(WORKER_LOOP, f"{AUGMENT}:14:read_chunk"), 0.95, 0.05)],
        ),
        worst="slow-storage",
    ),
    "slow collate": Case(
        run=Run(**FULL, collate_ms=30, worker_stacks=[(COLLATE, 0.6, 1.0), (DECODE, 0.4, 1.0)]),
        worst="slow-collate",
        cause={"file": AUGMENT, "line": 60},
    ),
    "stacking that takes a third of quick batches, and idle cores": Case(
        run=Run(
            workers=1,
            service_ms=20,
            busy_cores=1.5,
            collate_ms=7,
            worker_stacks=[(STACKED, 0.35, 1.0), (DECODE, 0.65, 1.0)],
        ),
        worst="too-few-workers",
        rules=("too-few-workers", "cpu-bound-worker", "slow-collate"),
    ),
    "slow collate by another function of the script": Case(
        run=Run(
            **FULL,
            collate_ms=49,
            worker_stacks=[(DISTANCES, 0.99, 1.0), (ITEM, 0.01, 1.0)],
            transforms=[("collate_fn", SCRIPT, 55, 0.98)],
        ),
        worst="slow-collate",
        cause={"file": SCRIPT, "line": 60, "function": "distances"},
    ),
    "workers that wait for a lock": Case(
        run=Run(
            workers=4,
            service_ms=80,
            worker_cpu=0.3,
            busy_cores=2,
            worker_stacks=[(LOCKED, 0.7, 0.01), (DECODE, 0.3, 1.0)],
        ),
        worst="lock-contention",
        cause={"line": 20},
    ),
    "a thread that a lone worker waits for is no lock": Case(
        run=Run(**{**WAITING, "workers": 1}, worker_stacks=[(THREAD, 0.9, 0.02)]),
        rules=("too-few-workers",),
    ),
    "gradient sync that is not hidden": Case(
        run=Run(**{**HEALTHY, "busy_cores": 4}, ranks=2, phases_ms={**PHASES_MS, "sync": 6.0}),
        worst="sync-bound",
        bound="sync",
    ),
    "a slow rank": Case(
        run=Run(**{**HEALTHY, "busy_cores": 8}, ranks=4, cores=32, slow_rank=2, slow_rank_ms=5.0),
        rules=("slow-rank",),
        evidence={"rank": 2, "phase": "forward", "kind": "compute"},
    ),
    "a rank whose every phase is slower": Case(
        run=Run(**{**HEALTHY, "busy_cores": 8}, ranks=4, cores=32),
        change=slow_host,
        worst="slow-rank",
        evidence={"rank": 2, "kind": "host"},
        title="its host or its device is slower",
    ),
    "steps that save checkpoints": Case(
        run=Run(
            **HEALTHY, rank_stacks=[(SAVE, "other", 0.2, 0.5)], outlier_every=20, outlier_ms=60.0
        ),
        worst="step-outliers",
        cause={"line": 77},
        evidence={"every_steps": 20},
    ),
    "what is special about long steps, and not the model that all run": Case(
        run=Run(
            **{**HEALTHY, "batches": 400, "outlier_every": 20, "outlier_ms": 60.0},
            rank_stacks=[
                (stack(f"{SCRIPT}:50:main", FORWARD), "forward", 0.4, 1.0),
                (EVALUATE, "other", 0.2, 1.0),
            ],
        ),
        worst="step-outliers",
        cause={"line": 30, "function": "evaluate"},
    ),
    "a rhythm among steps that are slow by chance, rarely": Case(
        run=Run(**HEALTHY, batches=400, outlier_every=20, outlier_ms=60.0),
        change=chance(70),
        worst="step-outliers",
        evidence={"every_steps": 20},
    ),
    "a rhythm among steps that are slow by chance, often": Case(
        run=Run(**HEALTHY, batches=400, outlier_every=20, outlier_ms=60.0),
        change=chance(9),
        worst="step-outliers",
        evidence={"every_steps": 20},
    ),
    "a rhythm that is spread over phases": Case(
        run=Run(**HEALTHY, batches=400),
        change=slow_steps(20, other=26, forward=22, optimizer=20),
        worst="step-outliers",
        evidence={"every_steps": 20, "phase": "other"},
    ),
    "workers that are started again each epoch": Case(
        run=Run(**EPOCHS),
        worst="workers-restarted",
        remedies={"persistent-workers"},
    ),
    "batches that vary": Case(
        run=Run(workers=2, prefetch_factor=1, service_ms=16, service_spread=0.7, batches=400),
        worst="shallow-prefetch",
    ),
    "threads of workers on full cores": Case(
        run=Run(workers=4, service_ms=80, cores=4, busy_cores=4, threads=3, worker_cpu=0.5),
        worst="oversubscribed-threads",
    ),
    "batches that take long to send": Case(
        run=Run(workers=2, service_ms=10, send_ms=45, busy_cores=2),
        worst="slow-transfer",
    ),
    "a script without a loader that makes its data": Case(
        run=Run(
            loader=False,
            rank_stacks=[
                (stack(LOOP, f"{SCRIPT}:21:make_batch"), "forward", 0.3, 1.0),
                (stack(LOOP, f"{SCRIPT}:22:make_batch", f"{SCRIPT}:9:mix"), "forward", 0.2, 1.0),
                (MODEL, "forward", 0.5, 1.0),
            ],
        ),
        worst="data-wait",
        cause={"line": 21},
        remedies={"loader", "move-code"},
        speedup=("move-code", pytest.approx(2.0, rel=0.02)),  # with what it calls
        starts="The script makes its data itself: make_batch",
    ),
    "a script without a loader that waits": Case(
        run=Run(
            loader=False,
            rank_stacks=[
                (stack(LOOP, f"{SCRIPT}:21:next_batch", QUEUE), "forward", 0.8, 0.0),
                (MODEL, "forward", 0.2, 1.0),
            ],
        ),
        rules=("data-wait",),
        cause={"line": 21},
        starts="The script itself waits for its data: next_batch",
    ),
    "a script without a loader that only trains": Case(
        run=Run(
            loader=False,
            rank_stacks=[(stack(MODEL, f"{SCRIPT}:9:Net.forward"), "forward", 0.97, 0.1)],
        ),
        rules=("compute-bound",),
    ),
    "time between the lines of a loop": Case(
        run=Run(
            **FULL,
            worker_stacks=[
                (stack(WORKER_LOOP, NOISE, f"{AUGMENT}:None:Noise.__call__"), 0.4, 1.0),
                (stack(WORKER_LOOP, NOISE, f"{AUGMENT}:36:Noise.__call__"), 0.35, 1.0),
                (stack(WORKER_LOOP, NOISE, f"{AUGMENT}:50:Crop.__call__"), 0.25, 1.0),
            ],
        ),
        cause={"line": 36, "share": pytest.approx(0.75, abs=0.01)},
    ),
    "a slow first batch of a short run": Case(
        run=Run(workers=4, service_ms=8, batches=400, busy_cores=3),
        change=first_batch_after(6),
        rules=("slow-start", "compute-bound"),
    ),
    "a slow first batch of a long run": Case(
        run=Run(workers=4, service_ms=8, batches=8000, busy_cores=3),
        change=first_batch_after(6),
        absent=("slow-start",),
    ),
    "long steps before the first that counts": Case(
        run=Run(
            **HEALTHY,
            batches=30,
            phases_ms={**PHASES_MS, "forward": 15_000.0, "backward": 15_000.0},
        ),
        rules=("compute-bound",),
        words=("nothing to fix",),
    ),
    "no step": Case(run=Run(batches=0), rules=(), starts="No training step was recorded"),
    **{
        f"{count} steps": Case(
            run=Run(batches=count),
            rules=(),
            starts=f"Too few steps were recorded ({count}) to tell",
        )
        for count in (1, 3, 11)
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_doctor_says_what_is_wrong(case: Case):
    tables = play(case.run)
    case.change(tables)
    diagnosis = diagnose(tables)
    check_verdict(case, diagnosis)
    if diagnosis.findings:
        check_worst(case, diagnosis.findings[0])


def check_verdict(case: Case, diagnosis: Diagnosis) -> None:
    found = tuple(finding.rule for finding in diagnosis.findings)
    assert case.rules is None or found == case.rules
    assert case.worst is None or found[0] == case.worst
    assert not {*case.absent} & {*found}
    assert diagnosis.verdict.bound == (case.bound or diagnosis.verdict.bound)
    assert diagnosis.verdict.sentence.startswith(case.starts)
    assert diagnosis.verdict.sentence.endswith(case.ends)
    for words in case.words:
        assert words in diagnosis.verdict.sentence


def check_worst(case: Case, worst: Finding) -> None:
    assert worst.severity == (case.severity or worst.severity)
    assert case.title in worst.title
    for name, value in case.cause.items():
        assert worst.cause is not None
        assert getattr(worst.cause, name) == value
    assert {name: worst.evidence[name] for name in case.evidence} == case.evidence
    remedies = {remedy.name: remedy for remedy in worst.remedies}
    assert case.remedies is None or remedies.keys() == case.remedies
    assert case.no_remedy not in remedies
    if case.speedup is not None:
        name, speedup = case.speedup
        assert remedies[name].predicted_speedup == speedup
