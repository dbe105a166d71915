"""The training API of scripts: `prepare` and `Checkpointer`."""

from __future__ import annotations

from headrace.core.supported_platform import require_supported_platform

require_supported_platform()  # before torch, whose import takes a second

from headrace.train.checkpointer import Checkpointer, Restored  # noqa: E402
from headrace.train.strategies import prepare, release_default_group  # noqa: E402

__all__ = ["Checkpointer", "Restored", "prepare"]

release_default_group()
