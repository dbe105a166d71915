"""The recorder of a training process: waits for batches, copies, backward, optimizer steps, sync.

What runs at each step is written to cost as little as possible: it is `guarded` by hand, and reads
the live switch only where a step begins or ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any

from headrace.observe.probe.device_clock import DEVICE_RECORDER, HostReport
from headrace.observe.probe.gradient_sync import GRADIENT_SYNC
from headrace.observe.probe.loaders import LOADER_REGISTRY, queue_read_ns, ready_batches, samples_in
from headrace.observe.probe.profiler_trace import PROFILER_TRACE
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.segments import DeviceCopyCounts
from headrace.observe.probe.stack_sampler import stop_sampler
from headrace.observe.probe.step_clock import StepClock
from headrace.observe.probe.training_thread import TrainingThread
from headrace.observe.probe.transform_timer import TRANSFORM_TIMER
from headrace.records.schema import FETCHES

_MAX_STEPS_WITHOUT_FETCH = 16
"""After so many steps without asking for a batch, a script has its data from elsewhere."""


class RankRecorder(TrainingThread):
    """Records what the hooks of this process report."""

    def __init__(self) -> None:
        self.grad_is_on: Callable[[], bool] = lambda: True  # in the calling thread
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._unfetched_steps = 0  # optimizer steps since a batch was asked for

    def forked(self) -> None:
        """Start again in a forked child; unfinished steps belong to the parent."""
        self._event_log.forked()
        DEVICE_RECORDER.forked()
        self._begin()
        TRANSFORM_TIMER.forget()

    @guarded
    def iterating(self, loader: int, begins: bool) -> None:  # noqa: FBT001 - a callback's two calls
        """Record that the script asks for an iterator (True), or has it (False)."""
        if begins:
            PROFILER_TRACE.end()  # workers may be forked now, and would inherit the trace
        if self._is_off(asks=True, resumes=begins):
            return
        self._under_way = True
        if begins:
            grad = self.grad_is_on()
            self._report(lambda clock, at_ns: clock.iterator_began(loader, at_ns, grad=grad))
        else:
            self._report(StepClock.iterator_ended)

    def fetch_began(self, iterator: Any) -> tuple[int, int] | None:
        """Record a request for a batch; return (time, batches ready); None if nested."""
        try:
            if self._thread in {None, get_ident()}:
                self._unfetched_steps = 0
            if self._is_off(asks=True, resumes=True) or self._fetching:
                return None
            self._start_sampling()
            self._catch_up()
            ready = ready_batches(iterator)
            queue_read_ns(iterator)  # discards reads made while recording was off
            self._under_way = True
            loader = LOADER_REGISTRY.asked = LOADER_REGISTRY.number_of_iterator(iterator)
            grad = self.grad_is_on()
            at_ns = self._report(lambda clock, at_ns: clock.fetch_began(loader, at_ns, grad=grad))
            self._fetching = True  # set last: a signal may raise an error until here
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("fetch_began", error)
            return None
        return at_ns, ready

    def fetch_ended(
        self, iterator: Any, began: tuple[int, int], batch: object, *, ended: bool
    ) -> None:
        """Record that the script has its batch, or that the loader has ended."""
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
            self._queue_report(
                (lambda _clock, _: SESSION.write(FETCHES, SESSION.rank, *row), now_ns)
            )
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("fetch_ended", error)

    def fetch_failed(self) -> None:
        """Note that the request for a batch raised an error."""
        self._fetching = False

    def backward_began(self) -> None:
        """Record the start of backward."""
        try:
            if self._is_off():
                return
            self._start_sampling()
            self._under_way = True
            if not self._backwards:
                self._backward_thread = get_ident()
            self._backwards += 1
            self._report(StepClock.backward_began)
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("backward_began", error)

    def backward_ended(self) -> None:
        """Record the end of backward."""
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
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("backward_ended", error)

    @guarded
    def copy_began(self) -> bool:
        """Record the start of a copy to the device; return whether it counts."""
        if self._copying or self._is_outside_steps() or self._is_off():
            return False
        self._report(lambda clock, at_ns: clock.within_began("copy", at_ns))
        self._copying = True  # set last: a signal may raise an error until here
        return True

    @guarded
    def copy_ended(self, copies: DeviceCopyCounts) -> None:
        """Record the end of a copy to the device."""
        self._copying = False
        if not self._is_off():
            self._report(lambda clock, at_ns: clock.within_ended(at_ns, copies))

    @guarded
    def host_waits(self, begins: bool) -> None:  # noqa: FBT001 - a callback's two calls
        """Record that FSDP begins to wait for other ranks (True), or has waited (False)."""
        if not self._is_outside_steps() and not self._is_off():
            self._report(_sync_wait_report(begins))

    @guarded
    def device_waits(self, begins: bool) -> None:  # noqa: FBT001 - a callback's two calls
        """Record such a wait of the device; in backward it is reported from torch's own thread."""
        if self._is_off(any_thread=self._backwards > 0):
            return
        DEVICE_RECORDER.report(_sync_wait_report(begins))

    def optimizer_began(self, optimizer: Any, *_: Any) -> None:
        """Record the start of an optimizer's step."""
        try:
            in_backward = self._is_in_backward()
            SESSION.trains()
            self._trains(self._backward_thread if in_backward else get_ident())
            if self._is_off(any_thread=in_backward):
                return
            self._under_way = True
            number = id(optimizer)
            self._report(lambda clock, at_ns: clock.optimizer_began(number, at_ns))
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("optimizer_began", error)

    def optimizer_ended(self, optimizer: Any, *_: Any) -> None:
        """Record the end of an optimizer's step."""
        try:
            in_backward = self._is_in_backward()
            self._unfetched_steps += 1
            # Without requests for batches, steps end here, and so recording resumes here.
            without_fetches = (
                LOADER_REGISTRY.asked < 0 or self._unfetched_steps > _MAX_STEPS_WITHOUT_FETCH
            )
            without_fetches = without_fetches and not self._backwards
            if self._is_off(asks=True, resumes=without_fetches, any_thread=in_backward):
                return
            self._under_way = True
            number = id(optimizer)
            self._report(lambda clock, at_ns: clock.optimizer_ended(number, at_ns))
            if without_fetches:
                self._catch_up()
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("optimizer_ended", error)

    @guarded
    def close(self) -> None:
        """Write what is left at the process's end."""
        if SESSION.role == "rank":
            # No thread may run while the interpreter shuts down.
            stop_sampler(wait=True)
            self._event_log.close(monotonic_ns(), recording=SESSION.on)
            DEVICE_RECORDER.close()
            TRANSFORM_TIMER.flush()
            PROFILER_TRACE.give_up()
            SESSION.close()


def _sync_wait_report(begins: bool) -> HostReport:  # noqa: FBT001 - a callback's two calls
    """Return the report that a wait for other ranks begins, or has ended."""
    if begins:
        return lambda clock, at_ns: clock.within_began("sync", at_ns)
    return lambda clock, at_ns: clock.within_ended(at_ns)


RANK_RECORDER = RankRecorder()
os.register_at_fork(after_in_child=RANK_RECORDER.forked)
