"""Ranks that never destroy their process group, as many scripts do."""

from __future__ import annotations

import atexit
import signal
import sys

import torch.distributed as dist
from torch import nn

import headrace

# Registered before the group is made, so called after what leaves it.
atexit.register(lambda: print("in a group at exit:", dist.is_initialized(), flush=True))
headrace.prepare(nn.Linear(4, 4), "ddp", "cpu")
if "--fail" in sys.argv and dist.get_rank() == 0:
    raise RuntimeError("on purpose")
if "--fail" in sys.argv:
    signal.pause()  # until torchrun ends it
print("in a group at the end:", dist.is_initialized(), flush=True)
