"""SageMaker's `FrameworkProfile`: which steps, or how long, its Debugger looked at closer.

Names, order and defaults are those of sagemaker 2.257, `debugger/framework_profile.py` and
`debugger/metrics_config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from headrace.core.errors import UsageError
from headrace.core.nearest import is_one_of


class PythonProfiler(Enum):
    """What looked at Python code."""

    CPROFILE = "cprofile"
    PYINSTRUMENT = "pyinstrument"


class cProfileTimer(Enum):  # noqa: N801 - SageMaker's
    """Which time cProfile took."""

    TOTAL_TIME = "total_time"
    CPU_TIME = "cpu_time"
    OFF_CPU_TIME = "off_cpu_time"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class _Range:
    """Steps, or a time.

    Attributes:
        start_step: The first step.
        num_steps: How many.
        start_unix_time: Instead: from when on, in seconds since 1970.
        duration: For how long, in seconds.
        profile_default_steps: The steps that Debugger takes by itself.
    """

    start_step: int | None = None
    num_steps: int | None = None
    start_unix_time: int | None = None
    duration: float | None = None
    profile_default_steps: bool = False

    def __post_init__(self) -> None:
        check_range(self)


class DetailedProfilingConfig(_Range):
    """Of operators; see `FrameworkProfile`."""


class HorovodProfilingConfig(_Range):
    """Of Horovod; see `FrameworkProfile`."""


class SMDataParallelProfilingConfig(_Range):
    """Of SageMaker's library for data parallel training; see `FrameworkProfile`."""


@dataclass(frozen=True, slots=True)
class DataloaderProfilingConfig(_Range):
    """Of data loaders; see `FrameworkProfile`."""

    metrics_regex: str = ".*"


@dataclass(frozen=True, slots=True)
class PythonProfilingConfig(_Range):
    """Of Python code; see `FrameworkProfile`."""

    python_profiler: PythonProfiler | str = PythonProfiler.CPROFILE
    cprofile_timer: cProfileTimer | str = cProfileTimer.TOTAL_TIME


@dataclass(frozen=True, slots=True)
class FrameworkProfile:
    """What Debugger was to look at closer. Here the whole run is, or a time of it.

    Attributes:
        local_path: Recorded, as the three that follow.
        file_max_size: Recorded.
        file_close_interval: Recorded.
        file_open_fail_threshold: Recorded.
        detailed_profiling_config: Recorded, as the four that follow.
        dataloader_profiling_config: Recorded.
        python_profiling_config: Recorded.
        horovod_profiling_config: Recorded.
        smdataparallel_profiling_config: Recorded.
        start_step: The first step; recorded.
        num_steps: How many; recorded.
        start_unix_time: From when on, in seconds since 1970; recorded.
        duration: For how long, in seconds: `update_profiler` looks closer for so long.

    Raises:
        UsageError: Steps and a time both, or a number that cannot be.
    """

    local_path: str | None = None
    file_max_size: int | None = None
    file_close_interval: float | None = None
    file_open_fail_threshold: int | None = None
    detailed_profiling_config: DetailedProfilingConfig | None = None
    dataloader_profiling_config: DataloaderProfilingConfig | None = None
    python_profiling_config: PythonProfilingConfig | None = None
    horovod_profiling_config: HorovodProfilingConfig | None = None
    smdataparallel_profiling_config: SMDataParallelProfilingConfig | None = None
    start_step: int | None = None
    num_steps: int | None = None
    start_unix_time: int | None = None
    duration: float | None = None

    def __post_init__(self) -> None:
        check_range(self)

    @property
    def has_parts(self) -> bool:
        """Whether it names steps, or one thing and not another: nothing here chooses so."""
        parts = (each.name for each in fields(self) if each.name.endswith("_config"))
        given = (self.start_step, self.num_steps, self.start_unix_time)
        return any(each is not None for each in (*given, *(getattr(self, name) for name in parts)))


_PARTS: Mapping[str, type[_Range]] = {
    "detailed_profiling_config": DetailedProfilingConfig,
    "dataloader_profiling_config": DataloaderProfilingConfig,
    "python_profiling_config": PythonProfilingConfig,
    "horovod_profiling_config": HorovodProfilingConfig,
    "smdataparallel_profiling_config": SMDataParallelProfilingConfig,
}


def read_profile(told: object) -> object | None:
    """Return a FrameworkProfile that may be written as values by names; others as they are.

    Args:
        told: None, a FrameworkProfile, or its arguments, as job files and run.json have them.
    """
    if not isinstance(told, Mapping):
        return FrameworkProfile() if told is True else told or None
    parts = {
        name: _made(_PARTS[name], each) if isinstance(each, Mapping) else each
        for name, each in told.items()
        if name in _PARTS
    }
    return _made(FrameworkProfile, {**told, **parts})


def check_range(given: _Range | FrameworkProfile) -> None:
    """Raise UsageError for steps or a time that cannot be."""
    where = type(given).__name__
    for name, least in (("start_step", 0), ("num_steps", 1), ("start_unix_time", 0)):
        value = getattr(given, name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < least
        ):
            raise UsageError(f"{where}: {name} {value!r} is not a whole number, {least} or more.")
    seconds = given.duration
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0
    ):
        raise UsageError(f"{where}: duration {seconds!r} is not a number of seconds over 0.")
    steps = given.start_step is not None or given.num_steps is not None
    if steps and (given.start_unix_time is not None or seconds is not None):
        raise UsageError(f"{where}: steps and a time are given: give one of them.")


def _made(kind: type, told: Mapping[str, Any]) -> object:
    known = [each.name for each in fields(kind)]
    for name in told:
        if name not in known:
            raise UsageError(f"{kind.__name__}: {name}{is_one_of(str(name), known)}")
    return kind(**told)
