"""Ranks that never destroy their process group, as many scripts do."""

from __future__ import annotations

import atexit
import signal
import sys

import torch.distributed as dist
from torch import nn

import headrace


def say(when: str) -> None:
    sys.stdout.write(f"in a group {when}: {dist.is_initialized()}\n")
    sys.stdout.flush()


# Registered before the group is made, so called after what leaves it.
atexit.register(lambda: say("at exit"))
headrace.prepare(nn.Linear(4, 4), "ddp", "cpu")
if "--fail" in sys.argv and dist.get_rank() == 0:
    raise RuntimeError("on purpose")
if "--fail" in sys.argv:
    signal.pause()  # until torchrun ends it
say("at the end")
