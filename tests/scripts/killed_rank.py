"""Two ranks, one of which is killed while it writes; torchrun starts them again."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import headrace
from training import Loader


class KillsItsProcess:
    """In a state dict: ends the process when torch writes it."""

    def __reduce__(self) -> tuple:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


class Model(nn.Linear):
    deadly = False

    def get_extra_state(self) -> object:
        return KillsItsProcess() if self.deadly else "harmless"

    def set_extra_state(self, state: object) -> None:
        assert state == "harmless"


attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = headrace.prepare(Model(4, 4), "ddp", "cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = Loader({"position": 0})
checkpointer = headrace.Checkpointer(sys.argv[1])
restored = checkpointer.restore(model, optimizer, loader)
if attempt == 0:
    assert restored is None
    checkpointer.save(1, model, optimizer, Loader({"position": 32}))
    model.module.deadly = True
else:
    assert restored is not None
    assert (restored.step, loader.state) == (1, {"position": 32})
    assert list(Path(sys.argv[1], f"step-{2:012d}").iterdir())  # what the first attempt left
checkpointer.save(2, model, optimizer, loader)
assert attempt == 1
assert checkpointer.latest() == 2
