"""Training steps that a script captures in a CUDA graph once, and then replays.

What is captured runs only as the graph is replayed, and a replay calls neither backward nor an
optimizer. So a graph that holds them reports them at each replay, and nothing while it is captured.
`torch.compile` and `torch.cuda.make_graphed_callables` call backward outside of their graphs, which
therefore report nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from headrace.core.warning_frames import skipped_by_warnings


@dataclass(slots=True)
class CapturedWork:
    """What of a training step a graph holds."""

    backward: bool = False
    optimizer: bool = False


class ReplayRecorder(Protocol):
    """What records the work of a replay, as it does the same calls outside of graphs."""

    def backward_began(self) -> None:
        """Record the start of backward."""

    def backward_ended(self) -> None:
        """Record the end of backward."""

    def optimizer_began(self, optimizer: Any, /) -> None:
        """Record the start of an optimizer's step."""

    def optimizer_ended(self, optimizer: Any, /) -> None:
        """Record the end of an optimizer's step."""


class GraphReplays:
    """The graphs of this process that hold parts of training steps.

    Attributes:
        capturing: What the graph that is being captured holds; None while none is.
        on_capture: Called once `capturing` is set.
    """

    def __init__(self) -> None:
        self.capturing: CapturedWork | None = None
        self.on_capture: Callable[[], None] = lambda: None
        self._works: WeakKeyDictionary[Any, CapturedWork] = WeakKeyDictionary()

    def hook(self, graph_class: Any, recorder: ReplayRecorder) -> None:
        """Hook a class of graphs, such as `torch.cuda.CUDAGraph`."""
        begin, end, replay = (
            getattr(graph_class, name) for name in ("capture_begin", "capture_end", "replay")
        )

        @functools.wraps(begin)
        @skipped_by_warnings
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = begin(graph, *args, **kwargs)
            self.capturing = CapturedWork()
            self.on_capture()
            return result

        @functools.wraps(end)
        @skipped_by_warnings
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            work, self.capturing = self.capturing, None
            if work is not None and (work.backward or work.optimizer):
                self._works[graph] = work
            return end(graph, *args, **kwargs)

        @functools.wraps(replay)
        @skipped_by_warnings
        def replay_recorded(graph: Any, *args: Any, **kwargs: Any) -> Any:
            work = self._works.get(graph)
            call = functools.partial(replay, graph, *args, **kwargs)
            return call() if work is None else _recorded(recorder, graph, work, call)

        graph_class.capture_begin = capture_begin
        graph_class.capture_end = capture_end
        graph_class.replay = replay_recorded

    def hook_cuda(self, recorder: ReplayRecorder) -> Callable[[ModuleType], None]:
        """Return the hook for the module `torch.cuda.graphs`."""
        return lambda module: self.hook(module.CUDAGraph, recorder)


def _recorded(
    recorder: ReplayRecorder, graph: Any, work: CapturedWork, replay: Callable[[], Any]
) -> Any:
    """Replay a graph; a whole step's time is backward's, as no event can lie within the graph."""
    if not work.backward:
        recorder.optimizer_began(graph)
        try:
            return replay()
        finally:
            recorder.optimizer_ended(graph)
    recorder.backward_began()
    try:
        return replay()
    finally:
        recorder.backward_ended()
        if work.optimizer:
            recorder.optimizer_began(graph)
            recorder.optimizer_ended(graph)


GRAPH_REPLAYS = GraphReplays()
