"""Models that train on several devices."""

from __future__ import annotations

from headrace.bootstrap.smddp.smdistributed.dataparallel.torch.parallel.distributed import (
    DistributedDataParallel,
)

__all__ = ["DistributedDataParallel"]
