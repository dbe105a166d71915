"""A dataset whose samples take a known time, a model to train on them, and what trains it."""

import time

import torch
from torch import nn
from torch.utils.data import Dataset


class Points(Dataset):
    """Points of three classes; each takes `busy_s` of computing, in `busy`."""

    def __init__(self, count: int, busy_s: float = 0.001) -> None:
        self.count, self.busy_s = count, busy_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        busy(self.busy_s)
        return torch.full((16,), float(index % 7)), index % 3


def busy(seconds: float) -> int:
    """Compute for so many seconds of CPU time."""
    end, rounds = time.process_time() + seconds, 0
    while time.process_time() < end:
        rounds += sum(range(50))
    return rounds


def model() -> nn.Module:
    return nn.Linear(16, 3)


class Descent(torch.optim.Optimizer):
    """Gradient descent that leaves torch's compiler alone: to import it takes 1.4 s of a core.

    Torch's own optimizers import it for the two methods that are written anew here.
    """

    def __init__(self, parameters, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    def add_param_group(self, param_group: dict) -> None:
        self.param_groups.append(self.defaults | param_group)

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad)
