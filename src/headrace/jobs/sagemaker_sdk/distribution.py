"""The `distribution` argument of an Estimator: what starts several ranks, in which group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from headrace.core.errors import UsageError
from headrace.core.suggestions import choices_hint
from headrace.jobs.sagemaker_sdk.config import InstanceGroup
from headrace.platforms.training_job import Distribution

_GROUPS = "instance_groups"
_PER_HOST = "processes_per_host"
_MPI_OPTIONS = "custom_mpi_options"
# What SageMaker's SDK reads of each (sagemaker 2.257, `_distribution_configuration` in
# estimator.py); how many ranks a host has can be said of any of them here.
_OPTIONS = ("enabled", _PER_HOST, _MPI_OPTIONS)
_WITHOUT_RANKS = "parameter_server"
"""Its containers for PyTorch start no rank for it: the script runs once on each host."""
_UNSUPPORTED = {
    "pytorchxla": "the ranks of Trainium's are started by torch_xla, and nothing here does that. "
    'Take "torch_distributed".',
    "multi_worker_mirrored_strategy": "it is TensorFlow's.",
}
"""What else the SDK knows, and why it is not to be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksSpec:
    """What starts several ranks, and where.

    Attributes:
        distribution: As SageMaker calls what starts them.
        group: The instance group in which it does so; None: the only one, or the one with devices.
        per_host: How many on each host; None: one on each device.
    """

    distribution: Distribution
    group: str | None = None
    per_host: int | None = None


def ranks_of(told: Mapping[str, Any], where: str) -> RanksSpec | None:
    """Return what starts ranks; None: the script runs once on each host.

    Args:
        told: The argument.
        where: Who gave it, as a message begins.

    Raises:
        UsageError: There is no such way or option of it, or two ways, or no group for one.
    """
    said = f"{where}distribution: "
    known: tuple[Distribution, ...] = get_args(Distribution)
    enabled = {}
    for name, value in told.items():
        if name in _UNSUPPORTED:
            raise UsageError(f"{said}{name}: {_UNSUPPORTED[name]}")
        if name not in (*known, _WITHOUT_RANKS, _GROUPS):
            raise UsageError(f"{said}{name}{choices_hint(name, [*known, _WITHOUT_RANKS, _GROUPS])}")
        options = _options(name, value, said) if name != _GROUPS else {}
        if options.get("enabled", False):
            enabled[name] = options
    if len(enabled) > 1:
        raise UsageError(f"{said}{' and '.join(enabled)}: enable one of them.")
    group = _group(told[_GROUPS], said) if told.get(_GROUPS) is not None else None
    name = next(iter(enabled), _WITHOUT_RANKS)
    if name == _WITHOUT_RANKS:
        if group is not None:
            raise UsageError(
                f"{said}{_GROUPS} names the group {group}, and nothing starts ranks in it: add "
                f'"torch_distributed": {{"enabled": True}}, or leave it out.'
            )
        return None
    per_host = _per_host(enabled[name].get(_PER_HOST), said)
    return RanksSpec(distribution=known[known.index(name)], group=group, per_host=per_host)


def distribution_notes(told: Mapping[str, Any]) -> list[str]:
    """Return what of a distribution that was read by `ranks_of` has no effect here."""
    notes = []
    for name, value in told.items():
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
                "SageMaker's "
                "containers for PyTorch"
            )
    return notes


def training_first(
    groups: Sequence[InstanceGroup], ranks: RanksSpec | None, offload: str | None, where: str
) -> tuple[InstanceGroup, ...]:
    """Return the groups in the order in which the launcher takes them: the first one trains.

    Args:
        groups: All; empty: this host alone.
        ranks: What starts ranks.
        offload: The group whose hosts make batches.
        where: Who asks, as a message begins.

    Raises:
        UsageError: There is no group of that name, or it is not clear which one trains.
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
        may = [group.name for group in groups if group.has_devices and group.name != offload]
        if len(may) > 1:
            raise UsageError(
                f"{where}distribution: which of the groups {', '.join(may)} trains? Name it: "
                f'"{_GROUPS}": ["{may[0]}"].'
            )
        chosen = may[0] if may else next((name for name in names if name != offload), names[0])
    if chosen is not None and chosen not in names:
        raise UsageError(f"{where}distribution: {_GROUPS}: {chosen}{choices_hint(chosen, names)}")
    return tuple(sorted(groups, key=lambda group: group.name != chosen))


def _options(name: str, value: object, said: str) -> Mapping[str, Any]:
    """Return what is said of one way to start ranks, checked."""
    how = f'{{"{name}": {{"enabled": True}}}}'
    if name == "smdistributed":
        how = '{"smdistributed": {"dataparallel": {"enabled": True}}}'
        if not isinstance(value, Mapping) or set(value) != {"dataparallel"}:
            raise UsageError(f"{said}of smdistributed there is dataparallel: {how}.")
        value = value["dataparallel"]
    if not isinstance(value, Mapping):
        raise UsageError(f"{said}{name} is {value!r}: write it as {how}.")
    for option in value:
        if option not in _OPTIONS:
            raise UsageError(f"{said}{name}: {option}{choices_hint(str(option), _OPTIONS)}")
    if not isinstance(value.get("enabled", False), bool):
        raise UsageError(f"{said}{name} is {value!r}: write it as {how}.")
    return value


def _group(told: object, said: str) -> str:
    """Return the name of the group that trains."""
    if not isinstance(told, Sequence) or isinstance(told, str | bytes):
        raise UsageError(f'{said}{_GROUPS} is {told!r}: write it as "{_GROUPS}": ["gpu"].')
    names = [_name_of(each) for each in told]
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"{said}{_GROUPS}: {name!r} is no group: give its name.")
    if len(names) != 1:
        which = ", ".join(map(str, names)) or "none"
        raise UsageError(f"{said}{_GROUPS}: {which}: one group trains; name that.")
    return str(names[0])


def _name_of(group: object) -> object:
    if isinstance(group, InstanceGroup):
        return group.name
    return group.get("name") if isinstance(group, Mapping) else group  # as run.json has one


def _per_host(told: object, said: str) -> int | None:
    if told is None:
        return None
    if isinstance(told, bool) or not isinstance(told, int) or told < 1:
        raise UsageError(f"{said}{_PER_HOST}: {told!r} is not a whole number, 1 or more.")
    return told
