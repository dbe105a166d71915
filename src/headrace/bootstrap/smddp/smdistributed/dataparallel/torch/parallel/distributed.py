"""`DistributedDataParallel` of SMDDP's first API, before it was a backend, as torch's DDP."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel as _TorchsOwn

from headrace.bootstrap.smddp.smdistributed.dataparallel.torch import distributed as dist

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(_TorchsOwn):
    """PyTorch's own, in the default process group, which it makes where there is none."""

    def __init__(
        self, module: torch.nn.Module, device_ids: list[int] | None = None, **others: Any
    ) -> None:
        if not dist.is_initialized():
            dist.init_process_group()
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            device_ids = None  # of no use to a model that is on no device
            others.pop("output_device", None)
        super().__init__(module, device_ids=device_ids, **others)
