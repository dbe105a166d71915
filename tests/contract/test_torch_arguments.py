"""A script that changes its import of DataLoader alone finds every argument it gives."""

from __future__ import annotations

import inspect

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from headrace import DataLoader
from plain_datasets import Images


def test_every_argument_of_torch_s_loader_is_there():
    theirs = inspect.signature(TorchDataLoader.__init__).parameters
    assert set(theirs) <= set(inspect.signature(DataLoader.__init__).parameters)


def test_a_loader_with_all_of_them_delivers():
    loader = DataLoader(
        Images(),
        batch_size=8,
        shuffle=True,
        num_workers=1,
        pin_memory=False,
        drop_last=True,
        timeout=60,
        worker_init_fn=None,
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(3),
        prefetch_factor=2,
        persistent_workers=True,
        pin_memory_device="",
        in_order=False,
    )
    assert sum(1 for _ in loader) == len(Images()) // 8
