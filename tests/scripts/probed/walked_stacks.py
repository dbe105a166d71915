"""Walks a thread's stack while a garbage collection lets that thread go on.

Writes a line for each walk: frames of the walked stack, those of the one after it, and whether
garbage is collected.
"""

from __future__ import annotations

import gc
import sys
import threading

from headrace.observe.probe.thread_stack import ThreadStack

DEPTH = 20


class Walked:
    """A thread that waits at the end of a deep stack, and then at the end of another one."""

    def __init__(self) -> None:
        self.deep, self.leave = threading.Event(), threading.Event()
        self.gone, self.end = threading.Event(), threading.Event()

    def run(self) -> None:
        self.first(DEPTH)
        self.second(DEPTH, self.first.__code__)

    def first(self, depth: int) -> None:
        if depth:
            return self.first(depth - 1)
        self.deep.set()
        self.leave.wait()
        return None

    def second(self, depth: int, *others: object) -> None:
        # Fills the places where the first stack's frames were with other objects.
        a = b = c = d = e = f = g = h = others[0]
        if depth:
            return self.second(depth - 1, a, b, c, d, e, f, g, h)
        self.gone.set()
        self.end.wait()
        return None


class Garbage:
    """A cycle whose finalizer waits until the thread has left its first stack."""

    def __init__(self, walked: Walked) -> None:
        self.walked = walked
        self.itself = self

    def __del__(self) -> None:
        self.walked.leave.set()
        self.walked.gone.wait(60)


def walk(allocations: int) -> None:
    """Walk the stack; the collector is due after so many allocations."""
    walked = Walked()
    thread = threading.Thread(target=walked.run)
    thread.start()
    walked.deep.wait(60)
    frame = sys._current_frames()[thread.ident or 0]
    gc.disable()
    gc.collect()
    Garbage(walked)
    gc.set_threshold(allocations)
    gc.enable()
    try:
        text = ThreadStack(frame).text()
        seen = text.count(":Walked.first"), text.count(":Walked.second"), gc.isenabled()
        sys.stdout.write(f"{seen}\n")
    finally:
        walked.leave.set()
        walked.end.set()
        thread.join()


if __name__ == "__main__":
    for count in range(1, 20):
        walk(count)
