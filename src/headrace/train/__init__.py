"""What a training script may call: `prepare` and `Checkpointer`."""

from headrace.train.checkpointer import Checkpointer, Restored
from headrace.train.default_group import let_go_of_the_default_group
from headrace.train.strategies import prepare

__all__ = ["Checkpointer", "Restored", "prepare"]

let_go_of_the_default_group()
