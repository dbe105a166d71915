"""`headrace run --apply worker_threads=1,rank_threads=1` on a real script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    told = {"rank": [started_by_a_product(), torch.get_num_threads(), cv2.getNumThreads()]}
    # Likewise OpenCV: a forked worker that waited for its parent's threads would do so for ever.
    cv2.GaussianBlur(np.ones((2000, 2000, 3), np.uint8), (9, 9), 0)
    for method in ("fork", "spawn"):
        loader = DataLoader(
            Threads(),
            batch_size=None,
            num_workers=1,
            multiprocessing_context=method,
            worker_init_fn=as_many_as_possible,
        )
        (told[method],) = [list(each) for each in loader]
    with open(sys.argv[1], "w") as file:
        json.dump(told, file)
"""
CORES = len(os.sched_getaffinity(0))


def threads_in(folder: Path, *flags: str) -> dict[str, list[int]]:
    (folder / "train.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "headrace.cli.main", "run", *flags, "train.py", "told.json"]
    ran = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads((folder / "told.json").read_text())


@pytest.mark.parametrize("flags", [(), ("--profile", "off")], ids=["recorded", "not recorded"])
def test_workers_keep_to_their_threads_whatever_the_script_sets(
    tmp_path: Path, flags: tuple[str, ...]
):
    told = threads_in(tmp_path, *flags, "--apply", "worker_threads=1")
    assert told["fork"] == [0, 1, 1]
    assert told["spawn"] == [0, 1, 1]
    assert told["rank"][1] == CORES  # the rank's own stay as they are


def test_without_them_the_script_has_its_way(tmp_path: Path):
    told = threads_in(tmp_path)
    assert told["fork"][1:] == [2, 2]
    assert told["spawn"][1:] == [2, 2]
    if CORES > 1:
        assert told["rank"][0] > 0 or told["fork"][0] > 0


@pytest.mark.parametrize("flags", [(), ("--nproc-per-node", "1")], ids=["direct", "torchrun"])
def test_ranks_keep_to_theirs(tmp_path: Path, flags: tuple[str, ...]):
    told = threads_in(tmp_path, *flags, "--apply", "rank_threads=1")
    assert told["rank"] == [0, 1, 1]
