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
