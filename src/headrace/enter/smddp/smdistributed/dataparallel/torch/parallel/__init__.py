"""Models that train on several devices."""

from .distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
