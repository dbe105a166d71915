"""The public names of Headrace, imported at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.lazy import lazy_importer

if TYPE_CHECKING:
    from headrace import experiments as experiments
    from headrace import transforms as transforms
    from headrace.core.errors import HeadraceError as HeadraceError
    from headrace.data.loader.dataloader import DataLoader as DataLoader
    from headrace.data.loader.shard_dataset import ShardDataset as ShardDataset
    from headrace.data.storage import StorageConfig as StorageConfig
    from headrace.jobs.estimator import Estimator as Estimator
    from headrace.jobs.estimator import PyTorch as PyTorch
    from headrace.report.open_run import open_run as open_run
    from headrace.train import Checkpointer as Checkpointer
    from headrace.train import prepare as prepare

__version__ = "0.1.0"

_MODULES = {
    "Checkpointer": "headrace.train",
    "DataLoader": "headrace.data.loader.dataloader",
    "Estimator": "headrace.jobs.estimator",
    "HeadraceError": "headrace.core.errors",
    "PyTorch": "headrace.jobs.estimator",
    "ShardDataset": "headrace.data.loader.shard_dataset",
    "StorageConfig": "headrace.data.storage",
    "experiments": "headrace.experiments",
    "open_run": "headrace.report.open_run",
    "prepare": "headrace.train",
    "transforms": "headrace.transforms",
}

__all__ = [*_MODULES, "__version__"]  # noqa: PLE0604 - the names are strings, and a test lists them


__getattr__ = lazy_importer(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
