"""Two ranks, one of which is killed while it writes; torchrun starts them again, and one fails."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import headrace
from training import Loader


class KillsItsProcess:
    """In a state dict: ends the process when torch writes it."""

    def __reduce__(self) -> tuple:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


class Model(nn.Linear):
    deadly = False

    def get_extra_state(self) -> object:
        return KillsItsProcess() if self.deadly else "harmless"

    def set_extra_state(self, state: object) -> None:
        assert state == "harmless"


def show(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def other_threads_sleep() -> bool:
    """Return whether no other thread of this process runs, or is about to."""
    own = str(threading.get_native_id())
    files = [task / "stat" for task in Path("/proc/self/task").iterdir() if task.name != own]
    try:
        return all(file.read_text().rpartition(")")[2].split()[0] == "S" for file in files)
    except OSError:  # one has just ended
        return False


# Registered before the group is made, so called after what leaves it.
atexit.register(lambda: show(f"in a group at exit: {dist.is_initialized()}"))
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = headrace.prepare(Model(4, 4), "ddp", "cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = Loader({"position": 0})
checkpointer = headrace.Checkpointer(sys.argv[1])
restored = checkpointer.restore(model, optimizer, loader)
if attempt == 0:
    assert restored is None
    checkpointer.save(1, model, optimizer, Loader({"position": 32}))
    model.module.deadly = True
else:
    assert restored is not None
    assert (restored.step, loader.state) == (1, {"position": 32})
    assert list(Path(sys.argv[1], f"step-{2:012d}").iterdir())  # what the first attempt left
checkpointer.save(2, model, optimizer, loader)
assert attempt == 1
assert checkpointer.latest() == 2
show(f"rank {dist.get_rank()} has saved step 2")
# No collective, and a while after the last one: gloo's thread that still has a tensor of one when
# Python ends aborts the process instead of its exit code ("terminate called without an active
# exception"; torch's own, in Python before 3.14).
has_saved = Path(sys.argv[1], "rank-1-has-saved")
if dist.get_rank() == 0:
    looks = 0
    while looks < 3:
        time.sleep(0.01)
        looks = looks + 1 if has_saved.exists() and other_threads_sleep() else 0
    raise RuntimeError("on purpose")
has_saved.touch()
signal.pause()  # until torchrun ends it
