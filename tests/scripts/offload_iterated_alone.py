"""Iterable datasets that are not shared with other hosts: argv[1] says why."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import headrace
from headrace.core.errors import LoaderError


class Unshared(IterableDataset):
    """Does not ask which worker it is: right as long as there is one."""

    def __iter__(self):
        yield from range(12)


def unshared() -> None:
    for kind in (torch.utils.data.DataLoader, headrace.DataLoader):
        for workers in (0, 1):
            loader = kind(Unshared(), 4, num_workers=workers)
            for _ in range(2):
                assert torch.cat(list(loader)).tolist() == list(range(12))


class Shared(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id, 24, info.num_workers)


def fallen() -> None:
    """Make a loader that the hosts can help, then two that they cannot; these say so."""
    helped = headrace.DataLoader(Shared(), 2, num_workers=2)
    assert helped.state_dict()["workers"] == 4
    Path(os.environ["HEADRACE_OFFLOAD"]).unlink()
    first = headrace.DataLoader(Shared(), 2, num_workers=2)
    assert first.state_dict()["workers"] == 2
    for copied in (first, copy.copy(first)):
        assert sorted(torch.cat(list(copied)).tolist()) == list(range(24))
        assert copied.state_dict()["workers"] == 2
    helped.load_state_dict({**helped.state_dict(), "position": 3})
    for executor in helped._idle:  # as after a kill of its forkserver
        executor.close()
    with pytest.raises(LoaderError, match="goes on from batch 3, counted among 4 workers"):
        iter(helped)


if __name__ == "__main__":
    {"unshared": unshared, "fallen": fallen}[sys.argv[1]]()
    sys.stdout.write("whole\n")
