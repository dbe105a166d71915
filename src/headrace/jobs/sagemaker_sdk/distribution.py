"""The `distribution` argument of an Estimator: how ranks are started, and in which group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from headrace.core.errors import UsageError, choices_hint
from headrace.jobs.sagemaker_sdk.config import InstanceGroup, is_whole_number
from headrace.platforms.training_job import Distribution

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
        if name not in (*known, _WITHOUT_RANKS, _GROUPS):
            raise UsageError(
                f"{prefix}{name}{choices_hint(name, [*known, _WITHOUT_RANKS, _GROUPS])}"
            )
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
    if chosen is not None and chosen not in names:
        raise UsageError(f"{where}distribution: {_GROUPS}: {chosen}{choices_hint(chosen, names)}")
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
        raise UsageError(f"{prefix}{name} is {value!r}: write it as {how}.")
    for option in value:
        if option not in _OPTIONS:
            raise UsageError(f"{prefix}{name}: {option}{choices_hint(str(option), _OPTIONS)}")
    if not isinstance(value.get("enabled", False), bool):
        raise UsageError(f"{prefix}{name} is {value!r}: write it as {how}.")
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
