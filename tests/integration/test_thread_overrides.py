"""`headrace run --apply` on real scripts: threads, and loaders that lose their workers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from jobs_here import run_job

SCRIPT = """
import json
import os
import sys

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def started_by_a_product():
    # OpenBLAS starts its threads when it first has work for them.
    before = len(os.listdir("/proc/self/task"))
    matrix = np.ones((600, 600), dtype=np.float32)
    matrix @ matrix
    return len(os.listdir("/proc/self/task")) - before


class Threads(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return started_by_a_product(), torch.get_num_threads(), cv2.getNumThreads()


def as_many_as_possible(worker):
    torch.set_num_threads(2)
    cv2.setNumThreads(2)


if __name__ == "__main__":
    # In the rank the product comes first, as it often does: forked workers find OpenBLAS at work.
    counts = {"rank": [started_by_a_product(), torch.get_num_threads(), cv2.getNumThreads()]}
    # Likewise OpenCV: a forked worker that waited for its parent's threads would do so for ever.
    cv2.GaussianBlur(np.ones((2000, 2000, 3), np.uint8), (9, 9), 0)
    for method in sys.argv[2:]:
        loader = DataLoader(
            Threads(),
            batch_size=None,
            num_workers=1,
            multiprocessing_context=method,
            worker_init_fn=as_many_as_possible,
        )
        (counts[method],) = [list(each) for each in loader]
    with open(sys.argv[1], "w") as file:
        json.dump(counts, file)
"""
# How many threads a product starts in a process, and in one that it forks.
PRODUCTS = """
import json, os
import numpy as np

def started_by_a_product():
    before = len(os.listdir("/proc/self/task"))
    matrix = np.ones((600, 600), dtype=np.float32)
    matrix @ matrix
    return len(os.listdir("/proc/self/task")) - before

own = started_by_a_product()
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, str(started_by_a_product()).encode())
    os._exit(0)
os.wait()
print(json.dumps([own, int(os.read(reading, 10))]))
"""
CORES = len(os.sched_getaffinity(0))


def threads_in(folder: Path, *flags: str, methods: Sequence[str]) -> dict[str, list[int]]:
    """How many threads a product starts, torch has, and OpenCV has: in the rank and its workers.

    Args:
        folder: The job's.
        flags: Of `headrace run`.
        methods: How the workers start.
    """
    (folder / "train.py").write_text(SCRIPT)
    ended = run_job(folder, *flags, "train.py", "threads.json", *methods)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, list[int]] = json.loads((folder / "threads.json").read_text())
    return found


def test_workers_keep_to_their_threads_whatever_the_script_sets(tmp_path: Path):
    found = threads_in(tmp_path, "--apply", "worker_threads=1", methods=["fork", "spawn"])
    assert found["fork"] == [0, 1, 1]
    assert found["spawn"] == [0, 1, 1]
    assert found["rank"][1] == CORES  # the rank's own stay as they are


def test_workers_and_the_rank_keep_to_theirs_where_nothing_is_recorded(tmp_path: Path):
    flags = ["--profile", "off", "--apply", "worker_threads=1,rank_threads=1"]
    found = threads_in(tmp_path, *flags, methods=["fork", "spawn"])
    assert found == {name: [0, 1, 1] for name in ("rank", "fork", "spawn")}


def test_ranks_under_torchrun_keep_to_theirs_and_with_workers_the_script_has_its_way(
    tmp_path: Path,
):
    flags = ["--nproc-per-node", "1", "--apply", "rank_threads=1"]
    found = threads_in(tmp_path, *flags, methods=["fork"])
    assert found["rank"] == [0, 1, 1]
    assert found["fork"][1:] == [2, 2]


def test_without_them_a_product_starts_threads(tmp_path: Path):
    (tmp_path / "train.py").write_text(PRODUCTS)
    ended = run_job(tmp_path, "--profile", "off", "train.py")
    assert ended.returncode == 0, ended.stderr
    if CORES > 1:
        assert any(json.loads(ended.stdout))


WITHOUT_WORKERS = """
from torch.utils.data import DataLoader

for more in (
    {"multiprocessing_context": "spawn"}, {"timeout": 30},
    {"multiprocessing_context": "fork", "timeout": 5, "persistent_workers": True},
    {"prefetch_factor": 4},
):
    loader = DataLoader(range(8), batch_size=4, num_workers=2, **more)
    print(loader.num_workers, len(list(loader)))
"""


def test_a_loader_that_loses_its_workers_loses_what_needs_some(tmp_path: Path):
    (tmp_path / "train.py").write_text(WITHOUT_WORKERS)
    ended = run_job(tmp_path, "--profile", "off", "--apply", "num_workers=0", "train.py")
    assert ended.stdout == "0 2\n" * 4, ended.stderr
    assert "was applied to no DataLoader" not in ended.stderr


def test_what_a_loader_without_workers_cannot_use_is_said_to_be_applied_to_none(tmp_path: Path):
    (tmp_path / "train.py").write_text(
        "from torch.utils.data import DataLoader\nprint(len(list(DataLoader(range(8)))))\n"
    )
    flags = ["--profile", "off", "--apply", "prefetch_factor=4,persistent_workers=on"]
    ended = run_job(tmp_path, *flags, "train.py")
    assert ended.stdout == "8\n", ended.stderr
    for each in ("prefetch_factor=4", "persistent_workers=on"):
        assert f"{each} was applied to no DataLoader" in ended.stderr
