"""`small-files`: told from other waits for storage by what the code opens and what reads bring."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.observe.doctor.diagnose import diagnose
from headrace.observe.doctor.model import Diagnosis
from run_tables import WORKER_LOOP, Run, play, stack

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
