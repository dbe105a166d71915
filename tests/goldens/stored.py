"""What the stored artefacts are made of and opened with, by the maker and by the tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headrace import DataLoader, ShardDataset
from headrace.data.storage import open_store


def checkpoint_parts(dataset: Path) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    """Return a model with known weights, its optimizer, and a loader of the dataset."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(3, 8)).sum().backward()
    optimizer.step()
    loader = DataLoader(ShardDataset(str(dataset)), batch_size=6, shuffle=True, seed=3)
    return model, optimizer, loader


class CountingStore:
    """A local store under a fixed URL and with fixed versions, which counts what is read of it."""

    url = "s3://goldens/dataset"

    def __init__(self, folder: Path) -> None:
        self._store: Any = open_store(str(folder))
        self.read_bytes = 0

    def _fixed(self, info: Any) -> Any:
        return dataclasses.replace(info, etag="fixed")

    def list(self, prefix: str = "") -> Iterator[Any]:
        return map(self._fixed, self._store.list(prefix))

    def head(self, path: str) -> Any:
        return self._fixed(self._store.head(path))

    def submit_head(self, path: str) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(self.head(path))
        return done

    def submit_part(self, path: str, start: int, length: int) -> Future[Any]:
        part = self._store.submit_part(path, start, length).result()
        self.read_bytes += len(part.data)
        done: Future[Any] = Future()
        done.set_result(dataclasses.replace(part, info=self._fixed(part.info)))
        return done

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        return self._store.get_ranges(path, ranges)

    def close(self) -> None:
        self._store.close()
