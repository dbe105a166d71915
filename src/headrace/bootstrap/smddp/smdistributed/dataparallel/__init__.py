"""Data parallel training, as SageMaker's library of that name offers it to scripts.

It is torch.distributed beneath: NCCL where ranks have devices, gloo elsewhere.
"""

from __future__ import annotations

__version__ = "2.9.0+headrace"
