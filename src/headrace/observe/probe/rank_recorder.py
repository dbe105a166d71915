"""The recorder of a training process: waits for batches, copies, backward, optimizer steps, sync.

What is called at each step is written to take as few steps of its own as can be: it is `guarded` by
hand, and reads the switch at a step's begin and end alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any

from headrace.observe.probe.device_clock import DEVICE_RECORDER, HostReport
from headrace.observe.probe.event_log import EventLog, write_row
from headrace.observe.probe.gradient_sync import GRADIENT_SYNC
from headrace.observe.probe.loaders import LOADER_REGISTRY, queue_read_ns, ready_batches, samples_in
from headrace.observe.probe.profiler_trace import PROFILER_TRACE
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.segments import DeviceCopyCounts
from headrace.observe.probe.stack_sampler import is_sampled, start_sampler, stop_sampler
from headrace.observe.probe.step_clock import StepClock
from headrace.observe.probe.transform_timer import TRANSFORM_TIMER
from headrace.records.schema import FETCHES

_DEEP_CHECK_NS = 50_000_000  # how often is asked whether to look closer
_MAX_STEPS_WITHOUT_FETCH = 16
"""A script that steps so often without asking for a batch has its data elsewhere by now."""


class RankRecorder:
    """Notes what the hooks of this process see.

    One thread trains: that which steps the optimizer. What other threads do, such as fetching
    batches ahead in the background, is not time of the step.

    Attributes:
        grad_is_on: Says whether gradients are on in the thread that asks.
    """

    def __init__(self) -> None:
        self.grad_is_on: Callable[[], bool] = lambda: True
        self._journal = EventLog(write_row)
        self._note = self._journal.waiting.append
        self._begin()

    def _begin(self) -> None:
        self._fetching = False
        self._copying = False
        self._was_off = False
        self._claimed: bool | None = None
        self._thread: int | None = None  # that steps the optimizer; None: none has yet
        self._seen_threads: set[int] = set()
        self._live = False  # it is known and sampled, and was recorded when the step began
        self._under_way = False  # there is a step, or time between steps, to add to
        self._backwards = 0
        self._backward_thread: int | None = None  # that called the outermost one under way
        self._unfetched = 0  # optimizer steps since a batch was asked for
        self._deep_asked_ns = 0
        self._steps_told = 0  # of those that the journal has ended, what the burst was told of

    def forked(self) -> None:
        """Begin anew in a forked child: what the parent had under way is the parent's."""
        self._journal.forked()
        DEVICE_RECORDER.forked()
        self._begin()
        TRANSFORM_TIMER.forget()

    @guarded
    def iterating(self, loader: int, begins: bool) -> None:  # noqa: FBT001 - a callback's two calls
        """The script asks for an iterator (True), and has it (False)."""
        if begins:
            PROFILER_TRACE.end()  # workers may be forked now, and would go on with it
        if self._is_off(asks=True, resumes=begins):
            return
        self._under_way = True
        if begins:
            grad = self.grad_is_on()
            self._report(lambda clock, at_ns: clock.iterator_began(loader, at_ns, grad=grad))
        else:
            self._report(StepClock.iterator_ended)

    def fetch_began(self, iterator: Any) -> tuple[int, int] | None:
        """The script asks for a batch; return (time, batches ready), None within another fetch."""
        try:
            if self._thread in {None, get_ident()}:
                self._unfetched = 0
            if self._is_off(asks=True, resumes=True) or self._fetching:
                return None
            self._start_sampling()
            self._catch_up()
            ready = ready_batches(iterator)
            queue_read_ns(iterator)  # what it took while nothing was recorded is in no wait
            self._under_way = True
            loader = LOADER_REGISTRY.asked = LOADER_REGISTRY.number_of_iterator(iterator)
            grad = self.grad_is_on()
            at_ns = self._report(lambda clock, at_ns: clock.fetch_began(loader, at_ns, grad=grad))
            self._fetching = True  # last: a signal may have raised an error until here
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("fetch_began", error)
            return None
        return at_ns, ready

    def fetch_ended(
        self, iterator: Any, began: tuple[int, int], batch: object, *, ended: bool
    ) -> None:
        """The script has its batch, or the loader has come to its end."""
        try:
            now_ns = monotonic_ns()
            self._fetching = False
            if self._is_off():
                return
            samples = samples_in(batch)
            self._report(
                lambda clock, at_ns: clock.fetch_ended(at_ns, samples, ended=ended), now_ns
            )
            epoch, number = LOADER_REGISTRY.count_fetch(iterator)
            loader = LOADER_REGISTRY.number_of_iterator(iterator)
            began_ns, ready = began
            took = now_ns - began_ns, ready, int(ended), *queue_read_ns(iterator)
            row = (loader, epoch, number, began_ns, *took)
            self._note((lambda _clock, _: SESSION.write(FETCHES, SESSION.rank, *row), now_ns))
        except Exception as error:  # noqa: BLE001 - likewise
            SESSION.fault("fetch_ended", error)

    def fetch_failed(self) -> None:
        """Asking for a batch raised an error, which the script gets."""
        self._fetching = False

    def backward_began(self) -> None:
        """Backward begins."""
        try:
            if self._is_off():
                return
            self._start_sampling()
            self._under_way = True
            if not self._backwards:
                self._backward_thread = get_ident()
            self._backwards += 1
            self._report(StepClock.backward_began)
        except Exception as error:  # noqa: BLE001 - likewise
            SESSION.fault("backward_began", error)

    def backward_ended(self) -> None:
        """Backward has ended."""
        try:
            if self._is_off():
                return
            now_ns = monotonic_ns()
            self._under_way = True
            self._backwards = max(self._backwards - 1, 0)
            sync_ns = GRADIENT_SYNC.exposed_ns() if GRADIENT_SYNC.any else None
            if sync_ns is None:
                self._report(StepClock.backward_ended, now_ns)
            else:
                self._report(lambda clock, at_ns: clock.backward_ended(at_ns, sync_ns), now_ns)
        except Exception as error:  # noqa: BLE001 - likewise
            SESSION.fault("backward_ended", error)

    @guarded
    def copy_began(self) -> bool:
        """A tensor will be copied to the device; return whether that counts."""
        if self._copying or self._is_outside_steps() or self._is_off():
            return False
        self._report(lambda clock, at_ns: clock.within_began("copy", at_ns))
        self._copying = True  # last, likewise
        return True

    @guarded
    def copy_ended(self, copies: DeviceCopyCounts) -> None:
        """It was copied."""
        self._copying = False
        if not self._is_off():
            self._report(lambda clock, at_ns: clock.within_ended(at_ns, copies))

    @guarded
    def host_waits(self, begins: bool) -> None:  # noqa: FBT001 - likewise
        """FSDP begins to wait for other ranks (True), or has waited (False)."""
        if not self._is_outside_steps() and not self._is_off():
            self._report(_sync_wait_report(begins))

    @guarded
    def device_waits(self, begins: bool) -> None:  # noqa: FBT001 - likewise
        """Likewise, as the device comes to it; in backward torch does that in its own thread."""
        if self._is_off(any_thread=self._backwards > 0):
            return
        DEVICE_RECORDER.report(_sync_wait_report(begins))

    def optimizer_began(self, optimizer: Any, *_: Any) -> None:
        """An optimizer begins its step."""
        try:
            in_backward = self._is_in_backward()
            SESSION.trains()
            self._trains(self._backward_thread if in_backward else get_ident())
            if self._is_off(any_thread=in_backward):
                return
            self._under_way = True
            number = id(optimizer)
            self._report(lambda clock, at_ns: clock.optimizer_began(number, at_ns))
        except Exception as error:  # noqa: BLE001 - likewise
            SESSION.fault("optimizer_began", error)

    def optimizer_ended(self, optimizer: Any, *_: Any) -> None:
        """An optimizer has made its step."""
        try:
            in_backward = self._is_in_backward()
            self._unfetched += 1
            # A script that asks for no batches takes up recording here: its steps end here.
            alone = LOADER_REGISTRY.asked < 0 or self._unfetched > _MAX_STEPS_WITHOUT_FETCH
            alone = alone and not self._backwards
            if self._is_off(asks=True, resumes=alone, any_thread=in_backward):
                return
            self._under_way = True
            number = id(optimizer)
            self._report(lambda clock, at_ns: clock.optimizer_ended(number, at_ns))
            if alone:
                self._catch_up()
        except Exception as error:  # noqa: BLE001 - likewise
            SESSION.fault("optimizer_ended", error)

    @guarded
    def close(self) -> None:
        """The process ends."""
        if SESSION.role == "rank":
            # The interpreter ends, and no thread is to meet that.
            stop_sampler(wait=True)
            self._journal.close(monotonic_ns(), recording=SESSION.on)
            DEVICE_RECORDER.close()
            TRANSFORM_TIMER.flush()
            PROFILER_TRACE.give_up()
            SESSION.close()

    def _report(self, report: HostReport, at_ns: int | None = None) -> int:
        """Note what happens now, or happened then; return when, by the host's clock."""
        if not DEVICE_RECORDER.absent:
            DEVICE_RECORDER.report(report)
        if at_ns is None:
            at_ns = monotonic_ns()
        self._note((report, at_ns))
        return at_ns

    def _catch_up(self) -> None:
        """Do what a step's thread does itself: ask the device, trace, and not fall behind."""
        if not DEVICE_RECORDER.absent:
            DEVICE_RECORDER.row_ended()
        self._journal.limit_backlog()
        if PROFILER_TRACE.under_way:
            self._journal.settle_now()
            PROFILER_TRACE.steps_ended(self._journal.steps_ended - self._steps_told)
            self._steps_told = self._journal.steps_ended
            return
        if self._thread is None:  # nothing was trained yet, and that is what is looked at
            return
        now_ns = monotonic_ns()
        if now_ns - self._deep_asked_ns >= _DEEP_CHECK_NS:
            self._deep_asked_ns = now_ns
            if PROFILER_TRACE.is_due:
                self._journal.settle_now()
                self._steps_told = self._journal.steps_ended
                PROFILER_TRACE.begin()

    def _forget(self) -> None:
        """Drop what is not finished."""
        self._report(lambda clock, _: clock.forget())
        self._fetching = self._copying = self._under_way = False
        self._backwards = 0

    def _is_off(
        self, *, asks: bool = False, resumes: bool = False, any_thread: bool = False
    ) -> bool:
        """Whether nothing is recorded now: switched off, not taken up again, or not training.

        Args:
            asks: The switch is asked now. Else it is enough that it was on when the step began.
            resumes: What happens is a point from which recording can be taken up again.
            any_thread: It counts in whatever thread it happens.
        """
        if self._live and get_ident() == self._thread and (not asks or SESSION.on):
            return False
        if not SESSION.on:
            self._switched_off()
            return True
        if SESSION.role != "rank" or not self._is_claimed():
            return True
        thread = get_ident()
        if self._thread is None:
            if not any_thread:
                self._seen_threads.add(thread)
        elif thread != self._thread and not any_thread:
            return True
        if self._was_off and resumes:
            self._was_off = False
            self._forget()  # what happened meanwhile is unknown
        self._live = not self._was_off and self._thread is not None and is_sampled(self._thread)
        return self._was_off

    def _switched_off(self) -> None:
        if PROFILER_TRACE.under_way:
            PROFILER_TRACE.end()
        if not self._was_off:
            self._was_off, self._live = True, False
            self._journal.settle_now()

    def _is_outside_steps(self) -> bool:
        """Whether what happens belongs to no step, or to a thread that did nothing for one yet."""
        unknown = self._thread is None and get_ident() not in self._seen_threads
        return unknown or not self._under_way

    def _is_claimed(self) -> bool:
        if self._claimed is None:
            self._claimed = SESSION.claim_rank()
        return self._claimed

    def _is_in_backward(self) -> bool:
        """Whether this is another thread, of torch's, in which a backward comes to parameters.

        Optimizers may step there as gradients come; on an accelerator torch has a thread for it.
        """
        return self._backwards > 0 and get_ident() != self._backward_thread

    def _trains(self, thread: int | None) -> None:
        if self._thread != thread:
            self._thread = thread
            if self._seen_threads - {thread}:  # a mixture of threads is no step
                backwards = self._backwards
                self._forget()
                if thread != get_ident():  # in whose backward this is
                    self._backwards = backwards
            self._seen_threads.clear()
            if thread == get_ident() and is_sampled() and not is_sampled(thread):
                self._sample()

    def _start_sampling(self) -> None:
        """Sample this thread, which asks for batches or goes backward, until another trains."""
        known = self._thread if self._thread == get_ident() else None
        if not self._live and not is_sampled(known):
            self._sample()

    def _sample(self) -> None:
        start_sampler(self._journal.request_phase, self._journal.settle)


def _sync_wait_report(begins: bool) -> HostReport:  # noqa: FBT001 - likewise
    """Return the report that waiting for other ranks begins, or has ended."""
    if begins:
        return lambda clock, at_ns: clock.within_began("sync", at_ns)
    return lambda clock, at_ns: clock.within_ended(at_ns)


RANK_RECORDER = RankRecorder()
os.register_at_fork(after_in_child=RANK_RECORDER.forked)
