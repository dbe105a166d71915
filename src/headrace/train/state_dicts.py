"""State dicts by names that no sharding changes; checkpoint files unpickled by allowed classes.

torch stores a checkpoint's description as a pickle and loads values other than tensors with
unrestricted unpickling. A checkpoint is data, so here both are unpickled with only the classes that
they need.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
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
    slots: dict[str, tuple[str, str]]
    """For each optimizer.state key: the parameter and the name in its state."""
    is_placeholder: bool = False  # the optimizer had no state, and has one only for loading

    def abandon(self) -> None:
        """Restore the optimizer to before `collect_state`, after a load that failed."""
        if self.is_placeholder and self.optimizer is not None:
            self.optimizer.state.clear()


def collect_state(model: nn.Module, optimizer: Optimizer | None, *, to_load: bool) -> TrainingState:
    """Return the current states, with the optimizer's NumPy scalars as plain numbers.

    With `to_load` an optimizer that has not stepped yet gets the state that a step would make, to
    be loaded into; otherwise it stays, and is saved, without state. CheckpointError: the optimizer
    has parameters that the model has not.
    """
    bare: nn.Module = model.module if isinstance(model, nn.DataParallel) else model
    values = {_MODEL + name: value for name, value in get_model_state_dict(bare).items()}
    slots: dict[str, tuple[str, str]] = {}
    has_stepped = optimizer is None or bool(optimizer.state)
    if optimizer is not None:
        _check_ownership(bare, optimizer)
        # For an optimizer that has not stepped torch makes a step of length zero, which leaves a
        # step count behind, and it does so only where there is no gradient.
        with _no_gradients(optimizer):
            optimizer_state: dict[str, Any] = dict(get_optimizer_state_dict(bare, optimizer))
        if not has_stepped and not to_load:
            optimizer.state.clear()
            optimizer_state["state"] = {}
        values[_GROUPS] = _without_numpy(optimizer_state["param_groups"])
        for parameter, state in optimizer_state["state"].items():
            for name, value in state.items():
                slots[f"{_STATE}{parameter}.{name}"] = (parameter, name)
                values[f"{_STATE}{parameter}.{name}"] = _without_numpy(value)
    return TrainingState(bare, optimizer, values, slots, is_placeholder=to_load and not has_stepped)


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


@contextmanager
def _no_gradients(optimizer: Optimizer) -> Iterator[None]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


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
    with_state = {
        key.removeprefix(_STATE).rpartition(".")[0] for key in saved if key.startswith(_STATE)
    }
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
