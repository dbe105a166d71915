"""Gradient sync of DistributedDataParallel: what backward did not hide.

DDP times its own communication, but only in one iteration of so many, and leaves the old numbers
standing in between. So the probe sets how often, and reads only where a new measurement is there.
DDP tells what it measured of an iteration as the next one begins: the step that is said to have
been measured has the sync of the one before it.
"""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any

from headrace.observe.probe.session import guarded

_ONE_IN = 20  # iterations that DDP times; on CUDA reading its clocks may wait for the device


class GradientSync:
    """The DDP models of this rank.

    Attributes:
        any: Whether there are some.
    """

    def __init__(self) -> None:
        self.any = False
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._read: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def hook(self, module: ModuleType) -> None:
        """Watch DistributedDataParallel."""
        original = module.DistributedDataParallel.__init__

        @functools.wraps(original)
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(model, *args, **kwargs)
            self._watch(model)

        module.DistributedDataParallel.__init__ = __init__

    @guarded
    def exposed_ns(self) -> int | None:
        """Return the exposed sync of the backward before the one that just ended, if measured."""
        measured = [found for model in self._models if (found := self._of(model)) is not None]
        return sum(measured) if measured else None

    @guarded
    def _watch(self, model: Any) -> None:
        model._set_ddp_runtime_logging_sample_rate(_ONE_IN)  # noqa: SLF001 - torch offers no other
        self._models.add(model)
        self.any = True

    def _of(self, model: Any) -> int | None:
        data = model._get_ddp_logging_data()  # noqa: SLF001 - likewise
        iteration = int(data.get("iteration", 0))
        if self._read.get(model) == iteration or not iteration:
            return None
        self._read[model] = iteration
        communication_ns = int(data.get("backward_comm_time", 0))
        overlap_ns = int(data.get("backward_compute_comm_overlap_time", 0))
        return max(0, communication_ns - overlap_ns)


SYNC = GradientSync()
