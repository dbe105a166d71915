"""How much slower a core is while the others work, too.

A cloud's cores are often two threads of one, which share its units, and a virtual machine does not
always say so. What is predicted of more busy cores then holds less than where each is one alone.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.queues import SimpleQueue

_ROUNDS = 5
_ADDITIONS = 5_000_000


def core_sharing(rounds: int = _ROUNDS) -> list[float]:
    """Return, of each round, the time of a loop in all cores at once over that in one alone."""
    cores = len(os.sched_getaffinity(0))
    return [_longest_s(cores) / _longest_s(1) for _ in range(rounds)]


def _longest_s(processes: int) -> float:
    context = multiprocessing.get_context("fork")
    times: SimpleQueue[float] = context.SimpleQueue()
    started = [context.Process(target=_add, args=[times]) for _ in range(processes)]
    for each in started:
        each.start()
    found = [times.get() for _ in started]
    for each in started:
        each.join()
    return max(found)


def _add(times: SimpleQueue[float]) -> None:
    began_s = time.perf_counter()
    total = 0
    for number in range(_ADDITIONS):
        total += number
    times.put(time.perf_counter() - began_s)
