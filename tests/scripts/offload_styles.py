"""Loaders as people write them; prints of each what its batches were, and who made them.

It iterates all of them without auxiliary hosts, waits for the file `one` and iterates those whose
workers need torch with that host, and waits for the file `slow` before it iterates the others with
both. That host takes ten times as long over a sample. Then it goes on and on, until it is killed.
"""

from __future__ import annotations

import gc
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


class Drawing:
    """Draws from Python's and NumPy's global generators; returns who made a sample."""

    def __init__(self, name: str, offset: int = 0) -> None:
        self.name, self.offset = name, offset

    def __len__(self) -> int:
        return SAMPLES

    def image(self):
        return np.random.randint(0, 255, (3, 64, 64), np.uint8)

    def __getitem__(self, index: int):
        from offload_package.deeper.turning import turned  # of the folder that the script lies in

        drawn = (random.random(), float(np.random.rand()))
        return turned(self.image()), index + self.offset, drawn, note_maker(self.name)


class DrawingOfTorch(Drawing, Dataset):
    """Draws from torch's generator as well."""

    def image(self):
        return torch.randint(0, 255, (3, 64, 64), dtype=torch.uint8)


class Many(Drawing):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def in_a_dict(samples, stack):
    images, indices, drawn, makers = zip(*samples, strict=True)
    return {
        "images": stack(images)[:, :, : 32 + random.randrange(16)],
        "indices": np.array(indices),
        "drawn": drawn,
        "makers": makers,
    }


def of_arrays(samples):
    return in_a_dict(samples, np.stack)


def of_tensors(samples):
    return in_a_dict(samples, torch.stack)


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


def print_epochs(name: str, loader) -> None:
    for epoch in range(2):
        digest, makers, seen = hashlib.sha256(), Counter(), []
        for batch in loader:
            images, indices, drawn, made_by = pieces(batch)
            assert str(images.dtype).endswith("uint8")
            digest.update(np.ascontiguousarray(images).tobytes())
            digest.update(repr((np.asarray(indices).tolist(), drawn)).encode())
            seen += np.asarray(indices).reshape(-1).tolist()
            makers.update(made_by)
        result = {
            "name": name, "epoch": epoch, "digest": digest.hexdigest(), "makers": makers,
            "seen": [len(seen), len(set(seen))],
        }  # fmt: skip
        sys.stdout.write(json.dumps(result) + "\n")


def loaders_with_torch():
    own = torch.Generator().manual_seed(9)
    yield "kept", OwnLoader(
        DrawingOfTorch("kept"), batch_size=4, num_workers=1, persistent_workers=True,
        generator=own, sampler=RandomSampler(range(SAMPLES), generator=own),
    )  # fmt: skip
    ours = {"shuffle": True, "collate_fn": of_tensors, "device_transform": with_noise,
            "device": "cpu"}  # fmt: skip
    yield "single", DataLoader(DrawingOfTorch("single"), batch_size=None, num_workers=2)
    yield "ours", headrace.DataLoader(DrawingOfTorch("ours"), 4, num_workers=1, **ours)
    inline = InlineExecutor(0)
    yield "ours, inline", headrace.DataLoader(DrawingOfTorch("ours"), 4, executor=inline, **ours)


def loaders_without_torch():
    yield "dicts", DataLoader(Many("dicts", 1000), 4, True, collate_fn=of_arrays, drop_last=True)


def print_all(loaders, others: int) -> None:
    os.environ["EACH_OTHER"] = str(others)  # servers find what is set
    for name, loader in loaders:
        print_epochs(name, loader)
    gc.collect()  # a loader that keeps its workers is held by its iterator, too


def wait_for_host(name: str) -> None:
    sys.stdout.write(f"without {name}\n")
    while not Path(name).exists():
        time.sleep(0.01)


if __name__ == "__main__":
    for hosts in ([], ["one", "slow"]):
        torch.manual_seed(5)
        for number, loaders in enumerate((loaders_with_torch, loaders_without_torch)):
            if hosts:
                wait_for_host(hosts[number])
            print_all(loaders(), len(hosts[: number + 1]))
        drawn = {"name": "drawn after", "digest": torch.rand(1).item()}
        sys.stdout.write(json.dumps(drawn) + "\n")
    goes_on = DataLoader(Drawing("on and on"), 4, num_workers=1)
    while True:
        print_epochs("on and on", goes_on)
