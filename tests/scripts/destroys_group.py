"""Imports of Headrace what it needs once there is a process group, and destroys that group."""

from __future__ import annotations

import gc
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.group.WORLD

import headrace  # noqa: E402 - as scripts do in functions, and as `headrace` itself does by name

headrace.Checkpointer(sys.argv[1]).save(1, headrace.prepare(torch.nn.Linear(1, 1), "ddp", "cpu"))
dist.destroy_process_group()
gc.collect()
# One is the name above, one the argument of the call.
sys.stdout.write(f"references left: {sys.getrefcount(group) - 2}\n")
