"""What the doctor reads from the source of a script: lines that keep memory, and opens of files."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import Diagnosis
from headrace.observe.doctor.leak_candidates import leak_candidates
from run_tables import WORKER_LOOP, Run, play, stack

LOOP = """
def main():
    {before}
    for epoch in range(3):
        for number, (x, y) in enumerate(loader):
            loss = criterion(model(x), y)
            loss.backward()
            value = loss.item()
{inside}
"""


def grown(inside: str, before: str = "history = []") -> list[tuple[str, str]]:
    """The lines that grow something in a training loop, and what."""
    source = LOOP.format(before=before, inside=indent(dedent(inside).strip(), " " * 12))
    found = leak_candidates(source, "main", 5, stays=True)
    return [(source.splitlines()[each.line - 1].strip(), each.what) for each in found]


@pytest.mark.parametrize(
    ("inside", "before", "what"),
    [
        ("history.append(loss)", "history = []", "history"),
        ("history += [loss]", "history = []", "history"),
        ("history = history + [x]", "history = []", "history"),
        ("history.append({'loss': value, 'x': x})", "history = []", "history"),
        ("log['loss'].append(loss)", "log = {'loss': []}", "log"),
        ("log.setdefault(epoch, []).append(loss)", "log = {}", "log"),
        ("seen[number] = x", "seen = {}", "seen"),
        ("seen[number] = x", "seen = [None] * 100", "seen"),
        ("total += loss", "total = 0", "total"),
        ("total = total + loss / 2", "total = 0", "total"),
        ("outputs = torch.cat([outputs, x])", "outputs = torch.empty(0)", "outputs"),
        ("if number % 2:\n    history.append(loss)", "history = []", "history"),
        ("self.history.append(loss)", "pass", "self.history"),
        ("history.append(loss)", "pass", "history"),
    ],
)
def test_what_is_kept_is_found(inside: str, before: str, what: str):
    lines = [line.strip() for line in inside.splitlines()]
    assert grown(inside, before) == [(lines[-1], what)]


@pytest.mark.parametrize(
    ("inside", "before"),
    [
        ("history.append(value)", "history = []"),
        ("history.append((number, loss.item(), float(loss)))", "history = []"),
        ("history.append(f'{number}: {value}')", "history = []"),
        ("total += loss.item() * x.shape[0]", "total = 0"),
        ("total += loss.detach()", "total = 0"),
        ("right += (model(x).argmax(1) == y).sum()", "right = 0"),
        ("history.append(loss)", "history = collections.deque(maxlen=100)"),
        ("history.append(loss)\nif number % 100 == 0:\n    history.clear()", "history = []"),
        ("total += loss\nif number % 100 == 0:\n    total = 0", "total = 0"),
        ("parts = []\nparts.append(x)", "pass"),
        ("history.append(x)\nhistory.pop(0)", "history = []"),
        ("buffer[number] = x", "buffer = torch.empty(100, 3)"),
        ("meter.update(loss)", "meter = Meter()"),
        ("x = x + loss", "pass"),
        ("names.add(str(number))", "names = set()"),
    ],
)
def test_what_is_small_emptied_or_of_a_fixed_size_is_not(inside: str, before: str):
    assert grown(inside, before) == []


DATASET = """
class Images:
    def __init__(self):
        self.cache = {}
        self.last = []

    def __getitem__(self, index):
        parts = []
        for name in self.names[index]:
            parts.append(load(name))
        self.last = []
        self.last.append(parts)
        self.cache[index] = join(parts)
        return self.cache[index]
"""


def test_of_a_function_that_is_called_anew_only_what_it_shares_grows():
    found = leak_candidates(DATASET, "Images.__getitem__", 9, stays=False)
    assert [(each.line, each.what) for each in found] == [(13, "self.cache")]


def test_what_another_method_empties_does_not_grow():
    emptied = DATASET + "\n    def on_epoch_end(self):\n        self.cache.clear()\n"
    assert leak_candidates(emptied, "Images.__getitem__", 9, stays=False) == []


def test_the_file_itself_holds_a_loop():
    loop = ["kept = []", "for x in loader:", "    loss = f(x)", "    loss.backward()"]
    source = "\n".join([*loop, "    kept.append(loss)"])
    (found,) = leak_candidates(source, "<module>", 3, stays=True)
    assert (found.line, found.what, found.certainty) == (5, "kept", 2)


def test_a_kept_graph_comes_before_what_is_only_kept():
    lines = grown("names.append(x)\nlosses.append(loss)", "names, losses = [], []")
    assert [what for _, what in lines] == ["losses", "names"]


@pytest.mark.parametrize(
    ("renewed", "what"),
    [
        ("history = []", "history"),
        ("history.clear()", "history"),
        ("total = 0", "total"),
        ("log['loss'] = []", "log"),
        ("self.outputs = []", "self.outputs"),
    ],
)
@pytest.mark.parametrize("around", ["for epoch in range(3):", "while step < last:"])
def test_what_each_epoch_begins_anew_does_not_outlive_it(renewed: str, what: str, around: str):
    add = {"total": "total += loss", "log": "log['loss'].append(loss)"}.get(
        what, f"{what}.append(loss)"
    )
    head = ["def main(self):", "    history, total, log = [], 0, {}"]
    inner = ["for x in loader:", "    loss = model(x)", "    loss.backward()", f"    {add}"]
    kept = [*head, f"    {around}", *(f"        {line}" for line in inner)]
    anew = [*kept[:3], f"        {renewed}", *kept[3:]]
    found = leak_candidates("\n".join(kept), "main", 5, stays=True)
    assert [(each.line, each.what) for each in found] == [(7, what)]
    assert leak_candidates("\n".join(anew), "main", 5, stays=True) == []


@pytest.mark.parametrize("source", ["", "def main(:\n", "x = 1\n", "\0"])
def test_a_source_that_has_changed_shows_nothing(source: str):
    assert leak_candidates(source, "main", 5, stays=True) == []


SOURCE = """
class Thumbnails:
    def __init__(self, path):
        self.file = open(path, "rb")

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return file.read()

    def from_archive(self, index):
        self.file.seek(index)
        return self.file.read(1000)

    def __iter__(self):
        with open(self.path, "rb") as file:
            while data := file.read(1000):
                yield data
"""


OPENS, READS, SEEKS, ITERATES = 7, 8, 12, 16


SAMPLES = 32  # a batch of tests/run_tables.py


POPEN = "/usr/lib/python3.11/multiprocessing/popen_fork.py:66:Popen._launch"


PATHLIB = "/usr/lib/python3.11/pathlib.py:1050:Path.read_bytes"


URLLIB = "/usr/lib/python3.11/urllib/request.py:216:urlopen"


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "data.py").write_text(SOURCE)
    return str(tmp_path / "data.py")


def waiting(
    *frames: str, reads: float = 2.0, kb_a_read: float = 20.0, service_ms: float = 60.0
) -> Diagnosis:
    """Return the diagnosis of workers that wait there; reads a sample."""
    run = Run(workers=2, service_ms=service_ms, worker_cpu=0.1, busy_cores=0.5)
    run.reads = round(reads * SAMPLES)
    run.read_bytes = round(reads * SAMPLES * kb_a_read * 1000)
    run.worker_stacks = [(stack(POPEN, WORKER_LOOP, *frames), 0.95, 0.05)]
    return diagnose(play(run))


def rules(diagnosis: Diagnosis) -> list[str]:
    return [finding.rule for finding in diagnosis.findings]


def test_small_files_name_their_line_and_ask_for_shards(script: str):
    diagnosis = waiting(f"{script}:{READS}:Thumbnails.__getitem__")
    worst = diagnosis.findings[0]
    assert worst.rule == "small-files"
    assert "slow-storage" not in rules(diagnosis)
    assert worst.cause is not None
    assert worst.cause.line == READS
    assert worst.evidence["reads_a_sample"] == pytest.approx(2.0)
    assert worst.evidence["kb_a_read"] == pytest.approx(20.0)
    assert [remedy.name for remedy in worst.remedies] == ["shards", "workers"]
    shards = worst.remedies[0]
    assert shards.predicted_speedup is not None
    # Half to nine tenths of 86 % of 30 ms a batch goes, and the rank itself takes 10.6 ms.
    assert 1.7 <= shards.predicted_speedup <= 2.9
    assert "small files" in diagnosis.verdict.sentence
    assert diagnosis.verdict.bound == "data"


@pytest.mark.parametrize("place", [OPENS, READS])
def test_the_open_counts_as_the_read_does(script: str, place: int):
    assert rules(waiting(f"{script}:{place}:Thumbnails.__getitem__"))[0] == "small-files"


def test_a_library_that_opens_the_file_is_enough():
    assert rules(waiting("/home/ann/data.py:9:Faces.load", PATHLIB))[0] == "small-files"


@pytest.mark.parametrize(("place", "function"), [(SEEKS, "from_archive"), (ITERATES, "__iter__")])
def test_a_file_that_is_opened_once_is_not_many(script: str, place: int, function: str):
    diagnosis = waiting(f"{script}:{place}:Thumbnails.{function}")
    assert diagnosis.findings[0].rule == "slow-storage"
    assert "small-files" not in rules(diagnosis)


@pytest.mark.parametrize(
    ("reads", "kb_a_read"),
    [
        (0.5, 20.0),  # several samples a file
        (3.0, 400.0),  # large reads
        (100.0, 20.0),  # 2 MB a sample
    ],
)
def test_large_or_few_reads_are_slow_storages(script: str, reads: float, kb_a_read: float):
    where = f"{script}:{READS}:Thumbnails.__getitem__"
    assert rules(waiting(where, reads=reads, kb_a_read=kb_a_read))[0] == "slow-storage"


def test_bandwidth_is_slow_storages(script: str):
    where = f"{script}:{READS}:Thumbnails.__getitem__"
    diagnosis = waiting(where, reads=4.0, kb_a_read=200.0, service_ms=60.0)
    assert diagnosis.findings[0].rule == "slow-storage"
    assert diagnosis.findings[0].evidence["bound"] == "bandwidth"


def test_services_are_no_files(script: str):
    where = (f"{script}:{READS}:Thumbnails.__getitem__", URLLIB)
    assert rules(waiting(*where))[0] == "slow-storage"


def test_records_of_before_reads_were_counted_say_slow_storage(script: str):
    where = f"{script}:{READS}:Thumbnails.__getitem__"
    run = Run(workers=2, service_ms=60, worker_cpu=0.1, busy_cores=0.5, read_bytes=600_000)
    run.worker_stacks = [(stack(WORKER_LOOP, where), 0.95, 0.05)]
    assert run.reads == -1
    assert rules(diagnose(play(run)))[0] == "slow-storage"
