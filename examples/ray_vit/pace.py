"""How the steps of the example are told."""

from __future__ import annotations

import time

import torch


class Pace:
    """Tells of the loss and of the seconds a step takes, each so many steps.

    Args:
        every: How many.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._steps = 0
        self._began_s = time.perf_counter()
        self._losses = torch.zeros(())
        self.step_s = 0.0
        self.loss = 0.0

    def step(self, loss: torch.Tensor) -> bool:
        """Count a step; return whether there is something to tell of the last ones.

        Args:
            loss: Of the step. It stays on its device until there is something to tell.
        """
        self._losses = self._losses.to(loss.device) + loss.detach()
        self._steps += 1
        if self._steps % self._every:
            return False
        self.loss = float(self._losses) / self._every  # waits for the device
        now_s = time.perf_counter()
        self.step_s = (now_s - self._began_s) / self._every
        self._began_s, self._losses = now_s, torch.zeros(())
        return True

    def __str__(self) -> str:
        """Return what there is to tell."""
        return f"step {self._steps}: {self.step_s:.4f} s a step, running loss {self.loss:.4f}"
