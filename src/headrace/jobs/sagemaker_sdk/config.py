"""The instance groups, distribution and profiler configuration of SageMaker's SDK, with its names.

Names, order and defaults of `FrameworkProfile` and its parts are those of sagemaker 2.257,
`debugger/framework_profile.py` and `debugger/metrics_config.py`. The `distribution` of an Estimator
says how ranks are started, and in which group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, TypeGuard, get_args

from headrace.core.errors import UsageError, check_choices
from headrace.platforms.instance_groups import (
    GroupSpec,
    InstanceType,
    check_group_name,
    instance_type,
)
from headrace.platforms.training_job import Distribution
from headrace.records.redaction import shown_value


class PythonProfiler(Enum):
    """The profiler of Python code."""

    CPROFILE = "cprofile"
    PYINSTRUMENT = "pyinstrument"


class cProfileTimer(Enum):  # noqa: N801 - SageMaker's
    """The clock of cProfile."""

    TOTAL_TIME = "total_time"
    CPU_TIME = "cpu_time"
    OFF_CPU_TIME = "off_cpu_time"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of steps, or of time from `start_unix_time` on."""

    start_step: int | None = None
    num_steps: int | None = None
    start_unix_time: int | None = None  # in seconds since 1970
    duration: float | None = None  # in seconds
    profile_default_steps: bool = False  # Debugger's default steps

    def __post_init__(self) -> None:
        check_range(self)


class DetailedProfilingConfig(_Range):
    """The range for operators; see `FrameworkProfile`."""


class HorovodProfilingConfig(_Range):
    """The range for Horovod; see `FrameworkProfile`."""


class SMDataParallelProfilingConfig(_Range):
    """The range for SageMaker's library for data parallel training; see `FrameworkProfile`."""


@dataclass(frozen=True, slots=True)
class DataloaderProfilingConfig(_Range):
    """The range for data loaders; see `FrameworkProfile`."""

    metrics_regex: str = ".*"


@dataclass(frozen=True, slots=True)
class PythonProfilingConfig(_Range):
    """The range for Python code; see `FrameworkProfile`."""

    python_profiler: PythonProfiler | str = PythonProfiler.CPROFILE
    cprofile_timer: cProfileTimer | str = cProfileTimer.TOTAL_TIME


@dataclass(frozen=True, slots=True)
class FrameworkProfile:
    """What Debugger was to profile in depth. Headrace records the whole run, or `duration`, so.

    Arguments without a description are only recorded.

    Attributes:
        start_step: The first step; only recorded.
        num_steps: The number of steps; only recorded.
        start_unix_time: The start, in seconds since 1970; only recorded.
        duration: How long `update_profiler` records in depth, in seconds.

    Raises:
        UsageError: Both steps and a time, or an invalid number.
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
        """Whether it names steps or single parts, which have no effect here."""
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


def read_profile(given: object) -> object | None:
    """Return the FrameworkProfile of a value of a job file, of run.json, or of an argument.

    Such a value is None, True, a FrameworkProfile, or its arguments; others stay as they are.
    """
    if not isinstance(given, Mapping):
        return FrameworkProfile() if given is True else given or None
    parts = {
        name: _made(_PARTS[name], each) if isinstance(each, Mapping) else each
        for name, each in given.items()
        if name in _PARTS
    }
    return _made(FrameworkProfile, {**given, **parts})


def is_whole_number(value: object, least: int) -> TypeGuard[int]:
    """Whether a value is an int, which True and False are not here, and not too small."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_range(given: _Range | FrameworkProfile) -> None:
    """Raise UsageError for an invalid range of steps or of time."""
    where = type(given).__name__
    for name, least in (("start_step", 0), ("num_steps", 1), ("start_unix_time", 0)):
        value = getattr(given, name)
        if value is not None and not is_whole_number(value, least):
            raise UsageError(f"{where}: {name} {value!r} is not a whole number, {least} or more.")
    seconds = given.duration
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0
    ):
        raise UsageError(f"{where}: duration {seconds!r} is not a number of seconds over 0.")
    steps = given.start_step is not None or given.num_steps is not None
    if steps and (given.start_unix_time is not None or seconds is not None):
        raise UsageError(f"{where}: steps and a time are given: give one of them.")


def _made(kind: type, arguments: Mapping[str, Any]) -> object:
    check_choices(arguments, [each.name for each in fields(kind)], f"{kind.__name__}: ")
    return kind(**arguments)


@dataclass(frozen=True, slots=True, init=False)
class InstanceGroup:
    """A group of hosts of one machine type.

    Args:
        name: The group's name.
        type: The machine type: `local`, `local_gpu`, or a type of AWS, SageMaker or Google, such as
            `ml.g5.xlarge`, `g2-standard-8`, which is emulated.
        count: The number of hosts.
        devices: Of each host; None: as many as its type has.
        instance_group_name: SageMaker's name for `name`.
        instance_type: SageMaker's name for `type`.
        instance_count: SageMaker's name for `count`.

    Raises:
        UsageError: There is no such type, or a group without hosts.
    """

    name: str
    type: str
    count: int
    devices: int | None

    def __init__(
        self, name: str | None = None, type: str | None = None, count: int | None = None, *,  # noqa: A002
        devices: int | None = None, instance_group_name: str | None = None,
        instance_type: str | None = None, instance_count: int | None = None,
    ) -> None:  # fmt: skip
        name = instance_group_name if name is None else name
        kind = instance_type if type is None else type
        hosts = instance_count if count is None else count
        if not isinstance(name, str) or not isinstance(kind, str) or hosts is None:
            raise UsageError(
                f"InstanceGroup({name!r}, {kind!r}, {hosts!r}): write it as "
                'InstanceGroup("gpu", "ml.g5.xlarge", 1): name, type, how many hosts.'
            )
        where = f"InstanceGroup {name}"
        if not is_whole_number(hosts, least=1):
            raise UsageError(f"{where}: {hosts!r} hosts: a group has one or more.")
        object.__setattr__(self, "name", check_group_name(name, where))
        object.__setattr__(self, "type", kind)
        object.__setattr__(self, "count", hosts)
        if devices is not None and not is_whole_number(devices, least=0):
            raise UsageError(f"{where}: {devices!r} devices: give a whole number, 0 or more.")
        object.__setattr__(self, "devices", devices)
        _ = self.machine  # raises where there is no such type

    @property
    def machine(self) -> InstanceType:
        """The machine type of its hosts."""
        return instance_type(self.type, f"InstanceGroup {self.name}")

    @property
    def has_devices(self) -> bool:
        """Whether its hosts have devices, as far as their type is known."""
        if self.devices is not None:
            return self.devices > 0
        return self.type == "local_gpu" or bool(self.machine.devices)

    @property
    def instance_group_name(self) -> str:
        """SageMaker's name for `name`."""
        return self.name

    @property
    def instance_type(self) -> str:
        """SageMaker's name for `type`."""
        return self.type

    @property
    def instance_count(self) -> int:
        """SageMaker's name for `count`."""
        return self.count

    def flag(self) -> str:
        """Return the value of the `--group` flag."""
        shape = "" if self.devices is None else f":gpus={self.devices}"
        return f"{self.name}={self.count}x{self.type}{shape}"

    def group(self) -> GroupSpec:
        """Return the group as the launcher's `GroupSpec`."""
        machine = self.machine
        return GroupSpec(
            name=self.name, hosts=self.count, cpus=machine.cores,
            gpus=machine.devices if self.devices is None else self.devices,
            instance_type=self.type,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProfilerConfig:
    """How a job is recorded.

    Attributes:
        system_monitor_interval_millis: Milliseconds between samples of the system, 100 to 60,000.
        deep: Whether the job is recorded in depth for as long as it runs.
        s3_output_path: SageMaker's location of the records; here they are in the run folder.
        framework_profile_params: A FrameworkProfile; not None: the job is recorded in depth.
        profile_params: SageMaker Profiler's; only recorded.
        disable_profiler: Nothing is recorded.
    """

    system_monitor_interval_millis: int | None = 500
    deep: bool = False
    s3_output_path: str | None = None
    framework_profile_params: object | None = None
    profile_params: object | None = None
    disable_profiler: bool = False

    def __post_init__(self) -> None:
        millis = self.system_monitor_interval_millis
        if millis is None:  # SageMaker's default
            millis = 500
            object.__setattr__(self, "system_monitor_interval_millis", millis)
        profile = read_profile(self.framework_profile_params)
        object.__setattr__(self, "framework_profile_params", profile)
        if not is_whole_number(millis, least=100) or millis > 60_000:
            raise UsageError(
                f"ProfilerConfig: system_monitor_interval_millis {millis!r}: give a whole number "
                "from 100 to 60000."
            )

    @property
    def is_deep(self) -> bool:
        """Whether the job is recorded in depth."""
        return self.deep or self.framework_profile_params is not None


_GROUPS = "instance_groups"
_PER_HOST = "processes_per_host"
_MPI_OPTIONS = "custom_mpi_options"
# The options that SageMaker's SDK reads (sagemaker 2.257, `_distribution_configuration` in
# estimator.py); here any of them may also give the number of ranks per host.
_OPTIONS = ("enabled", _PER_HOST, _MPI_OPTIONS)
_WITHOUT_RANKS = "parameter_server"
"""SageMaker's PyTorch containers start no ranks for it: the script runs once on each host."""
_UNSUPPORTED = {
    "pytorchxla": "the ranks of Trainium's are started by torch_xla, and nothing here does that. "
    'Take "torch_distributed".',
    "multi_worker_mirrored_strategy": "it is TensorFlow's.",
}
"""Other distributions of the SDK, and why they are not supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksSpec:
    """How and where ranks are started."""

    distribution: Distribution
    group: str | None = None  # None: the only one, or the one with devices
    per_host: int | None = None  # None: one per device


def ranks_of(given: Mapping[str, Any], where: str) -> RanksSpec | None:
    """Return how ranks are started; None: the script runs once on each host.

    Raises UsageError, prefixed by `where`, for an invalid value.
    """
    prefix = f"{where}distribution: "
    known: tuple[Distribution, ...] = get_args(Distribution)
    enabled = {}
    for name, value in given.items():
        if name in _UNSUPPORTED:
            raise UsageError(f"{prefix}{name}: {_UNSUPPORTED[name]}")
        check_choices([name], [*known, _WITHOUT_RANKS, _GROUPS], prefix)
        options = _options(name, value, prefix) if name != _GROUPS else {}
        if options.get("enabled", False):
            enabled[name] = options
    if len(enabled) > 1:
        raise UsageError(f"{prefix}{' and '.join(enabled)}: enable one of them.")
    group = _group(given[_GROUPS], prefix) if given.get(_GROUPS) is not None else None
    name = next(iter(enabled), _WITHOUT_RANKS)
    if name == _WITHOUT_RANKS:
        if group is not None:
            raise UsageError(
                f"{prefix}{_GROUPS} names the group {group}, and nothing starts ranks in it: add "
                f'"torch_distributed": {{"enabled": True}}, or leave it out.'
            )
        return None
    per_host = _per_host(enabled[name].get(_PER_HOST), prefix)
    return RanksSpec(distribution=known[known.index(name)], group=group, per_host=per_host)


def distribution_notes(given: Mapping[str, Any]) -> list[str]:
    """Return which parts of a distribution, checked by `ranks_of`, have no effect here."""
    notes = []
    for name, value in given.items():
        if name == _GROUPS:
            continue
        options = value["dataparallel"] if name == "smdistributed" else value
        if "enabled" not in options:
            notes.append(f'distribution: {name} starts no ranks: it lacks "enabled": True')
        elif options["enabled"] and options.get(_MPI_OPTIONS):
            notes.append(
                f"distribution: {_MPI_OPTIONS} have no effect: torchrun starts the ranks, not "
                "mpirun; variables are given by environment"
            )
        elif options["enabled"] and name == _WITHOUT_RANKS:
            notes.append(
                f"distribution: {_WITHOUT_RANKS}: the script runs once on each host, as in "
                "SageMaker's containers for PyTorch"
            )
    return notes


def training_first(
    groups: Sequence[InstanceGroup], ranks: RanksSpec | None, offload: str | None, where: str
) -> tuple[InstanceGroup, ...]:
    """Return the groups in the launcher's order: the training group first.

    Raises UsageError, prefixed by `where`, for an unknown or ambiguous training group.
    """
    names = [group.name for group in groups]
    if ranks is None:
        return tuple(groups)
    chosen = ranks.group
    if chosen is not None and not groups:
        raise UsageError(
            f"{where}distribution: {_GROUPS}: {chosen}: the job has no groups. Add "
            f'instance_groups=[InstanceGroup("{chosen}", "local_gpu", 1)], or leave it out here.'
        )
    if chosen is None and groups:
        candidates = [group.name for group in groups if group.has_devices and group.name != offload]
        if len(candidates) > 1:
            raise UsageError(
                f"{where}distribution: which of the groups {', '.join(candidates)} trains? Name "
                f'it: "{_GROUPS}": ["{candidates[0]}"].'
            )
        chosen = (candidates or [name for name in names if name != offload] or names)[0]
    if chosen is not None:
        check_choices([chosen], names, f"{where}distribution: {_GROUPS}: ")
    return tuple(sorted(groups, key=lambda group: group.name != chosen))


def _options(name: str, value: object, prefix: str) -> Mapping[str, Any]:
    """Return the checked options of one distribution."""
    how = f'{{"{name}": {{"enabled": True}}}}'
    if name == "smdistributed":
        how = '{"smdistributed": {"dataparallel": {"enabled": True}}}'
        if not isinstance(value, Mapping) or set(value) != {"dataparallel"}:
            raise UsageError(f"{prefix}of smdistributed there is dataparallel: {how}.")
        value = value["dataparallel"]
    if not isinstance(value, Mapping):
        raise UsageError(f"{prefix}{name} is {shown_value(value)}: write it as {how}.")
    check_choices(value, _OPTIONS, f"{prefix}{name}: ")
    if not isinstance(value.get("enabled", False), bool):
        raise UsageError(f"{prefix}{name} is {shown_value(value)}: write it as {how}.")
    return value


def _group(names_given: object, prefix: str) -> str:
    """Return the name of the training group."""
    if not isinstance(names_given, Sequence) or isinstance(names_given, str | bytes):
        raise UsageError(f'{prefix}{_GROUPS} is {names_given!r}: write it as "{_GROUPS}": ["gpu"].')
    names = [_name_of(each) for each in names_given]
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"{prefix}{_GROUPS}: {name!r} is no group: give its name.")
    if len(names) != 1:
        which = ", ".join(map(str, names)) or "none"
        raise UsageError(f"{prefix}{_GROUPS}: {which}: one group trains; name that.")
    return str(names[0])


def _name_of(group: object) -> object:
    if isinstance(group, InstanceGroup):
        return group.name
    return group.get("name") if isinstance(group, Mapping) else group  # a group of run.json


def _per_host(value: object, prefix: str) -> int | None:
    if value is None or is_whole_number(value, least=1):
        return value
    raise UsageError(f"{prefix}{_PER_HOST}: {value!r} is not a whole number, 1 or more.")
