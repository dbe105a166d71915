"""Headrace keeps accelerators fed. The public names, imported when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace import transforms as transforms
    from headrace.core.errors import HeadraceError as HeadraceError
    from headrace.data.loader.dataset import ShardDataset as ShardDataset
    from headrace.data.loader.loader import DataLoader as DataLoader
    from headrace.data.storage import StorageConfig as StorageConfig
    from headrace.report.open_run import open_run as open_run
    from headrace.train import Checkpointer as Checkpointer
    from headrace.train import prepare as prepare

__version__ = "0.1.0"

_HOMES = {
    "Checkpointer": "headrace.train",
    "DataLoader": "headrace.data.loader.loader",
    "HeadraceError": "headrace.core.errors",
    "ShardDataset": "headrace.data.loader.dataset",
    "StorageConfig": "headrace.data.storage",
    "open_run": "headrace.report.open_run",
    "prepare": "headrace.train",
    "transforms": "headrace.transforms",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604 - the names are strings, and a test lists them


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    return home if name == "transforms" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
