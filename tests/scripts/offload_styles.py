"""Loaders as people write them; tells of each what its batches were, and who made them.

One host takes ten times as long over a sample as the others.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

import headrace
from headrace.data.loader.executors.base import InlineExecutor

SAMPLES = 120
SAMPLE_S = {"slow": 0.02}
OTHERS_S = 0.002


def note_maker(name: str) -> str:
    """Return who makes this sample; where others are to have a part, all wait for each of them.

    The first others do, too: else they would make all that may be under way beside a batch that
    waits here, and nothing would be left for one that comes later.
    """
    maker, others = os.environ.get("SERVER", "here"), int(os.environ["EACH_OTHER"])
    if maker != "here":
        Path(f"{name}.made-by-{maker}").touch()
    deadline_s = time.monotonic() + 60
    while len(list(Path().glob(f"{name}.made-by-*"))) < others and time.monotonic() < deadline_s:
        time.sleep(0.01)
    time.sleep(SAMPLE_S.get(maker, OTHERS_S))
    return maker


class Drawing(Dataset):
    """Draws from all three global generators; tells who made a sample."""

    def __init__(self, name: str, offset: int = 0) -> None:
        self.name, self.offset = name, offset

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int):
        from offload_beside.deeper.turning import turned  # of the folder that the script lies in

        image = turned(torch.randint(0, 255, (3, 64, 64), dtype=torch.uint8))
        drawn = (random.random(), float(np.random.rand()))
        return image, index + self.offset, drawn, note_maker(self.name)


class Many(Drawing):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def collated(samples):
    images, indices, drawn, makers = zip(*samples, strict=True)
    return {
        "images": torch.stack(images)[:, :, : 32 + random.randrange(16)],
        "indices": np.array(indices),
        "drawn": drawn,
        "makers": makers,
    }


def with_noise(batch):
    noise = torch.randint_like(batch["images"], 255)
    return {**batch, "images": batch["images"] ^ noise}


class OwnLoader(DataLoader):
    """Trainers subclass it, and ask for more than batches."""

    def __iter__(self):
        yield from super().__iter__()


def pieces(batch):
    if isinstance(batch, dict):
        return batch["images"], batch["indices"], batch["drawn"], batch["makers"]
    images, indices, drawn, makers = batch
    return images, indices, drawn, [makers] if isinstance(makers, str) else makers


def tell(name: str, loader) -> None:
    for epoch in range(2):
        digest, makers, seen = hashlib.sha256(), Counter(), []
        for batch in loader:
            images, indices, drawn, made_by = pieces(batch)
            assert images.dtype == torch.uint8
            digest.update(np.ascontiguousarray(images).tobytes())
            digest.update(repr((np.asarray(indices).tolist(), drawn)).encode())
            seen += np.asarray(indices).reshape(-1).tolist()
            makers.update(made_by)
        told = {
            "name": name, "epoch": epoch, "digest": digest.hexdigest(), "makers": makers,
            "seen": [len(seen), len(set(seen))],
        }  # fmt: skip
        sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    os.environ["EACH_OTHER"] = os.environ.get("OTHERS_FIRST", "0")  # servers find what is set
    torch.manual_seed(5)
    own = torch.Generator().manual_seed(9)
    ours = {
        "shuffle": True,
        "collate_fn": collated,
        "device_transform": with_noise,
        "device": "cpu",
    }
    for name, loader in {
        "kept": OwnLoader(
            Drawing("kept"), batch_size=4, num_workers=1, persistent_workers=True, generator=own,
            sampler=RandomSampler(range(SAMPLES), generator=own),
        ),
        "dicts": DataLoader(Many("dicts", 1000), 8, True, collate_fn=collated, drop_last=True),
        "single": DataLoader(Drawing("single"), batch_size=None, num_workers=2),
        "ours": headrace.DataLoader(Drawing("ours"), 4, num_workers=1, **ours),
        "ours, inline": headrace.DataLoader(Drawing("ours"), 4, executor=InlineExecutor(0), **ours),
    }.items():  # fmt: skip
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            tell(name, loader)
    sys.stdout.write(json.dumps({"name": "drawn after", "digest": torch.rand(1).item()}) + "\n")
