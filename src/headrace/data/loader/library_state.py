"""The state of libraries in a batch-making process: generators, settings, torch's worker info."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def seed_generators(seed: int) -> None:
    """Seed the global CPU generators of Python and, where they are imported, NumPy and torch.

    `torch.default_generator.manual_seed` takes about 1 us where `torch.manual_seed` takes 84: the
    latter also visits every accelerator.
    """
    random.seed(seed)
    if "numpy.random" in sys.modules:
        np.random.seed(seed & 0xFFFF_FFFF)  # noqa: NPY002 - the generator that user code draws from
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)


def imported_generators() -> tuple[bool, bool]:
    """Return whether NumPy's and torch's generators are imported; others are not seeded."""
    return "numpy.random" in sys.modules, "torch" in sys.modules


def generator_states() -> tuple[Any, Any, Any]:
    """Return the states of the three global CPU generators."""
    torch = sys.modules.get("torch")
    torch_state = torch.get_rng_state() if torch is not None else None
    return random.getstate(), np.random.get_state(), torch_state  # noqa: NPY002


def set_generator_states(states: tuple[Any, Any, Any]) -> None:
    """Set the three global CPU generators to states from `generator_states`."""
    python_state, numpy_state, torch_state = states
    random.setstate(python_state)
    np.random.set_state(numpy_state)  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None and torch_state is not None:
        torch.set_rng_state(torch_state)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore the global CPU generators afterwards: inline work must not affect the model's."""
    states = generator_states()
    try:
        yield
    finally:
        set_generator_states(states)


_TORCH, _IMAGE, _IMAGE_FILE = "torch", "PIL.Image", "PIL.ImageFile"
_USUAL_DTYPE = "float32"


def library_settings() -> dict[str, Any]:
    """Return this process's settings of the libraries that it has imported."""
    found: dict[str, Any] = {}
    if _TORCH in sys.modules:
        found[_TORCH] = str(sys.modules[_TORCH].get_default_dtype()).removeprefix("torch.")
    if _IMAGE in sys.modules:
        found[_IMAGE] = sys.modules[_IMAGE].MAX_IMAGE_PIXELS
    if _IMAGE_FILE in sys.modules:
        found[_IMAGE_FILE] = sys.modules[_IMAGE_FILE].LOAD_TRUNCATED_IMAGES
    return found


def apply_library_settings(found: dict[str, Any]) -> None:
    """Apply settings of `library_settings`, defaults too: a forkserver serves many loaders."""
    dtype = found.get(_TORCH, _USUAL_DTYPE)
    if dtype != _USUAL_DTYPE or (_TORCH in found and _TORCH in sys.modules):
        import torch

        torch.set_default_dtype(getattr(torch, dtype))
    for module, name in ((_IMAGE, "MAX_IMAGE_PIXELS"), (_IMAGE_FILE, "LOAD_TRUNCATED_IMAGES")):
        loaded = sys.modules.get(module)  # unpickling the dataset imported it, where it is needed
        if loaded is not None and module in found:
            setattr(loaded, name, found[module])


_MODULE, _INFO = "torch.utils.data._utils.worker", "_worker_info"


def set_worker_info(number: int, workers: int, seed: int, dataset: Any, *, iterable: bool) -> None:
    """Let `torch.utils.data.get_worker_info()` answer as in torch's own workers.

    An iterable dataset may call it at any time, so torch is imported for it; a map-style dataset
    that did not import torch itself cannot call it.
    """
    if not iterable and _MODULE not in sys.modules:
        return
    module = importlib.import_module(_MODULE)
    info = module.WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=dataset)
    setattr(module, _INFO, info)


def seed_like_torch_worker(base_seed: int, number: int) -> None:
    """Seed the global CPU generators as torch does in worker `number` of a loader."""
    import torch

    seed = base_seed + number
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    state = importlib.import_module(_MODULE)._generate_state(base_seed, number)  # noqa: SLF001
    np.random.seed(state)  # noqa: NPY002 - the generator that user code draws from


@contextmanager
def without_worker_info() -> Iterator[None]:
    """Hide torch's worker info.

    In a worker torch's `default_collate` stacks into a file in /dev/shm; here the batch goes into a
    slot, and the size of a container's /dev/shm must not matter.
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
