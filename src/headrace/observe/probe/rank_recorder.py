"""The recorder of a training process, and its thread whose steps are recorded.

It records waits for batches, copies, backward, optimizer steps and sync. What runs at each step is
`guarded` by hand, and reads the live switch only where a step begins or ends. Where a step goes as
the one before it, most hooks queue their reports without asking the recorder: see `step_hooks`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any

from headrace.observe.probe import step_reports
from headrace.observe.probe.device_clock import HostReport
from headrace.observe.probe.device_recorder import DEVICE_RECORDER
from headrace.observe.probe.event_log import EventLog
from headrace.observe.probe.gradient_sync import GRADIENT_SYNC
from headrace.observe.probe.graph_replays import GRAPH_REPLAYS
from headrace.observe.probe.iterator_state import (
    IteratorState,
    delivered,
    ready_count,
    state_of,
    uncounted,
)
from headrace.observe.probe.loader_workers import queue_poll
from headrace.observe.probe.loaders import LOADER_REGISTRY
from headrace.observe.probe.profiler_trace import PROFILER_TRACE
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.report_queue import MAX_QUEUED_REPORTS
from headrace.observe.probe.stack_sampler import is_sampled, start_sampler, stop_sampler
from headrace.observe.probe.step_clock import CopyPlace, StepClock
from headrace.observe.probe.step_segments import DeviceCopyCounts, RowKind, Segment
from headrace.observe.probe.transform_timer import TRANSFORM_TIMER
from headrace.records.schema import STEPS

FetchBegan = tuple[int, int, IteratorState, bool]
"""A request for a batch: its time, how many were ready, what is kept of the iterator, and whether
it follows a training step on a batch of the same loader."""

_NO_ITERATOR = IteratorState()
_DEEP_CHECK_NS = 50_000_000  # how often deep recording is checked for
MAX_STEPS_WITHOUT_FETCH = 16
"""After so many steps without asking for a batch, a script has its data from elsewhere."""


class TrainingThread:
    """The one thread that steps the optimizer, and what is under way in it.

    What other threads do, such as fetching batches in the background, is not time of the step.

    Attributes:
        waiting: The queued reports; see `ReportQueue`.
        fast_thread: The thread, while its hooks have only to queue their reports; else None.
        fast_state: What is kept of the iterator whose requests for batches have only that to do;
            `_NO_ITERATOR`, which is of none, where there is no such iterator.
        is_fetching: Whether it waits for a batch.
        backwards: The calls of backward that are under way, one within the other.
        unfetched_steps: Optimizer steps since a batch was asked for.
    """

    def __init__(self) -> None:
        self._event_log = EventLog(write_row, SESSION.fault, threading.Lock)
        self.waiting = self._event_log.waiting
        self._queue = self.waiting.append
        GRAPH_REPLAYS.on_capture = self._leave_fast_path
        self._begin()

    def _begin(self) -> None:
        self.fast_thread: int | None = None
        self.fast_state = _NO_ITERATOR
        self._entered_for: IteratorState | None = None  # whose request last opened the fast path
        self.is_fetching = False
        self._copying = False
        self._was_off = False
        self._claimed: bool | None = None
        # The loader of the last batch, if no iterator was made since; the registry of loaders,
        # which has it too, is further away.
        self._asked: int | None = None
        self._thread: int | None = None  # that steps the optimizer; None before the first step
        self._seen_threads: set[int] = set()
        # The main thread gets batches that another one has taken; needed until one has trained.
        self._gets_handed = False
        # The training thread, if it is sampled, and recording was on as the step began.
        self._live_thread: int | None = None
        self._under_way = False  # there is a step, or time between steps, to add to
        self.unfetched_steps = 0
        self.backwards = 0
        self._backward_thread: int | None = None  # that called the outermost backward under way
        self._deep_checked_ns = 0
        # More than to report at each step: a device to poll, a trace. The thread that samples looks
        # for requests for traces.
        self._has_more_to_do = True
        self._steps_traced = 0  # training steps that the profiler trace has counted

    def _report(self, report: HostReport, *values: Any, at_ns: int | None = None) -> None:
        """Queue a report of now, or of `at_ns`, with its further arguments."""
        if self._has_more_to_do and not DEVICE_RECORDER.absent:
            DEVICE_RECORDER.report(report, *values)
        self._queue((report, monotonic_ns() if at_ns is None else at_ns, *values))

    def _request_phase(self, receive_phase: Callable[[str], None]) -> None:
        """Request the phase for the thread that samples, which also looks what else is to do."""
        self._event_log.request_phase(receive_phase)
        if PROFILER_TRACE.may_be_due:
            self._has_more_to_do = True
            self._leave_fast_path()

    def _enter_fast_path(self, state: IteratorState) -> None:
        """Have hooks only queue their reports until something is new, if nothing is now.

        The thread has just asked for a batch of an iterator, of which `state` is kept.
        """
        self._leave_fast_path()
        thread = get_ident()
        if not self.backwards:
            self._backward_thread = thread  # which the hook of backward does not set then
        # Nothing is called from here on, so that no other thread runs in between.
        if self._live_thread != thread or GRAPH_REPLAYS.capturing is not None:
            return
        self.fast_thread, self._entered_for = thread, state
        reads = state.sampler
        if reads is None or (reads.stream_batch is None and not reads.is_numbered):
            return
        if state.loader >= 0 and state.fetches >= 0:
            self.fast_state = state

    def _set_live_thread(self, thread: int | None) -> None:
        self._live_thread = thread
        if thread is None:
            self._leave_fast_path()

    def _leave_fast_path(self) -> None:
        """Have hooks ask this recorder, from now until another batch is asked for."""
        self.fast_thread, self.fast_state, self._entered_for = None, _NO_ITERATOR, None

    def _catch_up(self) -> None:
        """Do what the step's own thread must: poll the device, trace, and limit the backlog."""
        if not DEVICE_RECORDER.absent:
            DEVICE_RECORDER.row_ended()
        self._event_log.limit_backlog()
        self._trace()
        self._has_more_to_do = not DEVICE_RECORDER.absent or PROFILER_TRACE.may_be_due

    def _trace(self) -> None:
        """Begin, go on with or end a trace by torch.profiler, if one was requested."""
        if PROFILER_TRACE.under_way:
            self._event_log.settle_now()
            PROFILER_TRACE.steps_ended(self._event_log.steps_ended - self._steps_traced)
            self._steps_traced = self._event_log.steps_ended
            return
        if self._thread is None:  # before the first step there is nothing to trace
            return
        now_ns = monotonic_ns()
        if now_ns - self._deep_checked_ns >= _DEEP_CHECK_NS:
            self._deep_checked_ns = now_ns
            if PROFILER_TRACE.is_due:
                self._event_log.settle_now()
                self._steps_traced = self._event_log.steps_ended
                PROFILER_TRACE.begin()

    def _forget(self) -> None:
        self._leave_fast_path()
        self._report(step_reports.forget)
        self.is_fetching = self._copying = self._under_way = False
        self.backwards = 0

    def _is_off(
        self, *, asks: bool = False, resumes: bool = False, any_thread: bool = False
    ) -> bool:
        """Return whether nothing is recorded: off, not resumed yet, or not the training thread.

        `asks`: read the switch now, not as it was as the step began. `resumes`: recording can be
        resumed here. `any_thread`: the report counts in whatever thread it is made.
        """
        thread = get_ident()
        if self._live_thread == thread and (not asks or SESSION.on):
            return False
        if not SESSION.on:
            self._switched_off()
            return True
        if SESSION.role != "rank":
            return True
        if self._claimed is None:
            self._claimed = SESSION.claim_rank()
        if not self._claimed:
            return True
        if self._is_uncounted_thread(thread, any_thread=any_thread):
            return True
        if self._was_off and resumes:
            self._was_off = False
            self._forget()  # what happened while recording was off is unknown
        live = not self._was_off and self._thread is not None and is_sampled(self._thread)
        self._set_live_thread(self._thread if live else None)
        return self._was_off

    def _is_uncounted_thread(self, thread: int, *, any_thread: bool) -> bool:
        """Return whether a thread's reports do not count; until one has trained, note it."""
        if any_thread:
            return False
        if self._thread is not None:
            return thread != self._thread
        if self._gets_handed and self.is_other_thread():
            return True
        self._seen_threads.add(thread)
        return False

    def _switched_off(self) -> None:
        if PROFILER_TRACE.under_way:
            PROFILER_TRACE.end()
        if not self._was_off:
            self._was_off = True
            self._set_live_thread(None)
            self._event_log.settle_now()

    def _check_claim(self) -> None:
        """Drop what is under way if another process, which trains, has taken this rank over."""
        if SESSION.check_claim():
            self._forget()

    def _is_outside_steps(self) -> bool:
        """Return whether this is part of no step, or of a thread that has not trained yet."""
        unknown = self._thread is None and get_ident() not in self._seen_threads
        return unknown or not self._under_way

    def is_other_thread(self) -> bool:
        """Return whether this is not the training thread: the main one, until one has trained."""
        training = threading.main_thread().ident if self._thread is None else self._thread
        return get_ident() != training

    def gets_handed_batches(self) -> None:
        """Note that the training thread gets batches that another one has taken.

        Before any has trained, and if none does, as in inference, what both ask for counts: from
        here on the main thread alone.
        """
        if self._thread is None and not self._gets_handed:
            self._gets_handed = True
            self._forget()
            if is_sampled() and not is_sampled(get_ident()):
                self._sample()

    def _is_in_backward(self) -> bool:
        """Return whether this is a thread of torch's that runs a backward of this rank.

        On an accelerator torch runs backward in a thread of its own, and optimizers may step there
        as gradients become ready.
        """
        return self.backwards > 0 and get_ident() != self._backward_thread

    def _trains(self, thread: int | None) -> None:
        if self._thread != thread:
            self._thread = thread
            self._set_live_thread(None)
            if self._seen_threads - {thread}:  # a step holds the time of one thread only
                backwards = self.backwards
                self._forget()
                if thread != get_ident():  # the thread whose backward this is
                    self.backwards = backwards
            self._seen_threads.clear()
            if thread == get_ident() and is_sampled() and not is_sampled(thread):
                self._sample()

    def _start_sampling(self) -> None:
        """Sample this thread, which asks for batches or runs backward, until another one trains."""
        known = self._thread if self._thread == get_ident() else None
        if self._live_thread is None and not is_sampled(known):
            self._sample()

    def _sample(self) -> None:
        start_sampler(self._request_phase, self._settle, self._event_log.slow_steps)

    def _settle(self) -> None:
        """Make rows of what was reported, by both clocks."""
        self._check_claim()
        self._event_log.settle()
        DEVICE_RECORDER.settle()


def write_row(kind: RowKind, number: int, segment: Segment) -> None:
    """Write a row of `steps`."""
    copies = segment.copies
    SESSION.write(
        STEPS, SESSION.rank, number, kind, segment.loader, segment.start_ns, segment.wall_ns,
        *segment.times_ns(), segment.batches, segment.samples, int(segment.syncs > 0),
        copies.count, copies.pageable, copies.blocking,
    )  # fmt: skip


class RankRecorder(TrainingThread):
    """Records what the hooks of this process report.

    Attributes:
        grad_is_on: Returns whether gradients are on in the calling thread.
        on_early_batch: Gets batches that came before any thread has trained, with the state of
            their iterator and their samples.
        on_unrecorded_batch: Gets batches whose requests have no row, with their iterator.
    """

    def __init__(self) -> None:
        self.grad_is_on: Callable[[], bool] = lambda: True
        self.on_early_batch: Callable[[IteratorState, object, int], object] = lambda *_: None
        self.on_unrecorded_batch: Callable[[Any, object], object] = lambda *_: None
        super().__init__()

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
            self._check_claim()
            SESSION.reclaim()
        if self._is_off(asks=True, resumes=begins):
            return
        if self.is_fetching:  # a part of the request for a batch, which has a wait of its own
            return
        self._under_way = True
        self._asked, self.fast_state, self._entered_for = None, _NO_ITERATOR, None
        if begins:
            self._report(step_reports.iterator_began, loader, self.grad_is_on())
        else:
            self._report(step_reports.ITERATOR_ENDED)

    def fetch_began(self, iterator: Any, at_ns: int | None = None) -> FetchBegan | None:
        """Record a request for a batch; return what `fetch_ended` needs, None if it is nested.

        The iterator has a state, or its class is prepared for one: see `prepare_class`. The request
        is made now, or was at `at_ns`, since when the thread has waited.
        """
        try:
            follows_step = self._follows_step()
            if follows_step is None:
                return None
            if self._has_more_to_do or len(self.waiting) > MAX_QUEUED_REPORTS:
                self._catch_up()
            state: IteratorState = iterator._headrace_state or state_of(iterator)  # noqa: SLF001
            if state.ready is uncounted:
                state.ready = ready_count(iterator, queue_poll)
            ready = state.ready(iterator)
            if state.read_ns > 0:  # made while recording was off, or for a batch that failed
                state.read_ns = state.read_cpu_ns = 0
            self._under_way = True
            loader = state.loader
            if loader != self._asked:
                self._asked = LOADER_REGISTRY.asked = loader
                follows_step = False
            # After a step, whether gradients are on matters only if no other step follows:
            # `fetch_ended` asks for it, since to call torch costs less once next() has.
            grad = follows_step or self.grad_is_on()
            if self._has_more_to_do and not DEVICE_RECORDER.absent:
                DEVICE_RECORDER.report(step_reports.fetch_began, loader, grad)
            at_ns = at_ns or monotonic_ns()
            self._queue((step_reports.fetch_began, at_ns, loader, grad))
            if self._entered_for is not state and not self._has_more_to_do:
                self._enter_fast_path(state)
            self.is_fetching = True  # set last: a signal may raise an error until here
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("fetch_began", error)
            return None
        return at_ns, ready, state, follows_step

    def _follows_step(self) -> bool | None:
        """Return whether a request for a batch is known to follow an optimizer's step.

        None: it is not to be recorded, as recording is off or it is a part of another request.
        """
        if self._live_thread == get_ident() and SESSION.switch_mode[0]:
            follows_step = self.unfetched_steps > 0
            self.unfetched_steps = 0
            return None if self.is_fetching else follows_step
        if self._thread in {None, get_ident()}:
            self.unfetched_steps = 0
        if self._is_off(asks=True, resumes=True) or self.is_fetching:
            return None
        self._start_sampling()
        return False

    def fetch_ended(
        self, iterator: Any, began: FetchBegan, batch: object, *, ended: bool = False
    ) -> None:
        """Record that the script has its batch, or that the loader has ended."""
        try:
            now_ns = monotonic_ns()
            self.is_fetching = False
            if self._live_thread != get_ident() and self._is_off():
                if not ended:  # since it began, another thread has trained
                    self.on_unrecorded_batch(iterator, batch)
                return
            began_ns, ready, state, follows_step = began
            samples, sampler_ns = delivered(iterator, state, batch, ended=ended)
            grad = not follows_step or self.grad_is_on()
            number, read_ns = state.fetches, state.read_ns
            self._queue((
                step_reports.fetch_ended, now_ns, samples, ended, grad, began_ns, state.loader,
                state.epoch, number, ready, read_ns, state.read_cpu_ns, sampler_ns,
            ))  # fmt: skip
            if number >= 0:
                state.fetches = number + 1
            if read_ns > 0:
                state.read_ns = state.read_cpu_ns = 0
            if self._thread is None:
                self.on_early_batch(state, batch, samples)
            if self._has_more_to_do and not DEVICE_RECORDER.absent:
                DEVICE_RECORDER.report(step_reports.device_fetch_ended, samples, ended, grad)
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("fetch_ended", error)

    @guarded
    def fetch_raised(self, iterator: Any, began: FetchBegan, error: BaseException) -> None:
        """Record that a request for a batch raises an error; StopIteration: there are no more."""
        if isinstance(error, StopIteration):
            self.fetch_ended(iterator, began, None, ended=True)
            return
        self.is_fetching = False
        # The next request forgets the reads of this one, which no row has: not on the fast path.
        self.fast_state, self._entered_for = _NO_ITERATOR, None
        # A signal ends a script, which waited for a batch until then: that wait stays open.
        if isinstance(error, Exception) and not self._is_off():
            self._report(StepClock.fetch_failed)

    def backward_began(self) -> None:
        """Record the start of backward."""
        try:
            thread = get_ident()
            is_live = self._live_thread == thread
            if not is_live:
                SESSION.claim_training()
                if self._is_off():
                    return
            if GRAPH_REPLAYS.capturing is not None:
                GRAPH_REPLAYS.capturing.backward = True
                return
            if not is_live:
                self._start_sampling()
            if self._has_more_to_do:
                DEVICE_RECORDER.trains_here()
            self._under_way = True
            if not self.backwards:
                self._backward_thread = thread
            self.backwards += 1
            if self._has_more_to_do:
                self._report(step_reports.BACKWARD_BEGAN)
            else:
                self._queue((step_reports.BACKWARD_BEGAN, monotonic_ns()))
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("backward_began", error)

    def backward_ended(self) -> None:
        """Record the end of backward."""
        try:
            if self._live_thread != get_ident() and self._is_off():
                return
            if GRAPH_REPLAYS.capturing is not None:
                return
            now_ns = monotonic_ns()
            self._under_way = True
            if self.backwards:
                self.backwards -= 1
            sync_ns = GRADIENT_SYNC.exposed_ns() if GRADIENT_SYNC.any else None
            if sync_ns is None and not self._has_more_to_do:
                self._queue((step_reports.BACKWARD_ENDED, now_ns))
            elif sync_ns is None:
                self._report(step_reports.BACKWARD_ENDED, at_ns=now_ns)
            else:
                self._report(step_reports.BACKWARD_ENDED, sync_ns, at_ns=now_ns)
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("backward_ended", error)

    @guarded
    def copy_began(self) -> bool:
        """Record the start of a copy to the device; return whether it counts."""
        if self._copying or self._is_outside_steps() or self._is_off():
            return False
        self._report(step_reports.within_began, "copy")
        self._copying = True  # set last: a signal may raise an error until here
        return True

    @guarded
    def copy_ended(self, copies: DeviceCopyCounts, place: CopyPlace) -> None:
        """Record the end of a copy to the device, and where the script makes it."""
        self._copying = False
        if not self._is_off():
            self._report(step_reports.WITHIN_ENDED, copies, place)

    @guarded
    def host_waits(self, begins: bool) -> None:  # noqa: FBT001 - a callback's two calls
        """Record that FSDP begins to wait for other ranks (True), or has waited (False)."""
        if not self._is_outside_steps() and not self._is_off():
            self._report(*step_reports.sync_wait(begins))

    @guarded
    def collective(self, begins: bool, brings_data: bool) -> None:  # noqa: FBT001 - a callback's
        """Record that the script begins to wait for other ranks (True), or has waited (False)."""
        if not self.is_fetching and not self._is_outside_steps() and not self._is_off():
            self._report(*step_reports.collective(begins, brings_data))

    @guarded
    def device_waits(self, begins: bool) -> None:  # noqa: FBT001 - a callback's two calls
        """Record such a wait of the device; in backward it is reported from torch's own thread."""
        if self._is_off(any_thread=self.backwards > 0):
            return
        DEVICE_RECORDER.report(*step_reports.sync_wait(begins))

    def optimizer_began(self, optimizer: Any, *_: Any) -> None:
        """Record the start of an optimizer's step."""
        try:
            if GRAPH_REPLAYS.capturing is not None:
                GRAPH_REPLAYS.capturing.optimizer = True
                return
            in_backward = self.backwards > 0 and self._is_in_backward()
            if self._live_thread != get_ident() or self.backwards:
                SESSION.trains()
                self._trains(self._backward_thread if in_backward else get_ident())
                if self._is_off(any_thread=in_backward):
                    return
            if self._has_more_to_do and not in_backward:
                DEVICE_RECORDER.trains_here()
            self._under_way = True
            number = id(optimizer)
            if self._has_more_to_do and not DEVICE_RECORDER.absent:
                DEVICE_RECORDER.report(step_reports.optimizer_began, number)
            self._queue((step_reports.optimizer_began, monotonic_ns(), number))
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("optimizer_began", error)

    def optimizer_ended(self, optimizer: Any, *_: Any) -> None:
        """Record the end of an optimizer's step."""
        try:
            if GRAPH_REPLAYS.capturing is not None:
                return
            self.unfetched_steps += 1
            # Without requests for batches, steps end here, and so recording resumes here.
            without_fetches = (
                LOADER_REGISTRY.asked < 0 or self.unfetched_steps > MAX_STEPS_WITHOUT_FETCH
            ) and not self.backwards
            if without_fetches or self._live_thread != get_ident():
                in_backward = self._is_in_backward()
                if self._is_off(asks=True, resumes=without_fetches, any_thread=in_backward):
                    return
            self._under_way = True
            number = id(optimizer)
            if self._has_more_to_do and not DEVICE_RECORDER.absent:
                DEVICE_RECORDER.report(step_reports.optimizer_ended, number)
            self._queue((step_reports.optimizer_ended, monotonic_ns(), number))
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
            self._check_claim()
            SESSION.settle_claim(asked=bool(self._claimed))
            self._event_log.close(monotonic_ns(), recording=SESSION.on)
            DEVICE_RECORDER.close()
            TRANSFORM_TIMER.flush()
            PROFILER_TRACE.give_up()
            SESSION.close()


RANK_RECORDER = RankRecorder()
os.register_at_fork(after_in_child=RANK_RECORDER.forked)
