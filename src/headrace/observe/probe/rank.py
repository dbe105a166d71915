"""Hooks in a training process: waits for batches, backward, optimizer steps, gradient sync."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from types import ModuleType
from typing import Any

from headrace.core.after_import import after_import
from headrace.observe.probe.burst import BURST
from headrace.observe.probe.loaders import LOADERS_SEEN, ready_batches, samples_in
from headrace.observe.probe.session import SESSION, guarded
from headrace.observe.probe.stacks import start_sampler, stop_sampler
from headrace.observe.probe.steps import RowKind, Segment, StepClock
from headrace.observe.probe.sync import SYNC
from headrace.observe.probe.transforms import TIMER
from headrace.records.schema import FETCHES, STEPS


class RankRecorder:
    """Turns what the hooks of this process see into rows.

    One thread trains: that which steps the optimizer. What other threads do, such as fetching
    batches ahead in the background, is not time of the step.
    """

    def __init__(self) -> None:
        self.clock = StepClock(self._tell)
        self._begin()

    def _begin(self) -> None:
        self._fetching = False
        self._sampling = False
        self._was_off = False
        self._claimed: bool | None = None
        self._thread: int | None = None  # that steps the optimizer; None: none has yet
        self._seen_threads: set[int] = set()

    def forked(self) -> None:
        """Begin anew in a forked child: what the parent had under way is the parent's."""
        self.clock.forget()
        self._begin()
        TIMER.forget()

    @property
    def phase(self) -> str:
        """What the rank is doing."""
        return self.clock.phase

    @guarded
    def iterating(self, loader: int, begins: bool) -> None:  # noqa: FBT001 - a callback's two calls
        """The script asks for an iterator (True), and has it (False)."""
        if self._is_off(resumes=begins):
            return
        if begins:
            import torch

            self.clock.iterator_began(loader, time.monotonic_ns(), grad=torch.is_grad_enabled())
        else:
            self.clock.iterator_ended(time.monotonic_ns())

    @guarded
    def fetch_began(self, iterator: Any) -> tuple[int, int] | None:
        """The script asks for a batch; return (time, batches ready), None within another fetch."""
        if self._is_off(resumes=True) or self._fetching:
            return None
        self._start_sampling()
        import torch

        ready = ready_batches(iterator)
        self._fetching = True
        now_ns = time.monotonic_ns()
        loader = LOADERS_SEEN.asked = LOADERS_SEEN.number_of_iterator(iterator)
        self.clock.fetch_began(loader, now_ns, grad=torch.is_grad_enabled())
        return now_ns, ready

    @guarded
    def fetch_ended(
        self, iterator: Any, began: tuple[int, int], batch: object, *, ended: bool
    ) -> None:
        """The script has its batch, or the loader has come to its end."""
        now_ns = time.monotonic_ns()
        self._fetching = False
        if self._is_off():
            return
        self.clock.fetch_ended(now_ns, samples_in(batch), ended=ended)
        epoch, number = LOADERS_SEEN.count_fetch(iterator)
        loader = LOADERS_SEEN.number_of_iterator(iterator)
        began_ns, ready = began
        SESSION.write(
            FETCHES, SESSION.rank, loader, epoch, number, began_ns, now_ns - began_ns, ready,
            int(ended),
        )  # fmt: skip

    @guarded
    def fetch_failed(self) -> None:
        """Asking for a batch raised an error, which the script gets."""
        self._fetching = False

    @guarded
    def backward_began(self) -> None:
        """Backward begins."""
        if self._is_off():
            return
        self._start_sampling()
        self.clock.backward_began(time.monotonic_ns())

    @guarded
    def backward_ended(self) -> None:
        """Backward has ended."""
        if self._is_off():
            return
        now_ns = time.monotonic_ns()
        self.clock.backward_ended(now_ns, SYNC.exposed_ns())

    @guarded
    def optimizer_began(self, optimizer: Any, *_: Any) -> None:
        """An optimizer begins its step."""
        self._this_thread_trains()
        if not self._is_off():
            self.clock.optimizer_began(id(optimizer), time.monotonic_ns())

    @guarded
    def optimizer_ended(self, optimizer: Any, *_: Any) -> None:
        """An optimizer has made its step."""
        # A script without loaders takes up recording here: each of its steps ends here.
        if not self._is_off(resumes=LOADERS_SEEN.asked < 0):
            self.clock.optimizer_ended(id(optimizer), time.monotonic_ns())

    @guarded
    def close(self) -> None:
        """The process ends."""
        if SESSION.role == "rank":
            self.clock.close(time.monotonic_ns())
            stop_sampler()
            TIMER.flush()
            SESSION.close()

    def _is_off(self, *, resumes: bool = False) -> bool:
        """Whether nothing is recorded now: switched off, not taken up again, or not training.

        Args:
            resumes: What happens is a point from which recording can be taken up again.
        """
        if not SESSION.on:
            self._was_off = True
            return True
        if SESSION.role != "rank" or not self._is_claimed():
            return True
        thread = threading.get_ident()
        if self._thread is None:
            self._seen_threads.add(thread)
        elif thread != self._thread:
            return True
        if self._was_off and resumes:
            self._was_off = self._fetching = False
            self.clock.forget()  # what happened meanwhile is unknown
        return self._was_off

    def _is_claimed(self) -> bool:
        if self._claimed is None:
            self._claimed = SESSION.claim_rank()
        return self._claimed

    def _this_thread_trains(self) -> None:
        thread = threading.get_ident()
        if self._thread != thread:
            self._thread = thread
            if self._seen_threads - {thread}:  # a mixture of threads is no step
                self.clock.forget()
                self._fetching = False
            self._seen_threads.clear()

    def _start_sampling(self) -> None:
        if not self._sampling:
            self._sampling = True
            start_sampler(lambda: self.phase)

    def _tell(self, kind: RowKind, number: int, segment: Segment) -> None:
        phases = segment.phases_ns
        wall_ns, backward_ns = segment.wall_ns, phases.get("backward", 0)
        # What DDP measures by another clock cannot be more than backward took.
        sync_ns = min(segment.sync_ns, backward_ns)
        SESSION.write(
            STEPS, SESSION.rank, number, kind, segment.loader, segment.start_ns, wall_ns,
            phases.get("data_wait", 0), phases.get("copy", 0), phases.get("forward", 0),
            backward_ns - sync_ns, sync_ns, phases.get("optimizer", 0), phases.get("other", 0),
            segment.batches, segment.samples, int(segment.syncs > 0), -1,
        )  # fmt: skip
        if kind == "train":
            BURST.step_ended()


RECORDER = RankRecorder()
os.register_at_fork(after_in_child=RECORDER.forked)


def hook_rank() -> None:
    """Install the hooks; torch is imported."""
    import torch
    from torch.optim import optimizer

    LOADERS_SEEN.on_iterator = RECORDER.iterating
    optimizer.register_optimizer_step_pre_hook(RECORDER.optimizer_began)
    optimizer.register_optimizer_step_post_hook(RECORDER.optimizer_ended)
    _hook_backward(torch)
    after_import("torch.utils.data.dataloader", _hook_torch_loader)
    after_import("torch.nn.parallel.distributed", SYNC.hook)
    after_import("headrace.data.loader.loader", _hook_own_loader)
    atexit.register(RECORDER.close)


def _hook_backward(torch: ModuleType) -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        RECORDER.backward_began()
        try:
            return original(*args, **kwargs)
        finally:
            RECORDER.backward_ended()

    torch.autograd.backward = backward


def _hook_torch_loader(module: ModuleType) -> None:
    LOADERS_SEEN.hook_torch(module)
    _hook_next(module._BaseDataLoaderIter)  # noqa: SLF001 - where every torch loader hands over


def _hook_own_loader(module: ModuleType) -> None:
    LOADERS_SEEN.hook_own(module)
    _hook_next(module.BatchStream)


def _hook_next(iterator_class: Any) -> None:
    original = iterator_class.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - it takes that method's place
        began = RECORDER.fetch_began(self)
        if began is None:
            return original(self)
        try:
            batch = original(self)
        except StopIteration:
            RECORDER.fetch_ended(self, began, None, ended=True)
            raise
        except BaseException:
            RECORDER.fetch_failed()
            raise
        RECORDER.fetch_ended(self, began, batch, ended=False)
        return batch

    iterator_class.__next__ = __next__
    if "next" in vars(iterator_class):
        iterator_class.next = __next__
