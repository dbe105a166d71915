"""What torch believes about this process: `get_worker_info()`, which has no public setter."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MODULE, _INFO = "torch.utils.data._utils.worker", "_worker_info"


def tell_torch(number: int, workers: int, seed: int, dataset: Any, *, iterable: bool) -> None:
    """Let `torch.utils.data.get_worker_info()` answer as in torch's own workers.

    An iterable dataset may ask at any time, so torch is imported for it; a map-style dataset that
    did not import torch by itself does not ask.
    """
    if not iterable and _MODULE not in sys.modules:
        return
    module = importlib.import_module(_MODULE)
    info = module.WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=dataset)
    setattr(module, _INFO, info)


def seed_as_torch(base_seed: int, number: int) -> None:
    """Seed the global CPU generators as torch does in worker `number` of a loader."""
    import numpy as np
    import torch

    seed = base_seed + number
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    state = importlib.import_module(_MODULE)._generate_state(base_seed, number)  # noqa: SLF001
    np.random.seed(state)  # noqa: NPY002 - the generator that user code draws from


@contextmanager
def hidden_from_torch() -> Iterator[None]:
    """Let torch believe meanwhile that this process is no worker.

    In a worker its `default_collate` stacks into a file in /dev/shm; here the batch goes into a
    slot, and a container's small /dev/shm must not matter.
    """
    module = sys.modules.get(_MODULE)
    info = getattr(module, _INFO, None)
    if module is None or info is None:
        yield
        return
    setattr(module, _INFO, None)
    try:
        yield
    finally:
        setattr(module, _INFO, info)
