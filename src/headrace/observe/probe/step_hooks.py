"""The hooks that run at each training step: `next` of loaders' iterators, backward, optimizers.

Between two steps their code leaves the processor's caches, and then each of Python's instructions
takes about 0.1 us. So where a step goes as the one before it (see `RankRecorder.fast_thread`), they
queue their reports here, by few instructions and few calls; else the rank's recorder does. So it
does wherever torch was built for accelerators, whose own clock it asks at each step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any

from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.gradient_sync import GRADIENT_SYNC
from headrace.observe.probe.iterator_state import (
    indexed_samples,
    prepare_class,
    stream_samples,
)
from headrace.observe.probe.loaders import LOADER_OF_THREAD
from headrace.observe.probe.rank_recorder import (
    MAX_STEPS_WITHOUT_FETCH,
    FetchBegan,
    RankRecorder,
)
from headrace.observe.probe.recording_session import SESSION
from headrace.observe.probe.report_queue import MAX_QUEUED_REPORTS
from headrace.observe.probe.step_reports import (
    BACKWARD_BEGAN,
    BACKWARD_ENDED,
    fetch_began,
    fetch_ended,
    optimizer_began,
    optimizer_ended,
)

_Next = Callable[[Any], Any]


def hook_next(recorder: RankRecorder, iterator_class: Any) -> None:
    """Record the requests for batches of a class of iterators."""
    prepare_class(iterator_class)
    original = iterator_class.__next__
    unrecorded = _unrecorded_next(recorder, original)
    iterator_class.__next__ = _new_next(recorder, original, unrecorded)
    if "next" in vars(iterator_class):
        iterator_class.next = iterator_class.__next__


def _new_next(recorder: RankRecorder, original: _Next, unrecorded: _Next) -> _Next:
    """Return an iterator's `__next__` that is recorded."""
    waiting, grad_is_on = recorder.waiting, recorder.grad_is_on
    queue = waiting.append

    @functools.wraps(original)
    @skipped_by_warnings
    def __next__(self: Any) -> Any:  # noqa: N807 - replaces that method
        try:
            thread, state = get_ident(), recorder.fast_state
            is_fast = (
                recorder.fast_thread == thread and self._headrace_state is state
                and not recorder.is_fetching and SESSION.switch_mode[0]
                and len(waiting) <= MAX_QUEUED_REPORTS
            )  # fmt: skip
            if is_fast:
                follows_step, recorder.unfetched_steps = recorder.unfetched_steps > 0, 0
                ready = state.ready(self)
                began_ns = monotonic_ns()
                # After a step gradients matter only if none follows: asked below, at a lower cost.
                queue((fetch_began, began_ns, state.loader, follows_step or grad_is_on()))
                began: FetchBegan | None = (began_ns, ready, state, follows_step)
                recorder.is_fetching = True  # set last: a signal may raise an error until here
            else:
                began = recorder.fetch_began(self)
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("fetch_began", error)
            began = None
        if began is None:  # a part of another request, of another thread, or not recorded
            return unrecorded(self)
        try:
            batch = original(self)
        except BaseException as error:
            recorder.fetch_raised(self, began, error)
            raise
        if not is_fast or recorder.fast_thread != thread:
            recorder.fetch_ended(self, began, batch)
            return batch
        try:
            ended_ns = monotonic_ns()
            recorder.is_fetching = False
            reads: Any = state.sampler  # not None where it is the fast path's
            sampler_ns, reads.spent_ns = reads.spent_ns, 0
            if reads.is_numbered:
                samples = reads.sizes.pop(self._rcvd_idx - 1, 0)
                samples = samples or indexed_samples(self, reads, batch)
            else:
                samples = stream_samples(reads, batch)
            number, read_ns = state.fetches, state.read_ns
            queue((
                fetch_ended, ended_ns, samples, False, not follows_step or grad_is_on(), began_ns,
                state.loader, state.epoch, number, ready, read_ns, state.read_cpu_ns, sampler_ns,
            ))  # fmt: skip
            state.fetches = number + 1
            if read_ns > 0:
                state.read_ns = state.read_cpu_ns = 0
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("fetch_ended", error)
        return batch

    return __next__


def _unrecorded_next(recorder: RankRecorder, original: _Next) -> _Next:
    """Return what an iterator's `__next__` does where its request is not recorded."""

    @skipped_by_warnings
    def unrecorded(iterator: Any) -> Any:
        return next_unrecorded(recorder, iterator, original)

    return unrecorded


@skipped_by_warnings
def next_unrecorded(recorder: RankRecorder, iterator: Any, original: _Next) -> Any:
    """Return an iterator's next batch, whose request is not recorded; another thread may have it.

    Args:
        recorder: The rank's.
        iterator: Of a loader.
        original: Returns the batch.
    """
    if not recorder.is_other_thread():
        return original(iterator)
    state = iterator._headrace_state  # noqa: SLF001 - see iterator_state
    is_known = state is not None and state.loader >= 0
    token = LOADER_OF_THREAD.set(state.loader if is_known else LOADER_OF_THREAD.get())
    try:
        batch = original(iterator)
    finally:
        LOADER_OF_THREAD.reset(token)
    recorder.on_unrecorded_batch(iterator, batch)
    return batch


def hook_backward(recorder: RankRecorder, torch: Any) -> None:
    """Record the calls of torch's backward."""
    original = torch.autograd.backward
    queue = recorder.waiting.append

    @functools.wraps(original)
    @skipped_by_warnings
    def backward(*args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        is_fast = recorder.fast_thread == thread and not recorder.backwards
        try:
            if is_fast:  # in the block, as a signal may raise in it
                recorder.backwards = 1
                queue((BACKWARD_BEGAN, monotonic_ns()))
            else:
                recorder.backward_began()
            return original(*args, **kwargs)
        finally:
            if is_fast and recorder.fast_thread == thread and not GRADIENT_SYNC.any:
                ended_ns = monotonic_ns()
                recorder.backwards = 0  # before the report: a signal may raise an error here
                queue((BACKWARD_ENDED, ended_ns))
            else:
                recorder.backward_ended()

    torch.autograd.backward = backward


def hook_optimizers(recorder: RankRecorder, torch: Any, module: Any) -> None:
    """Record the steps of all optimizers; `module` is torch's of them."""
    queue = recorder.waiting.append
    began_by_recorder = _outside_graphs(torch, recorder.optimizer_began)
    ended_by_recorder = _outside_graphs(torch, recorder.optimizer_ended)
    # Not `is_compiling`, which calls two functions more.
    is_compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", lambda: False)

    def began(optimizer: Any, *_: Any) -> None:
        if is_compiling():
            began_by_recorder(optimizer)
        elif recorder.fast_thread == get_ident():
            queue((optimizer_began, monotonic_ns(), id(optimizer)))
        else:
            recorder.optimizer_began(optimizer)

    def ended(optimizer: Any, *_: Any) -> None:
        if is_compiling():
            ended_by_recorder(optimizer)
        elif (
            recorder.fast_thread == get_ident()
            and recorder.unfetched_steps < MAX_STEPS_WITHOUT_FETCH
        ):
            recorder.unfetched_steps += 1
            queue((optimizer_ended, monotonic_ns(), id(optimizer)))
        else:
            recorder.optimizer_ended(optimizer)

    module.register_optimizer_step_pre_hook(began)
    module.register_optimizer_step_post_hook(ended)


def _outside_graphs(torch: Any, hook: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return an optimizer hook that torch.compile runs outside its graph.

    The step of each of torch's own optimizers breaks the graph anyway. Others may be part of a
    graph that must not break: their compiled steps are not seen.
    """

    def call_hook_outside_graph(optimizer: Any) -> None:  # torch cannot mark a method
        hook(optimizer)

    uncompiled_hook = getattr(torch, "_disable_dynamo", lambda function: function)(
        call_hook_outside_graph
    )

    def call_hook(optimizer: Any) -> None:
        if type(optimizer).__module__.startswith("torch.optim"):
            uncompiled_hook(optimizer)

    return call_hook
