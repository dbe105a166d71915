"""Headrace keeps accelerators fed. The public names, imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.lazy import importer

if TYPE_CHECKING:
    from headrace import transforms as transforms
    from headrace.core.errors import HeadraceError as HeadraceError
    from headrace.data.loader.dataset import ShardDataset as ShardDataset
    from headrace.data.loader.loader import DataLoader as DataLoader
    from headrace.data.storage import StorageConfig as StorageConfig
    from headrace.launch import rule_configs as rule_configs
    from headrace.launch.debugger import CollectionConfig as CollectionConfig
    from headrace.launch.debugger import DebuggerHookConfig as DebuggerHookConfig
    from headrace.launch.debugger import ProfilerRule as ProfilerRule
    from headrace.launch.debugger import Rule as Rule
    from headrace.launch.debugger import TensorBoardOutputConfig as TensorBoardOutputConfig
    from headrace.launch.estimator import Estimator as Estimator
    from headrace.launch.estimator import PyTorch as PyTorch
    from headrace.launch.framework_profile import (
        DataloaderProfilingConfig as DataloaderProfilingConfig,
    )
    from headrace.launch.framework_profile import DetailedProfilingConfig as DetailedProfilingConfig
    from headrace.launch.framework_profile import FrameworkProfile as FrameworkProfile
    from headrace.launch.framework_profile import HorovodProfilingConfig as HorovodProfilingConfig
    from headrace.launch.framework_profile import PythonProfiler as PythonProfiler
    from headrace.launch.framework_profile import PythonProfilingConfig as PythonProfilingConfig
    from headrace.launch.framework_profile import (
        SMDataParallelProfilingConfig as SMDataParallelProfilingConfig,
    )
    from headrace.launch.framework_profile import cProfileTimer as cProfileTimer
    from headrace.launch.job_parts import InstanceGroup as InstanceGroup
    from headrace.launch.job_parts import ProfilerConfig as ProfilerConfig
    from headrace.launch.training_inputs import FileSystemInput as FileSystemInput
    from headrace.launch.training_inputs import ShuffleConfig as ShuffleConfig
    from headrace.launch.training_inputs import TrainingInput as TrainingInput
    from headrace.report.open_run import open_run as open_run
    from headrace.train import Checkpointer as Checkpointer
    from headrace.train import prepare as prepare

__version__ = "0.1.0"

_HOMES = {
    "Checkpointer": "headrace.train",
    "CollectionConfig": "headrace.launch.debugger",
    "DataLoader": "headrace.data.loader.loader",
    "DataloaderProfilingConfig": "headrace.launch.framework_profile",
    "DebuggerHookConfig": "headrace.launch.debugger",
    "DetailedProfilingConfig": "headrace.launch.framework_profile",
    "Estimator": "headrace.launch.estimator",
    "FileSystemInput": "headrace.launch.training_inputs",
    "FrameworkProfile": "headrace.launch.framework_profile",
    "HeadraceError": "headrace.core.errors",
    "HorovodProfilingConfig": "headrace.launch.framework_profile",
    "InstanceGroup": "headrace.launch.job_parts",
    "ProfilerConfig": "headrace.launch.job_parts",
    "ProfilerRule": "headrace.launch.debugger",
    "PyTorch": "headrace.launch.estimator",
    "PythonProfiler": "headrace.launch.framework_profile",
    "PythonProfilingConfig": "headrace.launch.framework_profile",
    "Rule": "headrace.launch.debugger",
    "SMDataParallelProfilingConfig": "headrace.launch.framework_profile",
    "ShardDataset": "headrace.data.loader.dataset",
    "ShuffleConfig": "headrace.launch.training_inputs",
    "StorageConfig": "headrace.data.storage",
    "TensorBoardOutputConfig": "headrace.launch.debugger",
    "TrainingInput": "headrace.launch.training_inputs",
    "cProfileTimer": "headrace.launch.framework_profile",
    "open_run": "headrace.report.open_run",
    "prepare": "headrace.train",
    "rule_configs": "headrace.launch.debugger",
    "transforms": "headrace.transforms",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604 - the names are strings, and a test lists them


__getattr__ = importer(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
