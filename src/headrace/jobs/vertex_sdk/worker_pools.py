"""Worker pools of Vertex AI's jobs, as arguments of a job request.

Source: docs.cloud.google.com/vertex-ai, reference of `CustomJobSpec` (WorkerPoolSpec, MachineSpec,
ContainerSpec, PythonPackageSpec). Pools 0 and 1 train, and become one group of hosts; the others
become groups beside it, but for reduction servers, which only NCCL's networks there need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from headrace.core.errors import UsageError, check_choices
from headrace.jobs.options import is_list
from headrace.jobs.sagemaker_sdk.config import InstanceGroup, is_whole_number
from headrace.jobs.vertex_sdk.python_package import unpack_packages
from headrace.records.redaction import redact, shown_value

_POOL_KEYS = ("machine_spec", "replica_count", "nfs_mounts", "disk_spec", "container_spec",
              "python_package_spec", "lustre_mounts")  # fmt: skip
_MACHINE_KEYS = ("machine_type", "accelerator_type", "accelerator_count", "tpu_topology",
                 "reservation_affinity", "gpu_partition_size",
                 "min_gpu_driver_version")  # fmt: skip
_CONTAINER_KEYS = ("image_uri", "command", "args", "env")
_PACKAGE_KEYS = ("executor_image_uri", "package_uris", "python_module", "args", "env")
_TRAINING_POOLS = 2
_REDUCTION_SERVER = "reductionserver"
_PYTHON = re.compile(r"(.*/)?python[\d.]*")
_PYTHON_SWITCHES, _OTHER_SWITCHES = {"-u", "-B"}, {"-O", "-OO", "-E", "-s", "-I", "-P", "-X", "-W"}


class AcceleratorType(IntEnum):
    """The kinds of devices of a machine; none of them is emulated, but their count is."""

    ACCELERATOR_TYPE_UNSPECIFIED = 0
    NVIDIA_TESLA_K80 = 1
    NVIDIA_TESLA_P100 = 2
    NVIDIA_TESLA_V100 = 3
    NVIDIA_TESLA_P4 = 4
    NVIDIA_TESLA_T4 = 5
    TPU_V2 = 6
    TPU_V3 = 7
    NVIDIA_TESLA_A100 = 8
    NVIDIA_A100_80GB = 9
    TPU_V4_POD = 10
    NVIDIA_L4 = 11
    TPU_V5_LITEPOD = 12
    NVIDIA_H100_80GB = 13
    NVIDIA_H100_MEGA_80GB = 14
    NVIDIA_H200_141GB = 15
    NVIDIA_B200 = 16
    NVIDIA_GB200 = 17
    NVIDIA_RTX_PRO_6000 = 18


_NO_ACCELERATOR = AcceleratorType.ACCELERATOR_TYPE_UNSPECIFIED.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of a pool's replicas."""

    machine_type: str = "n1-standard-4"
    accelerator_type: str = _NO_ACCELERATOR
    accelerator_count: int = 0

    def group(self, name: str, replicas: int) -> InstanceGroup:
        """Return a group of such hosts; raises UsageError (there is no such type)."""
        count = self.accelerator_count
        if not is_whole_number(count, least=0):
            raise UsageError(f"accelerator_count: {count!r} is not a whole number, 0 or more.")
        has_own = self.accelerator_type == _NO_ACCELERATOR and not self.accelerator_count
        devices = None if has_own else max(self.accelerator_count, 1)
        return InstanceGroup(name, self.machine_type, replicas, devices=devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What runs on the hosts of a pool: a script, a module, or a program.

    Attributes:
        entry_point: Its path or name.
        kind: "": a script; "module", "no_python": as in a job request.
        folder: Of a package's code; None: the current one.
        image: Of the container that is left out.
    """

    entry_point: str
    kind: str = ""
    folder: Path | None = None
    args: tuple[str | float, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    image: str = field(default="", compare=False)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the job request."""
        found: dict[str, Any] = {"entry_point": self.entry_point, "args": list(self.args)}
        if self.kind:
            found[self.kind] = True
        if self.folder is not None:
            found["source_dir"] = str(self.folder)
        return {**found, "environment": dict(self.environment)}


def pools_request(specs: Sequence[object], where: str) -> dict[str, Any]:
    """Return the arguments of the job request that worker pools stand for.

    Raises UsageError: an unknown key, no code, or pools that run different code.
    """
    if not is_list(specs):
        raise UsageError(f"{where}worker_pool_specs: {shown_value(specs)} is not a list of dicts.")
    given = {i: spec for i, spec in enumerate(specs) if spec}  # {}: a role that nobody has
    pools = {i: _pool(spec, f"{where}worker_pool_specs[{i}]") for i, spec in given.items()}
    pools = {i: pool for i, pool in pools.items() if _REDUCTION_SERVER not in pool.code.image}
    first = pools.get(0)
    if first is None:
        raise UsageError(f"{where}worker_pool_specs: the first pool is empty. Give it a replica.")
    for pool in pools.values():
        if pool.code != first.code:
            raise UsageError(
                f"{where}worker_pool_specs: pools that run different code are not supported: give "
                "all of them the same command, args and env."
            )
    training = [pool for i, pool in pools.items() if i < _TRAINING_POOLS]
    for pool in training:
        if pool.machine != first.machine:
            raise UsageError(
                f"{where}worker_pool_specs: pools 0 and 1 train together here, on machines of one "
                "type: give both the same machine_spec."
            )
    groups = [first.machine.group("worker", sum(pool.replicas for pool in training))]
    groups += [
        pool.machine.group(f"pool{i}", pool.replicas)
        for i, pool in pools.items()
        if i >= _TRAINING_POOLS
    ]
    return {**first.code.arguments(), "instance_groups": groups}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    machine: Machine
    replicas: int
    code: Code


def _pool(spec: object, where: str) -> _Pool:
    found = _mapping(spec, _POOL_KEYS, where)
    machine = _mapping(found.get("machine_spec", {}), _MACHINE_KEYS, f"{where}.machine_spec")
    if machine.get("tpu_topology"):
        raise UsageError(f"{where}.machine_spec: TPUs are not supported.")
    names = ("machine_type", "accelerator_type", "accelerator_count")
    replicas = found.get("replica_count", 1)
    if isinstance(replicas, str) and replicas.isdecimal():
        replicas = int(replicas)  # dicts of the SDK's objects have numbers of 64 bits as texts
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise UsageError(f"{where}.replica_count: {replicas!r} is not a whole number, 1 or more.")
    return _Pool(
        machine=Machine(**{name: _plain(machine[name]) for name in names if machine.get(name)}),
        replicas=replicas,
        code=_code(found, where),
    )


def _plain(value: object) -> Any:
    """Return a value, or the name of an enumeration's, as the SDK has accelerators."""
    return getattr(value, "name", value)


def _code(pool: Mapping[str, Any], where: str) -> Code:
    container, package = pool.get("container_spec"), pool.get("python_package_spec")
    if (container is None) == (package is None):
        raise UsageError(f"{where}: give container_spec or python_package_spec, one of them.")
    if package is not None:
        where = f"{where}.python_package_spec"
        spec = _mapping(package, _PACKAGE_KEYS, where)
        code = package_code(spec.get("package_uris", ()), spec.get("python_module", ""), where)
        args, image = _words(spec, "args", where), spec.get("executor_image_uri")
    else:
        where = f"{where}.container_spec"
        spec = _mapping(container, _CONTAINER_KEYS, where)
        command, more = _words(spec, "command", where), _words(spec, "args", where)
        # Without a command the words are arguments of what the image runs, if it runs anything.
        is_whole = bool(command) or (bool(more) and _PYTHON.fullmatch(str(more[0])) is not None)
        code = _command_code([*command, *more] if is_whole else [], spec, where)
        args, image = list(code.args), spec.get("image_uri")
    return Code(
        entry_point=code.entry_point, kind=code.kind, folder=code.folder, args=tuple(args),
        environment=_environment(spec.get("env"), where), image=str(image or ""),
    )  # fmt: skip


def package_code(uris: str | Sequence[str], module: str, where: str) -> Code:
    """Return the code of a module in Python packages, which are unpacked.

    Raises UsageError: the module is not named, or a package cannot be had or needs another.
    """
    if not module:
        raise UsageError(f"{where}: name the module that runs, such as trainer.task.")
    places = [uris] if isinstance(uris, str) else list(uris)
    return Code(entry_point=module, kind="module", folder=unpack_packages(places, where))


def _command_code(words: Sequence[str], spec: Mapping[str, Any], where: str) -> Code:
    """Return the code of a container's command: python SCRIPT, python -m MODULE, or a program."""
    image = str(spec.get("image_uri", ""))
    if not words or str(words[0]).startswith("-") or _REDUCTION_SERVER in image:
        if _REDUCTION_SERVER in image:
            return Code(entry_point="", image=image)
        raise UsageError(
            f"{where}: what {image or 'the image'} runs by itself is not known here, where no "
            'container is started. Say it: "command": ["python", "train.py"].'
        )
    program, *rest = words
    if not _PYTHON.fullmatch(str(program)):
        return Code(entry_point=str(program), kind="no_python", args=tuple(rest))
    while rest and rest[0] in _PYTHON_SWITCHES:
        rest.pop(0)
    if rest and rest[0] in _OTHER_SWITCHES:  # of which the script may depend
        return Code(entry_point=str(program), kind="no_python", args=tuple(words[1:]))
    is_module = bool(rest) and rest[0] == "-m"
    script = rest[1:] if is_module else rest
    if not script or str(script[0]).startswith("-"):
        raise UsageError(
            f"{where}: {' '.join(redact([*map(str, words)]))} names no script or module."
        )
    kind = "module" if is_module else ""
    return Code(entry_point=str(script[0]), kind=kind, args=tuple(script[1:]))


def _words(spec: Mapping[str, Any], name: str, where: str) -> list[Any]:
    """Return a list of texts and numbers; none was given: no words."""
    found = spec.get(name)
    if found is None:
        return []
    if not is_list(found):
        shown = shown_value(found, name)
        raise UsageError(f"{where}.{name}: {shown} is not a list: write it as ['a', 'b'].")
    return list(found)


def _environment(env: object, where: str) -> dict[str, str]:
    """Return variables, given as {name: value} or as [{"name": ..., "value": ...}]."""
    if env is None:
        return {}
    if isinstance(env, Mapping):
        return {str(name): str(value) for name, value in env.items()}
    if not isinstance(env, Sequence) or not is_list(env):
        raise UsageError(f"{where}.env: {shown_value(env)} is no list of names and values.")
    found = {}
    for each in env:
        entry = _mapping(each, ("name", "value"), f"{where}.env")
        if not isinstance(entry.get("name"), str):
            raise UsageError(f"{where}.env: a value has no name. Give the variable's.")
        found[entry["name"]] = str(entry.get("value", ""))
    return found


def _mapping(value: object, known: Sequence[str], where: str) -> Mapping[str, Any]:
    """Return a part of a specification, which may be an object of the SDK's."""
    if not isinstance(value, Mapping):
        to_dict = getattr(type(value), "to_dict", None)
        if to_dict is None:
            raise UsageError(
                f"{where}: {shown_value(value)} is no dict. It has {', '.join(known)}."
            )
        value = {name: each for name, each in to_dict(value).items() if each}
    check_choices([str(name) for name in value], known, f"{where}: ")
    return value
