"""What a training process records: waits for batches, copies, backward, optimizer steps, sync."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from headrace.observe.probe.burst import BURST
from headrace.observe.probe.device_clock import Report
from headrace.observe.probe.device_steps import DEVICE
from headrace.observe.probe.loaders import LOADERS_SEEN, ready_batches, samples_in
from headrace.observe.probe.segments import Copies, RowKind, Segment
from headrace.observe.probe.session import SESSION, guarded
from headrace.observe.probe.stacks import is_sampled, start_sampler, stop_sampler
from headrace.observe.probe.steps import StepClock
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
        self._copying = False
        self._was_off = False
        self._claimed: bool | None = None
        self._thread: int | None = None  # that steps the optimizer; None: none has yet
        self._seen_threads: set[int] = set()

    def forked(self) -> None:
        """Begin anew in a forked child: what the parent had under way is the parent's."""
        self.clock.forget()
        DEVICE.forked()
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

            grad = torch.is_grad_enabled()
            self._report(lambda clock, at_ns: clock.iterator_began(loader, at_ns, grad=grad))
        else:
            self._report(lambda clock, at_ns: clock.iterator_ended(at_ns))

    @guarded
    def fetch_began(self, iterator: Any) -> tuple[int, int] | None:
        """The script asks for a batch; return (time, batches ready), None within another fetch."""
        if self._is_off(resumes=True) or self._fetching:
            return None
        self._start_sampling()
        import torch

        ready = ready_batches(iterator)
        self._fetching = True
        loader = LOADERS_SEEN.asked = LOADERS_SEEN.number_of_iterator(iterator)
        grad = torch.is_grad_enabled()
        now_ns = self._report(lambda clock, at_ns: clock.fetch_began(loader, at_ns, grad=grad))
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
        samples = samples_in(batch)
        self._report(lambda clock, at_ns: clock.fetch_ended(at_ns, samples, ended=ended), now_ns)
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
        self._report(lambda clock, at_ns: clock.backward_began(at_ns))

    @guarded
    def backward_ended(self) -> None:
        """Backward has ended."""
        if self._is_off():
            return
        now_ns = time.monotonic_ns()
        sync_ns = SYNC.exposed_ns()
        self._report(lambda clock, at_ns: clock.backward_ended(at_ns, sync_ns), now_ns)

    @guarded
    def copy_began(self) -> bool:
        """A tensor will be copied to the device; return whether that counts."""
        if self._copying or self._is_aside() or self._is_off():
            return False
        self._copying = True
        self._report(lambda clock, at_ns: clock.within_began("copy", at_ns))
        return True

    @guarded
    def copy_ended(self, copies: Copies) -> None:
        """It was copied."""
        self._copying = False
        if not self._is_off():
            self._report(lambda clock, at_ns: clock.within_ended(at_ns, copies))

    @guarded
    def host_waits(self, begins: bool) -> None:  # noqa: FBT001 - likewise
        """FSDP begins to wait for other ranks (True), or has waited (False)."""
        if not self._is_aside() and not self._is_off():
            self._report(_waiting(begins))

    @guarded
    def device_waits(self, begins: bool) -> None:  # noqa: FBT001 - likewise
        """Likewise, as the device comes to it; in backward torch does that in its own thread."""
        if self._is_off(any_thread=self.clock.in_backward):
            return
        DEVICE.report(_waiting(begins))

    @guarded
    def optimizer_began(self, optimizer: Any, *_: Any) -> None:
        """An optimizer begins its step."""
        self._this_thread_trains()
        if not self._is_off():
            number = id(optimizer)
            self._report(lambda clock, at_ns: clock.optimizer_began(number, at_ns))

    @guarded
    def optimizer_ended(self, optimizer: Any, *_: Any) -> None:
        """An optimizer has made its step."""
        # A script without loaders takes up recording here: each of its steps ends here.
        if not self._is_off(resumes=LOADERS_SEEN.asked < 0):
            number = id(optimizer)
            self._report(lambda clock, at_ns: clock.optimizer_ended(number, at_ns))

    @guarded
    def close(self) -> None:
        """The process ends."""
        if SESSION.role == "rank":
            self.clock.close(time.monotonic_ns())
            DEVICE.close()
            stop_sampler()
            TIMER.flush()
            SESSION.close()

    def _report(self, report: Report, at_ns: int | None = None) -> int:
        """Tell the clocks what happens now, or happened then; return when, by the host's clock."""
        DEVICE.report(report)
        at_ns = time.monotonic_ns() if at_ns is None else at_ns
        report(self.clock, at_ns)
        return at_ns

    def _forget(self) -> None:
        """Drop what is not finished."""
        self._report(lambda clock, _: clock.forget())
        self._fetching = self._copying = False

    def _is_off(self, *, resumes: bool = False, any_thread: bool = False) -> bool:
        """Whether nothing is recorded now: switched off, not taken up again, or not training.

        Args:
            resumes: What happens is a point from which recording can be taken up again.
            any_thread: It counts in whatever thread it happens.
        """
        if not SESSION.on:
            self._was_off = True
            return True
        if SESSION.role != "rank" or not self._is_claimed():
            return True
        thread = threading.get_ident()
        if self._thread is None:
            self._seen_threads.add(thread)
        elif thread != self._thread and not any_thread:
            return True
        if self._was_off and resumes:
            self._was_off = False
            self._forget()  # what happened meanwhile is unknown
        return self._was_off

    def _is_aside(self) -> bool:
        """Whether what happens belongs to no step, or to a thread that did nothing for one yet."""
        unknown = self._thread is None and threading.get_ident() not in self._seen_threads
        return unknown or not self.clock.under_way

    def _is_claimed(self) -> bool:
        if self._claimed is None:
            self._claimed = SESSION.claim_rank()
        return self._claimed

    def _this_thread_trains(self) -> None:
        thread = threading.get_ident()
        if self._thread != thread:
            self._thread = thread
            if self._seen_threads - {thread}:  # a mixture of threads is no step
                self._forget()
            self._seen_threads.clear()
            if is_sampled() and not is_sampled(thread):
                start_sampler(lambda: self.phase)

    def _start_sampling(self) -> None:
        """Sample this thread, which asks for batches or goes backward, until another trains."""
        if not is_sampled():
            start_sampler(lambda: self.phase)

    def _tell(self, kind: RowKind, number: int, segment: Segment) -> None:
        copies = segment.copies
        SESSION.write(
            STEPS, SESSION.rank, number, kind, segment.loader, segment.start_ns, segment.wall_ns,
            *segment.times_ns(), segment.batches, segment.samples, int(segment.syncs > 0),
            copies.count, copies.pageable, copies.blocking,
        )  # fmt: skip
        DEVICE.row_ended()
        if kind == "train":
            BURST.step_ended()


def _waiting(begins: bool) -> Report:  # noqa: FBT001 - likewise
    """Return the report that waiting for other ranks begins, or has ended."""
    if begins:
        return lambda clock, at_ns: clock.within_began("sync", at_ns)
    return lambda clock, at_ns: clock.within_ended(at_ns)


RECORDER = RankRecorder()
os.register_at_fork(after_in_child=RECORDER.forked)
