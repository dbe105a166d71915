"""What a training script may call: `prepare` and `Checkpointer`."""

from headrace.train.checkpointer import Checkpointer, Restored
from headrace.train.strategies import prepare

__all__ = ["Checkpointer", "Restored", "prepare"]
