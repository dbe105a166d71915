"""The names of SageMaker's Python SDK that launch scripts use, importable in the SDK's place.

Each is here, and in the module where the SDK has it: `headrace.sagemaker.pytorch.PyTorch` in place
of `sagemaker.pytorch.PyTorch`. The package holds no logic of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.lazy import lazy_importer

if TYPE_CHECKING:
    from headrace.jobs.estimator import PyTorch as PyTorch
    from headrace.jobs.sagemaker_sdk import rule_configs as rule_configs
    from headrace.jobs.sagemaker_sdk.config import (
        DataloaderProfilingConfig as DataloaderProfilingConfig,
    )
    from headrace.jobs.sagemaker_sdk.config import (
        DetailedProfilingConfig as DetailedProfilingConfig,
    )
    from headrace.jobs.sagemaker_sdk.config import FrameworkProfile as FrameworkProfile
    from headrace.jobs.sagemaker_sdk.config import HorovodProfilingConfig as HorovodProfilingConfig
    from headrace.jobs.sagemaker_sdk.config import InstanceGroup as InstanceGroup
    from headrace.jobs.sagemaker_sdk.config import ProfilerConfig as ProfilerConfig
    from headrace.jobs.sagemaker_sdk.config import PythonProfiler as PythonProfiler
    from headrace.jobs.sagemaker_sdk.config import PythonProfilingConfig as PythonProfilingConfig
    from headrace.jobs.sagemaker_sdk.config import (
        SMDataParallelProfilingConfig as SMDataParallelProfilingConfig,
    )
    from headrace.jobs.sagemaker_sdk.config import cProfileTimer as cProfileTimer
    from headrace.jobs.sagemaker_sdk.debugger import CollectionConfig as CollectionConfig
    from headrace.jobs.sagemaker_sdk.debugger import DebuggerHookConfig as DebuggerHookConfig
    from headrace.jobs.sagemaker_sdk.debugger import ProfilerRule as ProfilerRule
    from headrace.jobs.sagemaker_sdk.debugger import Rule as Rule
    from headrace.jobs.sagemaker_sdk.debugger import (
        TensorBoardOutputConfig as TensorBoardOutputConfig,
    )
    from headrace.jobs.sagemaker_sdk.inputs import FileSystemInput as FileSystemInput
    from headrace.jobs.sagemaker_sdk.inputs import ShuffleConfig as ShuffleConfig
    from headrace.jobs.sagemaker_sdk.inputs import TrainingInput as TrainingInput

_NAMES = {
    "estimator": "PyTorch",
    "sagemaker_sdk.config": "DataloaderProfilingConfig DetailedProfilingConfig FrameworkProfile "
    "HorovodProfilingConfig InstanceGroup ProfilerConfig PythonProfiler PythonProfilingConfig "
    "SMDataParallelProfilingConfig cProfileTimer",
    "sagemaker_sdk.debugger": "CollectionConfig DebuggerHookConfig ProfilerRule Rule "
    "TensorBoardOutputConfig rule_configs",
    "sagemaker_sdk.inputs": "FileSystemInput ShuffleConfig TrainingInput",
}
_HOMES = {
    name: f"headrace.jobs.{module}" for module, names in _NAMES.items() for name in names.split()
}

__all__ = [*_HOMES]  # noqa: PLE0604 - the names are strings, and a test lists them


__getattr__ = lazy_importer(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
