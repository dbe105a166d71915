"""The training API of scripts: `prepare` and `Checkpointer`."""

from __future__ import annotations

from headrace.train.checkpointer import Checkpointer, Restored
from headrace.train.strategies import prepare, release_default_group

__all__ = ["Checkpointer", "Restored", "prepare"]

release_default_group()
