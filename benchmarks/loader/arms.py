"""The loaders that are compared: the same images, decoder, transform, batch size and workers.

Every arm is a function from the prepared data to an object that can be iterated once an epoch and
yields batches whose first member is the images, uint8[64, 224, 224, 3] but for the Pillow arm.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.data.transforms import OnMembers, RandomResizedCrop, decode_image

BATCH, WORKERS, SIDE = 64, 2, 224


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The same images in each form that an arm reads.

    Attributes:
        files: Paths of single JPEGs, in class folders.
        shards: Folder of a packed dataset, whose tars WebDataset reads too.
        chunks: Folder of LitData's chunks.
    """

    files: list[str]
    shards: Path
    chunks: Path


class Files:
    """Map-style over single files: what people write by hand."""

    def __init__(self, files: list[str]) -> None:
        self.files = files
        self.crop = RandomResizedCrop(SIDE)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path = Path(self.files[index])
        return self.crop(decode_image(path.read_bytes())), int(path.parent.name[-2:])


class PillowFiles(Files):
    """The same with Pillow, normalised to float32 on the CPU: the customary ImageNet script."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        from PIL import Image

        path = Path(self.files[index])
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        window = self.crop.draw(image.height, image.width)
        box = (window.left, window.top, window.left + window.width, window.top + window.height)
        resized = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
        scaled = np.asarray(resized, np.float32).transpose(2, 0, 1) / 255
        mean = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
        deviation = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
        return (scaled - mean) / deviation, int(path.parent.name[-2:])


def headrace_arm(data: Data) -> Iterable[Any]:
    """Ours: packed shards, every byte verified."""
    import headrace

    dataset = headrace.ShardDataset(
        str(data.shards), transform=OnMembers("jpg", RandomResizedCrop(SIDE))
    )
    loader = headrace.DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True)
    return _Mapped(loader, lambda batch: (batch["jpg"], batch["cls"]))


def headrace_files_arm(data: Data) -> Iterable[Any]:
    """Ours over the hand-written dataset of the torch arm."""
    import headrace

    return headrace.DataLoader(
        Files(data.files), BATCH, shuffle=True, num_workers=WORKERS, drop_last=True
    )


def torch_arm(data: Data) -> Iterable[Any]:
    """The DataLoader of torch, same decoder and transform."""
    return _torch_loader(Files(data.files))


def pillow_arm(data: Data) -> Iterable[Any]:
    """The DataLoader of torch with Pillow."""
    return _torch_loader(PillowFiles(data.files))


def _torch_loader(dataset: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True, persistent_workers=True
    )


def webdataset_arm(data: Data) -> Iterable[Any]:
    """WebDataset over our shards."""
    import webdataset

    crop = RandomResizedCrop(SIDE)
    shards = sorted(str(path) for path in data.shards.glob("*.tar"))
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), empty_check=False)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(lambda jpg: crop(decode_image(jpg)), int)
        .batched(BATCH, partial=False)
    )
    return webdataset.WebLoader(
        dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True
    )


def litdata_arm(data: Data) -> Iterable[Any]:
    """LitData over its own chunks, which hold the same JPEG bytes."""
    import litdata

    class Dataset(litdata.StreamingDataset):
        crop = RandomResizedCrop(SIDE)

        def __getitem__(self, index: Any) -> tuple[np.ndarray, int]:
            jpg, label = super().__getitem__(index)
            return self.crop(decode_image(jpg)), label

    return litdata.StreamingDataLoader(
        Dataset(str(data.chunks), shuffle=True, drop_last=True),
        batch_size=BATCH,
        num_workers=WORKERS,
        drop_last=True,
    )


def spdl_arm(data: Data) -> Iterable[Any]:
    """SPDL's pipeline with as many threads as the others have workers."""
    from spdl.pipeline import PipelineBuilder

    dataset = Files(data.files)

    class Epochs:
        def __iter__(self) -> Iterator[Any]:
            order = np.random.default_rng().permutation(len(dataset)).tolist()
            pipeline = (
                PipelineBuilder()
                .add_source(iter(order))
                .pipe(dataset.__getitem__, concurrency=WORKERS)
                .aggregate(BATCH, drop_last=True)
                .pipe(_stack)
                .add_sink(4)
                .build(num_threads=WORKERS)
            )
            with pipeline.auto_stop():
                yield from pipeline.get_iterator(timeout=60)

    return Epochs()


def _stack(samples: list[tuple[np.ndarray, int]]) -> tuple[Any, Any]:
    import torch

    images, labels = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)


def decode_ceiling(data: Data, seconds: float = 3.0) -> float:
    """Return images a second that two processes decode, doing nothing else."""
    context = multiprocessing.get_context("fork")
    with context.Pool(WORKERS) as pool:
        return sum(pool.starmap(_decode_for, [(data.files[:200], seconds)] * WORKERS))


def _decode_for(files: list[str], seconds: float) -> float:
    contents = [Path(path).read_bytes() for path in files]
    for content in contents[:20]:
        decode_image(content)
    began, decoded = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        decode_image(contents[decoded % len(contents)])
        decoded += 1
    return decoded / (time.perf_counter() - began)


class _Mapped:
    def __init__(self, loader: Any, change: Callable[[Any], Any]) -> None:
        self._loader, self._change = loader, change

    def __iter__(self) -> Iterator[Any]:
        return map(self._change, iter(self._loader))


ARMS: dict[str, Callable[[Data], Iterable[Any]]] = {
    "headrace": headrace_arm,
    "headrace, single files": headrace_files_arm,
    "torch, same transform": torch_arm,
    "torch, Pillow": pillow_arm,
    "WebDataset": webdataset_arm,
    "LitData": litdata_arm,
    "SPDL": spdl_arm,
}
