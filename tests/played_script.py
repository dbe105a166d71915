"""A script of one rank, played through as a run's tables, with the time outside of its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.findings import Diagnosis, Finding
from headrace.records.schema import PHASES
from run_tables import MS, SCRIPT, RunTables, stack

TORCH = "/venv/lib/python3.11/site-packages/torch"
LOOP = f"{SCRIPT}:50:<module>"
ITEM = stack(LOOP, f"{TORCH}/utils/data/dataloader.py:700:__next__", f"{SCRIPT}:9:Rows.__getitem__")
SAVE = stack(LOOP, f"{SCRIPT}:77:save")
LOCK = stack(
    f"{TORCH}/utils/data/_utils/worker.py:349:_worker_loop", f"{SCRIPT}:21:Rows.__getitem__"
)
QUEUE = stack(LOOP, "/usr/lib/python3.11/multiprocessing/queues.py:113:Queue.get")
TRAIN, HELD_OUT = 0, 1


@dataclass
class Script:
    """A rank's script, played through; times in milliseconds."""

    workers: tuple[int, int] = (2, 0)
    rank: int = 0
    start_ms: float = 50.0
    tables: RunTables = field(default_factory=RunTables)

    def __post_init__(self) -> None:
        self.now = int(self.start_ms * MS)
        self.batch, self.epoch = 0, {TRAIN: -1, HELD_OUT: -1}
        if self.rank == 0:
            self.tables.add("hosts", host="one", cores=8.0, memory_bytes=2**36, attempt=1)
        self.tables.add("processes", pid=100 + self.rank, role="rank", rank=self.rank, loader=-1,
                        worker=-1, world_size=1, attempt=1)  # fmt: skip
        for loader, workers in enumerate(self.workers):
            self.tables.add("loaders", rank=self.rank, loader=loader, kind="torch", dataset="Rows",
                            style="map", workers=workers, prefetch_factor=2, batch_size=8,
                            in_order=1, file=SCRIPT, line=40 + loader,
                            created_ns=self.now)  # fmt: skip

    def iterates(self, loader: int = TRAIN) -> Script:
        self.epoch[loader] += 1
        self.batch = 0
        return self

    def fetch(self, wait_ms: float, loader: int = TRAIN) -> int:
        wait = int(wait_ms * MS)
        self.tables.add("fetches", rank=self.rank, loader=loader, epoch=self.epoch[loader],
                        batch=self.batch, start_ns=self.now, wait_ns=wait, ready=-1,
                        receive_ns=-1, receive_cpu_ns=-1)  # fmt: skip
        self.tables.add("batches", rank=self.rank, loader=loader, worker=-1, batch=self.batch,
                        start_ns=self.now, wall_ns=wait, cpu_ns=wait, process_cpu_ns=wait,
                        samples=8, read_ns=-1)  # fmt: skip
        self.batch += 1
        return wait

    def row(self, kind: str, loader: int = TRAIN, batches: int = 1, **phases_ms: float) -> Script:
        spent = {f"{phase}_ns": int(phases_ms.get(phase, 0) * MS) for phase in PHASES}
        wall = sum(spent.values())
        number = sum(row["kind"] == kind for row in self.tables.rows["steps"])
        self.tables.add("steps", rank=self.rank, step=number, kind=kind, loader=loader,
                        start_ns=self.now, wall_ns=wall, batches=batches, samples=8 * batches,
                        **spent)  # fmt: skip
        self.now += wall
        return self

    def train(self, steps: int = 50, wait_ms: float = 1, **more_ms: float) -> Script:
        phases: dict[str, float] = {"forward": 15, "backward": 23, "optimizer": 1, **more_ms}
        for _ in range(steps):
            self.fetch(wait_ms)
            self.row("train", data_wait=wait_ms, **phases)
        return self

    def evaluate(
        self, batches: int = 20, wait_ms: float = 1, first_ms: float = 0, **more_ms: float
    ) -> Script:
        self.iterates(HELD_OUT)
        for number in range(batches):
            waited = wait_ms + (first_ms if number == 0 else 0)
            self.fetch(waited, HELD_OUT)
            self.row("eval", HELD_OUT, data_wait=waited, **{"forward": 15, **more_ms})
        return self

    def passes_over(self, batches: int, wait_ms: float) -> Script:
        for _ in range(batches):
            self.fetch(wait_ms)
            self.row("eval", data_wait=wait_ms, forward=0.05)
        return self

    def seen(
        self, text: str, phase: str, since_ns: int, until_ns: int | None = None, worker: int = -1
    ) -> Script:
        """Add stack samples of each second, as the sampler writes them."""
        until_ns = self.now if until_ns is None else until_ns
        for start in range(since_ns, until_ns, 1000 * MS):
            end = min(start + 1000 * MS, until_ns)
            self.tables.add("stacks", pid=100 + self.rank if worker < 0 else 1000 + worker,
                            rank=self.rank, loader=-1 if worker < 0 else TRAIN, worker=worker,
                            phase=phase, stack=text, start_ns=start, samples=50,
                            wall_ns=end - start, cpu_ns=(end - start) // 50,
                            end_ns=end)  # fmt: skip
        return self

    def between(self, ms: float, text: str = SAVE) -> Script:
        began = self.now
        return self.row("between", other=ms).seen(text, "other", began)

    def hangs(self, seconds: int, text: str = QUEUE, phase: str = "data_wait") -> Script:
        return self.seen(text, phase, self.now, self.now + seconds * 1000 * MS)


def epochs(script: Script, each: Callable[[Script], Any], count: int = 4) -> Script:
    for _ in range(count):
        each(script.iterates().train())
    return script


def found(script: Script) -> tuple[Diagnosis, dict[str, Finding]]:
    diagnosis = diagnose(script.tables)
    return diagnosis, {finding.rule: finding for finding in diagnosis.findings}


def account(script: Script) -> Any:
    return gather_evidence(script.tables).other_time.wall
