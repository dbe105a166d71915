"""Saves that are killed at every state of the folder, or bucket, that they pass through.

A child saves step after step, its weights equal to the step. It is killed with SIGKILL as soon
as the folder shows its n-th new state; then the newest checkpoint must be whole, and that of the
last step which the child had finished, or of the one it was about to finish.

python killed_saves.py URL STATES WIDTH [URL STATES WIDTH ...]: at each URL in turn, with a model of
WIDTH x WIDTH weights.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo  # what the first optimizer step would import in every child
from torch import nn

from headrace.core.process.parent_death import die_with_parent
from headrace.data.storage import open_store
from headrace.train import Checkpointer

FIRST_STEPS = 2  # saved in peace before the watching begins


def save_on_and_on(url: str, width: int, progress: int) -> None:
    model = nn.Linear(width, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(1000):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        Checkpointer(url, keep=2).save(step, model, optimizer, extra=step)
        os.write(progress, b".")


def state_of(url: str) -> tuple:
    if "://" in url:
        return tuple((info.path, info.size_bytes) for info in open_store(url).list())
    try:
        return tuple(sorted((str(path), path.stat().st_size > 0) for path in Path(url).rglob("*")))
    except FileNotFoundError:  # it changed while it was looked at
        return ()


def forked(action: Callable[[], None]) -> int:
    """Do `action` in a child: torch's threads, once started, would not survive the next fork."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent)
        try:
            action()
        except BaseException:  # noqa: BLE001  (reported through the exit status)
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def kill_at(url: str, width: int, number: int) -> None:
    listening, progress = os.pipe()
    child = forked(lambda: save_on_and_on(url, width, progress))
    os.close(progress)
    for _ in range(FIRST_STEPS):
        assert os.read(listening, 1) == b"."
    seen = {state_of(url)}
    while len(seen) <= number:
        if "://" in url:
            time.sleep(0.002)  # looks without a pause would take the store from those that save
        seen.add(state_of(url))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    finished = FIRST_STEPS
    while os.read(listening, 1):
        finished += 1
    os.close(listening)
    checker = forked(lambda: check(url, width, finished - 1))
    assert os.waitpid(checker, 0)[1] == 0


def check(url: str, width: int, last_reported: int) -> None:
    checkpointer = Checkpointer(url, keep=2)
    latest = checkpointer.latest()
    assert latest in {last_reported, last_reported + 1}, (latest, last_reported)
    model = nn.Linear(width, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    restored = checkpointer.restore(model, optimizer)
    assert restored is not None
    assert restored.step == restored.extra == latest
    assert all(bool((parameter == latest).all()) for parameter in model.parameters())
    checkpointer.save(latest + 1, model, optimizer)  # in a folder that may hold leftovers
    assert checkpointer.latest() == latest + 1
    left = sorted({info.path.partition("/")[0] for info in open_store(url).list()})
    if "://" not in url:  # empty folders are left by nobody either
        assert left == sorted(path.name for path in Path(url).iterdir())
    assert left == [f"step-{step:012d}" for step in (latest, latest + 1)], left


arguments = iter(sys.argv[1:])
for where, states, side in zip(arguments, arguments, arguments, strict=True):
    for state in range(1, int(states) + 1):
        kill_at(f"{where}/{state}", int(side), state)
