"""A device that takes samples at a rate of its own: it waits, and trains one weight."""

from __future__ import annotations

import time

import torch


class Device:
    """Takes batches, one after the other, at a rate of its own.

    Args:
        samples_s: Samples a second; 0: any number.
    """

    def __init__(self, samples_s: float) -> None:
        self._samples_s = samples_s
        self._free_s = 0.0
        self.busy_s = 0.0
        self._weight = torch.nn.Parameter(torch.ones(()))
        self._optimizer = torch.optim.SGD([self._weight], lr=1e-3)

    def step(self, samples: int) -> None:
        """Begin a step as soon as the one before the last has ended."""
        self._optimizer.zero_grad()
        self._weight.square().backward()
        self._optimizer.step()
        if not self._samples_s:
            return
        took_s, now_s = samples / self._samples_s, time.perf_counter()
        if self._free_s > now_s:
            time.sleep(self._free_s - now_s)
        # The step that was waiting begins where the last one ended.
        self._free_s = max(self._free_s, now_s) + took_s
        self.busy_s += took_s

    def wait(self) -> None:
        """Wait for the last step's end."""
        time.sleep(max(0.0, self._free_s - time.perf_counter()))
