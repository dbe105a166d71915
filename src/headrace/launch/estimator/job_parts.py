"""Parts of a job's description that SageMaker's users know: instance groups, the profiler."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.contracts.groups import Group, check_group_name
from headrace.contracts.instance_types import InstanceType, instance_type
from headrace.core.errors import UsageError
from headrace.launch.estimator.framework_profile import read_profile


@dataclass(frozen=True, slots=True, init=False)
class InstanceGroup:
    """Hosts of one kind.

    Args:
        name: What the group is called.
        type: Of its hosts: `local`, `local_gpu`, or one of AWS, SageMaker or Google, such as
            `ml.g5.xlarge`, `g2-standard-8`, which is emulated.
        count: How many hosts it has.
        instance_group_name: SageMaker's word for `name`.
        instance_type: SageMaker's word for `type`.
        instance_count: SageMaker's word for `count`.

    Raises:
        UsageError: There is no such type, or a group without hosts.
    """

    name: str
    type: str
    count: int

    def __init__(
        self, name: str | None = None, type: str | None = None, count: int | None = None, *,  # noqa: A002
        instance_group_name: str | None = None, instance_type: str | None = None,
        instance_count: int | None = None,
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
        if isinstance(hosts, bool) or not isinstance(hosts, int) or hosts < 1:
            raise UsageError(f"{where}: {hosts!r} hosts: a group has one or more.")
        object.__setattr__(self, "name", check_group_name(name, where))
        object.__setattr__(self, "type", kind)
        object.__setattr__(self, "count", hosts)
        _ = self.machine  # refuses a type that does not exist

    @property
    def machine(self) -> InstanceType:
        """What a host of it has."""
        return instance_type(self.type, f"InstanceGroup {self.name}")

    @property
    def has_devices(self) -> bool:
        """Whether its hosts have devices, as far as their type tells."""
        return self.type == "local_gpu" or bool(self.machine.devices)

    @property
    def instance_group_name(self) -> str:
        """SageMaker's word for `name`."""
        return self.name

    @property
    def instance_type(self) -> str:
        """SageMaker's word for `type`."""
        return self.type

    @property
    def instance_count(self) -> int:
        """SageMaker's word for `count`."""
        return self.count

    def flag(self) -> str:
        """Return what `--group` says of it."""
        return f"{self.name}={self.count}x{self.type}"

    def group(self) -> Group:
        """Return it as the launcher knows it."""
        machine = self.machine
        return Group(
            name=self.name, hosts=self.count, cpus=machine.cores, gpus=machine.devices,
            instance_type=self.type,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProfilerConfig:
    """How a job is recorded.

    Attributes:
        system_monitor_interval_millis: Milliseconds between samples of the system, 100 to 60,000.
        deep: Whether it is looked at closer for as long as it runs.
        s3_output_path: SageMaker's place for what is recorded; here it is in the run's folder.
        framework_profile_params: FrameworkProfile, say; not None: then it is looked at closer.
        profile_params: SageMaker Profiler's; recorded alone.
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
        if millis is None:  # as SageMaker has it where nothing is said
            millis = 500
            object.__setattr__(self, "system_monitor_interval_millis", millis)
        profile = read_profile(self.framework_profile_params)
        object.__setattr__(self, "framework_profile_params", profile)
        if isinstance(millis, bool) or not isinstance(millis, int) or not 100 <= millis <= 60_000:
            raise UsageError(
                f"ProfilerConfig: system_monitor_interval_millis {millis!r}: give a whole number "
                "from 100 to 60000."
            )

    def flags(self) -> list[str]:
        """Return what the command line says of it."""
        deep = self.deep or self.framework_profile_params is not None
        interval = f"--profile-interval={self.system_monitor_interval_millis}ms"
        return [interval, *(["--profile=deep"] if deep else [])]
