"""A small model with repeated blocks, and what tests compare of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=False)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.activation = nn.GELU()

    def forward(self, values: Tensor) -> Tensor:
        return values + self.activation(self.linear(values))


class Network(nn.Module):
    def __init__(self, width: int = 8, outputs: int = 3, depth: int = 3) -> None:
        super().__init__()
        self.entrance = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, outputs)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, values: Tensor) -> Tensor:
        self.seen += len(values)
        values = self.entrance(values)
        for block in self.blocks:
            values = block(values)
        return self.head(values)


class Loader:
    """Has a state, as a loader does."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def optimizer_of(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, rank: int = 0) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        optimizer.zero_grad()
        values = torch.randn(5, 4, generator=generator).to(next(model.parameters()).device)
        model(values).square().mean().backward()
        optimizer.step()


class SharpnessAware(torch.optim.SGD):
    """Steps from where the loss is higher, so it needs to compute it twice."""

    def step(self, closure=None):
        assert closure is not None, "needs a closure"
        with torch.enable_grad():
            closure()
        parameters = [each for each in self.param_groups[0]["params"] if each.grad is not None]
        with torch.no_grad():
            for each in parameters:
                self.state[each]["before"] = each.clone()
                each.add_(each.grad, alpha=0.05)
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            for each in parameters:
                each.copy_(self.state[each]["before"])
        super().step()
        return loss


class OnlyInTraining(torch.optim.AdamW):
    """Fails where training has not been switched on, as schedule-free optimizers do."""

    trains = False

    def step(self, closure=None):
        if not self.trains:
            raise RuntimeError("call train() first")
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


def train_with_closure(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range):
    optimizer.trains = True
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        if isinstance(model, torch.nn.Embedding):
            values = torch.randint(6, (5,), generator=generator)
        else:
            values = torch.randn(5, 4, generator=generator)

        def closure(values=values):
            optimizer.zero_grad()
            loss = (model(values) - 1).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    optimizer.trains = False


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The whole state of both, flat, whatever the strategy; every rank must call this."""
    model = model.module if isinstance(model, nn.DataParallel) else model
    of_model, of_optimizer = get_state_dict(model, optimizer, options=WHOLE)
    flat: dict[str, Any] = {f"model.{name}": value.clone() for name, value in of_model.items()}
    for parameter, state in of_optimizer["state"].items():
        for name, value in state.items():
            flat[f"{parameter}.{name}"] = value.clone() if isinstance(value, Tensor) else value
    flat["lr"] = [group["lr"] for group in of_optimizer["param_groups"]]
    return flat


def differences(one: dict[str, Any], other: dict[str, Any], *, exact: bool = True) -> list[str]:
    if one.keys() != other.keys():
        return sorted(one.keys() ^ other.keys())
    equal = torch.equal if exact else torch.allclose
    return [
        name
        for name, value in one.items()
        if not (equal(value, other[name]) if isinstance(value, Tensor) else value == other[name])
    ]


def assert_same(one: object, other: object) -> None:
    """Also of lists that hold None, as those of LBFGS do."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), [other[key] for key in one]
    if isinstance(one, list):
        assert len(one) == len(other)
        for part, its in zip(one, other, strict=True):
            assert_same(part, its)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other
