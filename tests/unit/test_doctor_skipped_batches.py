"""Batches that a training loop skips, and samples that workers do: by source, and by records."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import Diagnosis
from headrace.observe.doctor.skip_statements import part_statement, skip_statement
from run_tables import MS, RunTables, stack

TORCH = "/venv/lib/python3.11/site-packages/torch"
NEXT = f"{TORCH}/utils/data/dataloader.py:700:__next__"
OTHER_RANKS = "if number % world != rank:\n    continue"


def skipped(loop: str, body: str) -> str | None:
    """The statement that is found to skip batches; the loop asks for them at its second line."""
    source = f"def train():\n{indent(dedent(loop), ' ' * 4)}\n{indent(dedent(body), ' ' * 8)}\n"
    asks = next(place for place, line in enumerate(source.split("\n"), 1) if "loader" in line)
    line = skip_statement(source, asks)
    return None if line is None else source.split("\n")[line - 1].strip()


@pytest.mark.parametrize(
    "loop",
    [
        "for number, batch in enumerate(loader):",
        "for number, (x, *batch) in enumerate(tqdm(loader), 1):",
        "for batch in loader:",
        "for batch in zip(count(), loader):",
        "while True:\n    batch = next(loader)",
        "while True:\n    try:\n        batch = next(loader)\n    except StopIteration: break",
    ],
)
@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f"{OTHER_RANKS}\nloss = model(batch)", "if number % world != rank:"),
        ("if batch is None:\n    bad += 1\n    continue\ntrain(batch)", "if batch is None:"),
        ("n += 1\nbar.update()\nif n % 2:\n    continue\ntrain(batch)", "if n % 2:"),
        ("x, y = batch\nif len(x) < 8:\n    continue\ntrain(x, y)", "if len(x) < 8:"),
        ("if number % world == rank:\n    train(batch)\nn += 1", "if number % world == rank:"),
    ],
)
def test_the_statement_that_skips_batches(loop: str, body: str, found: str):
    assert skipped(loop, body) == found


@pytest.mark.parametrize(
    "body",
    [
        "loss = model(batch)\nloss.backward()\nif number % 4:\n    continue\noptimizer.step()",
        "tasks.append(batch)\nif len(tasks) < 4:\n    continue\ntrain(tasks)",
        "held[number] = batch\nif number % 4:\n    continue\ntrain(held)",
        "if len(tasks) < 4:\n    tasks.append(batch)\nelse:\n    train(tasks)",
        "if first is None:\n    first = batch\n    continue\ntrain(first, batch)",
        "other = next(loader)\ntrain(batch, other)",
        "for x in batch:\n    if x is None:\n        continue\n    train(x)",
        "if number > limit:\n    break\ntrain(batch)",
        "train(batch)",
        "pass",
    ],
)
def test_a_loop_that_uses_or_keeps_a_batch_skips_none(body: str):
    assert skipped("for number, batch in enumerate(loader):", body) is None


def test_a_file_that_is_no_python_has_no_statement():
    assert skip_statement("for batch in loader\n    continue", 1) is None


SCRIPT = """\
def main(loader, model, world, rank):
    for number, batch in enumerate(loader):
        {statement}
            continue
        train(model, batch)
"""


class Rank:
    """A rank whose single worker makes batches one after the other; times in milliseconds."""

    def __init__(self, tables: RunTables, script: Path, number: int = 0) -> None:
        self.tables, self.script, self.number = tables, str(script), number
        self.now = self.worker_now = 50 * MS
        self.batch = 0
        tables.add("processes", pid=100 + number, role="rank", rank=number, loader=-1, worker=-1,
                   world_size=2, attempt=1)  # fmt: skip
        tables.add("loaders", rank=number, loader=0, kind="torch", dataset="Rows", style="map",
                   workers=1, prefetch_factor=2, batch_size=8, in_order=1, file=self.script,
                   line=40, created_ns=self.now)  # fmt: skip

    def step(self, batches: int, each_ms: float, kept_ms: float, used_ms: float) -> None:
        """Ask for so many batches, keep each for a while, and train on the last one."""
        began, waited = self.now, 0
        for place in range(batches):
            made = max(self.worker_now, self.now - 2 * int(each_ms * MS))
            self.worker_now = made + int(each_ms * MS)
            wait = max(self.worker_now - self.now, MS // 10)
            self.tables.add("batches", rank=self.number, loader=0, worker=0, batch=self.batch,
                            start_ns=made, wall_ns=int(each_ms * MS), samples=8, read_ns=-1,
                            cpu_ns=int(each_ms * MS), process_cpu_ns=int(each_ms * MS))  # fmt: skip
            self.tables.add("fetches", rank=self.number, loader=0, epoch=0, batch=self.batch,
                            start_ns=self.now, wait_ns=wait, ready=0, receive_ns=-1,
                            receive_cpu_ns=-1)  # fmt: skip
            waited, self.batch = waited + wait, self.batch + 1
            self.now += wait + int((kept_ms if place < batches - 1 else used_ms) * MS)
        wall = self.now - began
        number = len([row for row in self.tables.rows["steps"] if row["rank"] == self.number])
        self.tables.add("steps", rank=self.number, step=number, kind="train", loader=0,
                        start_ns=began, wall_ns=wall, batches=batches, samples=8 * batches,
                        data_wait_ns=waited, forward_ns=wall - waited)  # fmt: skip

    def asks(self) -> None:
        """Add samples of its waits for batches."""
        asking = stack(f"{self.script}:7:<module>", f"{self.script}:2:main", NEXT)
        self.tables.add("stacks", pid=100 + self.number, rank=self.number, loader=-1, worker=-1,
                        phase="data_wait", stack=asking, start_ns=60 * MS, samples=50,
                        wall_ns=1000 * MS, cpu_ns=10 * MS, end_ns=1060 * MS)  # fmt: skip


def diagnosed(
    tmp_path: Path,
    statement: str = "if number % world != rank:",
    ranks: int = 2,
    batches: int = 2,
    each_ms: float = 20,
    kept_ms: float = 0.05,
    used_ms: float = 20,
) -> Diagnosis:
    """A run of ranks that train on each second batch; of each step, what `Rank.step` takes."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(statement=statement), encoding="utf-8")
    tables = RunTables()
    tables.add("hosts", host="one", cores=8.0, memory_bytes=2**36, attempt=1)
    for number in range(ranks):
        rank = Rank(tables, script, number)
        for _ in range(80):
            rank.step(batches, each_ms, kept_ms, used_ms)
        rank.asks()
    return diagnose(tables)


@pytest.mark.parametrize(
    ("ranks", "how"), [(2, "DistributedSampler"), (1, "a Subset or a sampler")]
)
def test_batches_that_every_rank_makes_and_most_skip(tmp_path: Path, ranks: int, how: str):
    diagnosis = diagnosed(tmp_path, ranks=ranks)
    finding = diagnosis.findings[0]
    assert finding.rule == "skipped-batches"
    assert finding.cause is not None
    assert (finding.cause.line, finding.cause.function) == (3, "main")
    assert finding.evidence["skipped_share"] == pytest.approx(0.5, abs=0.01)
    (remedy,) = finding.remedies
    # 40 ms for two batches of 20 ms; one takes as long as the step with it, so none is waited for.
    assert remedy.predicted_speedup == pytest.approx(2.0, rel=0.05)
    assert how in remedy.how
    assert (
        "50% of the batches of the loader at train.py:40 are skipped" in diagnosis.verdict.sentence
    )


@pytest.mark.parametrize(
    "other",
    [
        {"statement": "for each in batch:"},
        {"kept_ms": 20.0},  # accumulated gradients
        {"kept_ms": 2.0},
        {"batches": 1},
        {"used_ms": 0.2},  # what is done with the last one takes no longer either
        {"each_ms": 0.5},  # no wait
    ],
    ids=str,
)
def test_what_skips_no_batches_or_costs_nothing(tmp_path: Path, other: dict[str, Any]):
    diagnosis = diagnosed(tmp_path, **other)
    assert "skipped-batches" not in {finding.rule for finding in diagnosis.findings}


STREAM = """\
class Readings(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
{loop}
"""
OTHERS = "if number % info.num_workers != info.id:\n        continue"


def part(loop: str) -> str | None:
    """The statement that gives workers their part of what the line marked `# made` makes."""
    source = STREAM.format(loop=indent(dedent(loop), " " * 8))
    lines = source.split("\n")
    made = next(place for place, line in enumerate(lines, 1) if line.endswith("# made"))
    line = part_statement(source, made)
    return None if line is None else lines[line - 1].strip()


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        (
            f"for number, each in enumerate(self.decoded()):  # made\n    {OTHERS}\n    yield each",
            "if number % info.num_workers != info.id:",
        ),
        (
            (
                "for number, each in enumerate(files):\n    x = decode(each)  # made\n"
                f"    {OTHERS}\n    yield x"
            ),
            "if number % info.num_workers != info.id:",
        ),
        (
            (
                "for number, each in enumerate(files):\n    x = decode(each)  # made\n"
                "    if number % workers == own:\n        yield x"
            ),
            "if number % workers == own:",
        ),
        (
            (
                "while files:\n    x = decode(files.pop())  # made\n    n += 1\n"
                "    if (n + seed) % world != rank and not every:\n        continue\n    yield x"
            ),
            "if (n + seed) % world != rank and not every:",
        ),
        (
            (
                "while files:\n    n += 1\n    x = decode(files.pop())  # made\n"
                "    n += len(x)\n    seen.append(n)\n"
                "    if n % workers == own % workers:\n        yield n, x"
            ),
            "if n % workers == own % workers:",
        ),
        (
            "for each in islice(self.decoded(), own, None, workers):  # made\n    yield each",
            "for each in islice(self.decoded(), own, None, workers):  # made",
        ),
        (
            "yield from itertools.islice(self.decoded(), own, None, workers)  # made",
            "yield from itertools.islice(self.decoded(), own, None, workers)  # made",
        ),
    ],
)
def test_the_statement_that_gives_a_worker_its_part(loop: str, found: str):
    assert part(loop) == found


@pytest.mark.parametrize(
    "loop",
    [
        f"for number, each in enumerate(files):\n    {OTHERS}\n    yield decode(each)  # made",
        (
            "for number, each in enumerate(files):\n    if number % workers == own:\n"
            "        yield decode(each)  # made"
        ),
        (
            "for number, each in enumerate(files):\n    x = decode(each)  # made\n"
            "    if number % 100 == 0:\n        log(number)\n    yield x"
        ),
        (
            "for number, each in enumerate(files):\n    x = decode(each)  # made\n"
            "    if number % 2 == 0:\n        continue\n    yield x"
        ),  # a stride of the dataset's own
        "for each in files[own::workers]:\n    yield decode(each)  # made",
        "for each in islice(self.decoded(), 100):  # made\n    yield each",
        "for each in islice(self.decoded(), 0, None, 2):  # made\n    yield each",
        "x = decode(self.file)  # made\nyield x",
        # A batch ends: all that was made is yielded.
        (
            "for n, each in enumerate(files):\n    buf.append(decode(each))  # made\n"
            "    if n % self.size == self.size - 1:\n        yield torch.stack(buf)\n"
            "        buf = []"
        ),
        (
            "for n, each in enumerate(files):\n    buf.append(decode(each))  # made\n"
            "    if n % size == last:\n        yield torch.stack(buf)\n        buf.clear()"
        ),
        (
            "while True:\n    total += decode(next(files))  # made\n"
            "    if n % size == self.first:\n        yield total / size\n        total = 0"
        ),
        (
            "for n, each in enumerate(files):\n    self.batch[n % size] = decode(each)  # made\n"
            "    if n % size == last:\n        yield self.batch.clone()"
        ),
    ],
)
def test_work_that_is_a_workers_own(loop: str):
    assert part(loop) is None


def streamed(
    tmp_path: Path, *, line: int = 2, ranks: int = 1, style: str = "iterable"
) -> Diagnosis:
    """A run whose workers are seen at a line of a stream that gives them their part at line 3."""
    script = tmp_path / "train.py"
    script.write_text(
        "def samples(files, own, workers):\n"
        "    for number, x in enumerate(map(decode, files)):\n"
        "        if number % workers != own:\n"
        "            continue\n"
        "        yield augment(x)\n",
        encoding="utf-8",
    )
    tables = RunTables()
    tables.add("hosts", host="one", cores=8.0, memory_bytes=2**36, attempt=1)
    for number in range(ranks):
        rank = Rank(tables, script, number)
        tables.rows["loaders"][-1].update(style=style, workers=2)
        for _ in range(80):
            rank.step(batches=1, each_ms=40, kept_ms=0, used_ms=10)
        at = stack(
            f"{TORCH}/utils/data/_utils/worker.py:349:_worker_loop", f"{script}:{line}:samples"
        )
        tables.add("stacks", pid=1000 + number, rank=number, loader=0, worker=0, phase="work",
                   stack=at, start_ns=60 * MS, samples=50, wall_ns=1000 * MS, cpu_ns=1000 * MS,
                   end_ns=1060 * MS)  # fmt: skip
    return diagnose(tables)


@pytest.mark.parametrize(("ranks", "how_many"), [(1, "2"), (2, "2 or 4")])
def test_samples_that_every_worker_makes_and_most_skip(tmp_path: Path, ranks: int, how_many: str):
    diagnosis = streamed(tmp_path, ranks=ranks)
    finding = diagnosis.findings[0]
    assert finding.rule == "skipped-samples"
    assert finding.title.startswith(f"each worker makes {how_many} samples for one that it keeps")
    assert finding.cause is not None
    assert (finding.cause.line, finding.cause.function) == (3, "samples")
    (remedy,) = finding.remedies
    assert remedy.low is not None
    assert remedy.high is not None
    # A quarter to half of the work of two workers goes, to three quarters of that of four.
    assert remedy.low < 1.35
    assert remedy.high >= 1.95
    # More workers do the same again.
    names = {each.name for found in diagnosis.findings for each in found.remedies}
    assert "workers" not in names


@pytest.mark.parametrize("other", [{"line": 5}, {"style": "map"}], ids=str)
def test_work_for_the_workers_own_samples_is_not_skipped(tmp_path: Path, other: dict[str, Any]):
    diagnosis = streamed(tmp_path, **other)
    assert "skipped-samples" not in {finding.rule for finding in diagnosis.findings}
