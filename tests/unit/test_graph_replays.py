"""What a graph holds of a training step is reported at each replay, and not as it is captured."""

from __future__ import annotations

import gc
import weakref

import pytest

from headrace.observe.probe.graph_replays import GraphReplays


class Recorder:
    """Keeps the names of the methods that are called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str):
        return lambda *_: self.calls.append(name)


def hooked(recorder: Recorder):
    class Graph:
        """As torch.cuda.CUDAGraph, which only a device makes."""

        def capture_begin(self, pool=None, capture_error_mode="global") -> None:
            recorder.calls.append(f"begin {pool} {capture_error_mode}")

        def capture_end(self) -> None:
            recorder.calls.append("end")

        def replay(self) -> str:
            recorder.calls.append("replay")
            return "replayed"

    replays = GraphReplays()
    replays.hook(Graph, recorder)
    return replays, Graph


@pytest.mark.parametrize(
    ("held", "calls"),
    [
        ((), ["replay"]),
        (("backward",), ["backward_began", "replay", "backward_ended"]),
        (("optimizer",), ["optimizer_began", "replay", "optimizer_ended"]),
        (
            ("backward", "optimizer"),
            ["backward_began", "replay", "backward_ended", "optimizer_began", "optimizer_ended"],
        ),
    ],
)
def test_a_replay_is_what_the_graph_holds(held: tuple[str, ...], calls: list[str]):
    recorder = Recorder()
    replays, graph_class = hooked(recorder)
    graph = graph_class()
    graph.capture_begin(7, capture_error_mode="relaxed")
    for name in held:
        setattr(replays.capturing, name, True)
    graph.capture_end()
    assert recorder.calls == ["begin 7 relaxed", "end"]
    assert replays.capturing is None
    for _ in range(2):
        recorder.calls.clear()
        assert graph.replay() == "replayed"
        assert recorder.calls == calls


def test_a_replay_that_fails_ends_what_it_began():
    recorder = Recorder()
    replays, graph_class = hooked(recorder)
    failing = graph_class()
    failing.capture_begin()
    replays.capturing.backward = True
    failing.capture_end()
    recorder.calls.clear()
    with pytest.raises(TypeError):
        failing.replay("no such argument")
    assert recorder.calls == ["backward_began", "backward_ended"]


def test_graphs_are_not_kept():
    replays, graph_class = hooked(Recorder())
    graph = graph_class()
    graph.capture_begin()
    replays.capturing.optimizer = True
    graph.capture_end()
    kept = weakref.ref(graph)
    del graph
    gc.collect()
    assert kept() is None
