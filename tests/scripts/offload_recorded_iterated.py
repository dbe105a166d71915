"""Iterates for less than a second, once others have a part; tells how many batches they made."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Samples(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id, 64, info.num_workers):
            time.sleep(0.005)
            yield torch.full((64,), float(index)), os.environ.get("SERVER", "here")


if __name__ == "__main__":
    loader = DataLoader(Samples(), batch_size=4, num_workers=2)
    for _ in range(20):  # a busy host may come late to the first, which does not wait for long
        made = Counter(makers[0] for _, makers in loader)
        if made.keys() - {"here"}:
            break
    sys.stdout.write("made " + json.dumps(made) + "\n")
