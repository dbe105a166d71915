"""State dicts by names that no sharding changes; checkpoint files unpickled by allowed classes.

torch stores a checkpoint's description as a pickle and loads values other than tensors with
unrestricted unpickling. A checkpoint is data, so here both are unpickled with only the classes that
they need.
"""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from headrace.core.errors import CheckpointError

_MODEL = "model."
_STATE = "optimizer.state."
_GROUPS = "optimizer.param_groups"
_MAX_DIFFERENCES = 5  # differences that an error names


@dataclass(slots=True)
class TrainingState:
    """The states of a model and, unless None, an optimizer, by full parameter names.

    A bare model, DataParallel, DDP and FSDP give the same names; the tensors are the live ones
    (DTensors under FSDP), so loading into `values` loads in place.
    """

    model: nn.Module  # without a DataParallel around it
    optimizer: Optimizer | None
    values: dict[str, Any]
    """"model.<name>", "optimizer.state.<parameter>.<name>", "optimizer.param_groups"."""
    slots: dict[str, tuple[str, str]] = field(default_factory=dict)
    """For each optimizer.state key: the parameter and the name in its state."""
    placeholders: list[nn.Parameter] = field(default_factory=list)
    """The parameters that had no state in the optimizer, and have some only for loading."""

    def abandon(self) -> None:
        """Restore the optimizer to before `collect_state`, after a load that failed."""
        for parameter in self.placeholders:
            if self.optimizer is not None:
                self.optimizer.state.pop(parameter, None)


def collect_state(
    model: nn.Module, optimizer: Optimizer | None, *, saved: Metadata | None = None
) -> TrainingState:
    """Return the current states, with the optimizer's NumPy scalars as plain numbers.

    With the description of a checkpoint, they are to be loaded into: parameters that have state in
    it and none here, as before the first step or while they were frozen, get some. CheckpointError:
    the optimizer has parameters that the model has not, or state that could not be restored.
    """
    bare: nn.Module = model.module if isinstance(model, nn.DataParallel) else model
    values = {_MODEL + name: value for name, value in get_model_state_dict(bare).items()}
    states = TrainingState(bare, optimizer, values)
    if optimizer is None:
        return states
    _check_ownership(bare, optimizer)
    missing = {} if saved is None else _parameters_without_state(bare, optimizer, saved)
    can_step = not missing or _make_placeholders(optimizer, list(missing.values()))
    states.placeholders = list(missing.values())
    try:
        collected = _optimizer_state(bare, optimizer)
    except BaseException:
        states.abandon()
        raise
    values[_GROUPS] = _without_numpy(collected["param_groups"])
    for parameter, state in collected["state"].items():
        for name, value in state.items():
            states.slots[f"{_STATE}{parameter}.{name}"] = (parameter, name)
            values[f"{_STATE}{parameter}.{name}"] = _without_numpy(value)
    if saved is None:
        _check_has_places(states, optimizer)
    elif not can_step:
        _add_saved_slots(states, saved, missing)
    return states


def check_state_fits(states: TrainingState, metadata: Metadata, checkpoint: str) -> None:
    """Raise CheckpointError where a checkpoint does not fit; the message names the parameters.

    Parameters for which the optimizer had no state when it was saved (never used, or before the
    first step) are dropped from `states`, so that they get none.
    """
    saved = metadata.state_dict_metadata
    if states.optimizer is not None and _GROUPS not in saved:
        raise CheckpointError(
            f"{checkpoint} holds no optimizer. Restore it without one: restore(model, None, ...)."
        )
    _drop_unsaved_slots(states, saved)
    prefixes = (_MODEL,) if states.optimizer is None else (_MODEL, _STATE)
    unknown = [key for key in saved if key.startswith(prefixes) and key not in states.values]
    differences = [
        *(f"{key} is not in the checkpoint" for key in states.values if key not in saved),
        *(f"{key} is only in the checkpoint" for key in unknown),
        *_different_sizes(states, saved),
    ]
    if differences:
        shown = differences[:_MAX_DIFFERENCES]
        if len(differences) > len(shown):
            shown.append(f"and {len(differences) - len(shown)} more")
        raise CheckpointError(
            f"{checkpoint} does not fit this model: {'; '.join(shown)}. Build the model and the "
            "optimizer as they were, or save to another folder."
        )


def apply_state(states: TrainingState) -> None:
    """Load the values in `states` into the model and the optimizer."""
    of_model = [key for key in states.values if key.startswith(_MODEL)]
    loaded = {key.removeprefix(_MODEL): states.values[key] for key in of_model}
    set_model_state_dict(states.model, loaded)
    if states.optimizer is None:
        return
    state: dict[str, dict[str, Any]] = {}
    for key, (parameter, name) in states.slots.items():
        state.setdefault(parameter, {})[name] = states.values[key]
    with _no_step(states.optimizer), _all_trained(states.optimizer):
        set_optimizer_state_dict(
            states.model,
            states.optimizer,
            {"state": state, "param_groups": states.values[_GROUPS]},  # type: ignore[dict-item]
            options=StateDictOptions(strict=False),  # parameters without state stay without
        )


def _without_numpy(value: Any) -> Any:
    """Return a value with its NumPy scalars as plain numbers, which the reader allows.

    Schedules that compute with NumPy leave them in parameter groups.
    """
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {key: _without_numpy(each) for key, each in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(map(_without_numpy, value))
    return value


def _parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    with _no_step(optimizer):
        return dict(get_optimizer_state_dict(model, optimizer))


@contextmanager
def _no_step(optimizer: Optimizer) -> Iterator[None]:
    """Keep torch from making a step, as it does in an optimizer without state.

    Not all can: that of LBFGS needs a closure, and that of SparseAdam sparse gradients. torch then
    leaves the learning rates at 0.
    """
    if optimizer.state:
        yield
        return
    parameters = _parameters_of(optimizer)
    optimizer.state.update({parameter: {} for parameter in parameters})
    try:
        yield
    finally:
        for parameter in parameters:
            if optimizer.state.get(parameter) == {}:
                del optimizer.state[parameter]


@contextmanager
def _all_trained(optimizer: Optimizer) -> Iterator[None]:
    """Have no parameter frozen: torch would not load the state of one that is."""
    frozen = [
        parameter
        for parameter in _parameters_of(optimizer)
        if not parameter.requires_grad and (parameter.is_floating_point() or parameter.is_complex())
    ]
    try:
        for parameter in frozen:
            parameter.requires_grad = True
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad = False


def _parameters_without_state(
    model: nn.Module, optimizer: Optimizer, saved: Metadata
) -> dict[str, nn.Parameter]:
    """Return the parameters that have state in a checkpoint and none here, by full names."""
    parameters = _parameters_of(optimizer)
    if FullyShardedDataParallel.fsdp_modules(model):  # each has parts of several parameters
        return {} if optimizer.state else {str(n): each for n, each in enumerate(parameters)}
    groups = _optimizer_state(model, optimizer)["param_groups"]
    names = [name for group in groups for name in group["params"]]
    with_state = _parameters_with_state(saved.state_dict_metadata)
    return {
        name: parameter
        for name, parameter in zip(names, parameters, strict=True)
        if name in with_state and not optimizer.state.get(parameter)
    }


def _parameters_with_state(saved: Mapping[str, Any]) -> set[str]:
    return {key.removeprefix(_STATE).rpartition(".")[0] for key in saved if key.startswith(_STATE)}


def _make_placeholders(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> bool:
    """Give parameters the state that a first step makes; False: it fails, and they have none."""
    before, made = dict(optimizer.state), {}
    optimizer.state.clear()
    try:
        with torch.no_grad(), _zero_gradients(optimizer, parameters):
            optimizer.step()
        made = {each: optimizer.state[each] for each in parameters if each in optimizer.state}
    except Exception:  # noqa: BLE001 - as many kinds as there are optimizers
        return False
    finally:
        optimizer.state.clear()
        optimizer.state.update(before | made)
    return True


@contextmanager
def _zero_gradients(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Have zeros as the gradients of some parameters, none of the others, and 0 as learning rates.

    Afterwards all are as before, and so are the other values of groups: some count steps there.
    """
    every = _parameters_of(optimizer)
    gradients = [parameter.grad for parameter in every]
    groups = [dict(group) for group in optimizer.param_groups]
    try:
        for parameter in every:
            parameter.grad = None
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        for group in optimizer.param_groups:
            if "lr" in group:  # some move parameters by it whatever the gradients are
                rate = group["lr"]
                group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0
        yield
    finally:
        for parameter, gradient in zip(every, gradients, strict=True):
            parameter.grad = gradient
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(before)


def _add_saved_slots(
    states: TrainingState, saved: Metadata, parameters: Mapping[str, nn.Parameter]
) -> None:
    """Make place for all state that a checkpoint has of some parameters."""
    for key, description in saved.state_dict_metadata.items():
        parameter, _, name = key.removeprefix(_STATE).rpartition(".")
        if key.startswith(_STATE) and parameter in parameters:
            states.slots[key] = (parameter, name)
            states.values[key] = _placeholder(description, parameters[parameter])


def _check_has_places(states: TrainingState, optimizer: Optimizer) -> None:
    """Raise CheckpointError where nothing would tell `_placeholder` how ranks share state out."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is None or closure.default is not closure.empty:
        return  # it can make a first step, which tells
    for key, (parameter, name) in states.slots.items():
        whole = states.values.get(_MODEL + parameter)
        if _is_shared_out(states.values[key], getattr(whole, "shape", None)):
            raise CheckpointError(
                f"The state {name!r} of {type(optimizer).__name__} for {parameter} is shared out "
                "over ranks otherwise than the parameter is, and could not be restored, as a step "
                "needs a closure. Train with another strategy, such as ddp, or save without the "
                "optimizer: save(step, model)."
            )


def _is_shared_out(value: Any, shape: torch.Size | None) -> bool:
    """Whether a value is, or holds, a tensor of several ranks that has not the given shape."""
    if isinstance(value, (dict, list, tuple)):
        parts = value.values() if isinstance(value, dict) else value
        return any(_is_shared_out(part, None) for part in parts)
    return isinstance(value, DTensor) and value.shape != shape


def _placeholder(description: Any, parameter: nn.Parameter) -> Tensor | None:
    if not isinstance(description, TensorStorageMetadata):
        return None  # what is read takes its place
    dtype, size = description.properties.dtype, description.size
    if size and size == parameter.shape:
        return torch.zeros_like(parameter, dtype=dtype)  # sharded as the parameter is
    # On the host: the optimizer moves what it has elsewhere, which a count of steps may not be.
    return torch.zeros(size, dtype=dtype)


def _check_ownership(model: nn.Module, optimizer: Optimizer) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in own for parameter in parameters)
    if foreign:
        raise CheckpointError(
            f"{foreign} of the optimizer's {len(parameters)} parameters are not the model's. "
            "Make the optimizer from the model that `prepare` returned."
        )


def _drop_unsaved_slots(states: TrainingState, saved: dict[str, Any]) -> None:
    with_state = _parameters_with_state(saved)
    for key, (parameter, _) in list(states.slots.items()):
        if parameter not in with_state:
            del states.slots[key], states.values[key]


def _different_sizes(states: TrainingState, saved: dict[str, Any]) -> list[str]:
    shapes = {key: getattr(value, "shape", None) for key, value in states.values.items()}
    tensors = {key: each for key, each in saved.items() if isinstance(each, TensorStorageMetadata)}
    return [
        f"{key} is {list(tensors[key].size)} in the checkpoint and {list(shape)} here"
        for key, shape in shapes.items()
        if shape is not None and key in tensors and tensors[key].size != shape
    ]


_ALLOWED_CLASSES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("pathlib", "PosixPath"),  # where torch's own writer, or an earlier release, wrote it
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
            "TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
        )
    ),
}  # fmt: skip


_MOVED_MODULES = {"pathlib._local": "pathlib"}
"""Modules of Python 3.13's classes, and where other versions have them."""


class PlainCheckpointWriter(FileSystemWriter):
    """Writes a checkpoint's files with a description that names no class of the standard library.

    torch puts the folder's path in it as a `PosixPath`, whose module depends on Python's version.
    """

    def storage_meta(self) -> StorageMeta:
        """Return where the checkpoint is, as texts; torch calls this."""
        return StorageMeta(checkpoint_id=str(self.path), save_id=self.save_id)


class SafeCheckpointReader(FileSystemReader):
    """Reads a checkpoint's files from a local folder; none but the committed `names` is opened."""

    def __init__(self, folder: Path, names: Collection[str]) -> None:
        super().__init__(folder)
        self._folder = folder
        self._names = frozenset(names)

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """Return the checkpoint's description; torch calls this too."""
        data = (self._folder / ".metadata").read_bytes()
        metadata = _MetadataUnpickler(io.BytesIO(data)).load()
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{self._folder / '.metadata'} describes no checkpoint.")
        for info in (metadata.storage_data or {}).values():
            if info.relative_path not in self._names:
                raise CheckpointError(
                    f"{self._folder / '.metadata'} points at {info.relative_path}, which is no "
                    "file of this checkpoint."
                )
        return metadata


class SafeLoadPlanner(DefaultLoadPlanner):
    """Loads a flat state dict without unrestricted unpickling."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load a value other than a tensor into the state dict; torch calls this."""
        loaded = torch.load(value, weights_only=True)
        self.original_state_dict[read_item.dest_index.fqn] = loaded


class SafeSavePlanner(DefaultSavePlanner):
    """Saves a flat state dict, and refuses values that `SafeLoadPlanner` cannot load.

    Otherwise such a checkpoint would count, replace older ones, and fail when it is needed.
    """

    def __init__(self) -> None:
        # Of values that all ranks hold, rank 0's are written, as DDP broadcasts rank 0's buffers
        # before each forward pass.
        super().__init__(flatten_state_dict=False, dedup_save_to_lowest_rank=True)

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002
        """Return the serialised form of a value; torch calls this."""
        if write_item.type != WriteItemType.BYTE_IO:
            return super().transform_object(write_item, object)
        try:
            written = super().transform_object(write_item, object)
            written.seek(0)
            torch.load(written, map_location="cpu", weights_only=True)
        except Exception as error:
            place, found = _innermost_unreadable(write_item.index.fqn, object)
            raise CheckpointError(
                f"{place} is a {type(found).__module__}.{type(found).__qualname__}, which cannot "
                "be read back from a checkpoint without running code that may be in it. Give "
                "numbers, texts, tensors, and lists and dicts of them, or keep it out of the "
                "optimizer and the model, in `extra`."
            ) from error
        return written


def _reads_back(value: Any) -> bool:
    written = io.BytesIO()
    try:
        torch.save(value, written)
        written.seek(0)
        torch.load(written, map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - a foreign type may raise anything when it is pickled
        return False
    return True


def _innermost_unreadable(place: str, value: Any) -> tuple[str, Any]:
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    for name, part in parts:
        if not _reads_back(part):
            return _innermost_unreadable(f"{place}.{name}", part)
    return place, value


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = _MOVED_MODULES.get(module, module)
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _ALLOWED_CLASSES:
            raise CheckpointError(
                f"The checkpoint's .metadata asks for {module}.{name}, which no checkpoint needs. "
                "It is damaged or not to be trusted."
            )
        return super().find_class(module, name)
