"""What a model and an optimizer hold, under names that do not depend on how they are spread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
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
_TOLD = 5  # differences that an error names


@dataclass(slots=True)
class States:
    """The states of a model and, unless None, an optimizer, by full parameter names.

    The same names for a bare model, DataParallel, DDP and FSDP; the tensors are the live ones
    (DTensors under FSDP), so loading into `values` loads in place.

    Attributes:
        model: The model, out of a DataParallel that may be around it.
        optimizer: Its optimizer.
        values: "model.<name>", "optimizer.state.<parameter>.<name>", "optimizer.param_groups".
        slots: Of each optimizer.state key: the parameter and the name in its state.
        is_made_up: The optimizer had no state, and has one now only to be loaded into.
    """

    model: nn.Module
    optimizer: Optimizer | None
    values: dict[str, Any]
    slots: dict[str, tuple[str, str]]
    is_made_up: bool = False

    def abandon(self) -> None:
        """Leave the optimizer as it was before `collect_states`; for loads that fail."""
        if self.is_made_up and self.optimizer is not None:
            self.optimizer.state.clear()


def collect_states(model: nn.Module, optimizer: Optimizer | None, *, to_load: bool) -> States:
    """Return the states as they are, NumPy's scalars of the optimizer as plain numbers.

    Args:
        model: As `prepare` returned it, or bare.
        optimizer: Of this model's parameters.
        to_load: An optimizer that has not stepped yet gets the state that a step would make, to
            be loaded into. Otherwise it is left, and saved, without any.

    Raises:
        CheckpointError: The optimizer holds parameters that the model does not.
    """
    bare: nn.Module = model.module if isinstance(model, nn.DataParallel) else model
    values = {_MODEL + name: value for name, value in get_model_state_dict(bare).items()}
    slots: dict[str, tuple[str, str]] = {}
    has_stepped = optimizer is None or bool(optimizer.state)
    if optimizer is not None:
        _check_ownership(bare, optimizer)
        # For an optimizer that has not stepped torch takes a step of length zero, which leaves a
        # step count behind, and takes it only where no gradient is there.
        with _no_gradients(optimizer):
            held: dict[str, Any] = dict(get_optimizer_state_dict(bare, optimizer))
        if not has_stepped and not to_load:
            optimizer.state.clear()
            held["state"] = {}
        values[_GROUPS] = _without_numpy(held["param_groups"])
        for parameter, state in held["state"].items():
            for name, value in state.items():
                slots[f"{_STATE}{parameter}.{name}"] = (parameter, name)
                values[f"{_STATE}{parameter}.{name}"] = _without_numpy(value)
    return States(bare, optimizer, values, slots, is_made_up=to_load and not has_stepped)


def fit_states(states: States, metadata: Metadata, checkpoint: str) -> None:
    """Raise CheckpointError where a checkpoint does not fit, naming the parameters.

    Parameters for which the optimizer had no state when it was saved (never used, or before the
    first step) are dropped from `states`, so that they get none.
    """
    saved = metadata.state_dict_metadata
    if states.optimizer is not None and _GROUPS not in saved:
        raise CheckpointError(
            f"{checkpoint} holds no optimizer. Restore it without one: restore(model, None, ...)."
        )
    _drop_unsaved_slots(states, saved)
    asked = (_MODEL,) if states.optimizer is None else (_MODEL, _STATE)
    unknown = [key for key in saved if key.startswith(asked) and key not in states.values]
    differences = [
        *(f"{key} is not in the checkpoint" for key in states.values if key not in saved),
        *(f"{key} is only in the checkpoint" for key in unknown),
        *_different_sizes(states, saved),
    ]
    if differences:
        more = f"; and {len(differences) - _TOLD} more" if len(differences) > _TOLD else ""
        raise CheckpointError(
            f"{checkpoint} does not fit this model: {'; '.join(differences[:_TOLD])}{more}. Build "
            "the model and the optimizer as they were, or save to another folder."
        )


def apply_states(states: States) -> None:
    """Give the model and the optimizer what was loaded into `states`."""
    loaded = {
        key.removeprefix(_MODEL): value
        for key, value in states.values.items()
        if key.startswith(_MODEL)
    }
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
    """Return a value with the NumPy scalars in it as plain ones, which reading allows.

    Schedules that compute with NumPy leave them in a group; as numbers they are the same.
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
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in held]
    for parameter in held:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(held, gradients, strict=True):
            parameter.grad = gradient


def _check_ownership(model: nn.Module, optimizer: Optimizer) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in own for parameter in held)
    if foreign:
        raise CheckpointError(
            f"{foreign} of the optimizer's {len(held)} parameters are not the model's. Make the "
            "optimizer from the model that `prepare` returned."
        )


def _drop_unsaved_slots(states: States, saved: dict[str, Any]) -> None:
    with_state = {
        key.removeprefix(_STATE).rpartition(".")[0] for key in saved if key.startswith(_STATE)
    }
    for key, (parameter, _) in list(states.slots.items()):
        if parameter not in with_state:
            del states.slots[key], states.values[key]


def _different_sizes(states: States, saved: dict[str, Any]) -> list[str]:
    told = []
    for key, value in states.values.items():
        described = saved.get(key)
        here = getattr(value, "shape", None)
        if (
            isinstance(described, TensorStorageMetadata)
            and here is not None
            and described.size != here
        ):
            told.append(f"{key} is {list(described.size)} in the checkpoint and {list(here)} here")
    return told
