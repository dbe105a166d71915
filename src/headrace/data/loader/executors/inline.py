"""The executor that makes batches in the training process, on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.data.loader.batch_builder import (
    BatchBuilder,
    BatchSpec,
    IterableExhausted,
    LoaderSpec,
)
from headrace.data.loader.executors.base import BuiltBatch
from headrace.data.loader.failures import BatchFailure, sample_at
from headrace.data.loader.library_state import (
    generator_states,
    preserve_generators,
    seed_generators,
    set_generator_states,
)
from headrace.data.loader.serialization import decode_batch
from headrace.data.loader.workers.shared_memory import PlainArena


class SingleBatchExecutor:
    """The base of executors without workers of ours, which take one batch spec at a time."""

    workers = 0

    def __init__(self) -> None:
        self._batch_specs: deque[BatchSpec] = deque()
        self._next_batch = 0

    def start(self, loader_spec: LoaderSpec) -> None:
        """Prepare for an iteration."""
        self._loader_spec = loader_spec
        self._batch_specs.clear()
        self._next_batch = 0

    def has_room(self) -> bool:
        """Return whether another batch spec can be submitted now."""
        return not self._batch_specs

    def submit(self, spec: BatchSpec) -> None:
        """Take the spec of the next batch."""
        self._batch_specs.append(spec)

    def finish(self) -> None:
        """Drop unfinished batches."""
        self._batch_specs.clear()


class InlineExecutor(SingleBatchExecutor):
    """`num_workers=0`: no process, no prefetching; the model's random generators are preserved."""

    usable = True

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def start(self, loader_spec: LoaderSpec) -> None:
        """Prepare for an iteration."""
        super().start(loader_spec)
        self._done = 0
        self._builder = BatchBuilder(loader_spec, self._note_progress)
        with preserve_generators():
            seed_generators(loader_spec.worker_seed(0))
            self._states = generator_states()  # an iterable dataset continues with these

    def next_made(
        self,
        timeout_s: float,  # noqa: ARG002 - inline work waits for nobody
        on_room: Callable[[], None],  # noqa: ARG002
    ) -> BuiltBatch:
        """Make and return the next batch; raises as in `Executor`."""
        spec = self._batch_specs.popleft()
        arena = PlainArena()
        batch = self._next_batch
        self._next_batch += 1
        try:
            with preserve_generators():
                set_generator_states(self._states)
                structure = self._builder.make(spec, arena)
                if self._loader_spec.iterable:
                    self._states = generator_states()
        except IterableExhausted:
            return BuiltBatch(batch=batch, exhausted=True)
        except Exception as error:
            index = sample_at(spec.indices, self._done)
            failure = BatchFailure.of(error, self._loader_spec.dataset, index)
            raise failure.in_caller(f"rank {self._rank}, inline") from error
        content, bad, samples = decode_batch(structure, arena.value)
        return BuiltBatch(batch=batch, content=content, bad=tuple(bad), samples=samples)

    def close(self) -> None:
        """Nothing to end."""

    def _note_progress(self, samples_done: int) -> None:
        self._done = samples_done
