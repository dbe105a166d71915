"""A process group that is destroyed ends: no import of torch's keeps it.

`torch.distributed.nn.functional` takes what `group.WORLD` is as it is imported for the default of
its arguments, and whatever of torch saves and spreads models imports it. Where the group exists by
then, those defaults keep it for good: `destroy_process_group` ends none of gloo's threads, and one
that lets go of a tensor while the interpreter ends takes the process with it ("terminate called
without an active exception", SIGABRT; measured with torch 2.13 in one of eight exits). Imported
earlier, the defaults are None, which stands for the same group.
"""

from __future__ import annotations

import types

import torch.distributed as dist
from torch.distributed.nn import functional


def let_go_of_the_default_group() -> None:
    """Have those defaults be what they are where the module is imported first."""
    world = dist.group.WORLD
    if world is None:
        return
    for function in vars(functional).values():
        if isinstance(function, types.FunctionType) and function.__defaults__:
            function.__defaults__ = tuple(
                None if default is world else default for default in function.__defaults__
            )
