"""Iterates until a file named `enough` is there, over an iterable dataset: argv[1] workers in all.

Checks that each epoch comes in torch's order. While there is a file named `pause`, it stands still
in the middle of an epoch.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import zip_longest
from pathlib import Path

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SAMPLES, BATCH, MIDDLE = 160, 2, 31


class Slow(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id, SAMPLES, info.num_workers):
            time.sleep(0.005)
            yield index, os.environ.get("SERVER", "here"), os.getppid()  # one for each host


def expected(workers: int) -> list[int]:
    """Return the order of torch: a batch of each worker in turn."""
    shares = [range(number, SAMPLES, workers) for number in range(workers)]
    batches = [[one[at : at + BATCH] for at in range(0, len(one), BATCH)] for one in shares]
    return [index for turn in zip_longest(*batches, fillvalue=()) for one in turn for index in one]


if __name__ == "__main__":
    right, pause = expected(int(sys.argv[1])), Path("pause")
    loader = DataLoader(Slow(), BATCH, num_workers=2, persistent_workers=True)
    while not Path("enough").exists():
        came, makers, hosts = [], set(), set()
        for number, (indices, made_by, parents) in enumerate(loader):
            came += indices.tolist()
            makers.update(made_by)
            hosts.update(parents.tolist())
            if number == MIDDLE and pause.exists():
                sys.stdout.write("in the middle\n")
                while pause.exists():
                    time.sleep(0.01)
        assert came == right, came
        sys.stdout.write(f"epoch whole, {len(hosts)} hosts, made by {sorted(makers)}\n")
