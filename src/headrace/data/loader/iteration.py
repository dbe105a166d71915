"""One iteration over a loader: batch specs, batches in order, copies to the device, statistics.

Batch specs come from a plan, a given sampler or an iterable dataset, and count how far it is.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import KW_ONLY, asdict, dataclass
from itertools import count
from typing import Any, Protocol

import torch

from headrace.core.errors import CheckpointError, LoaderError, WorkerError
from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.data.loader.batch_builder import BatchSpec
from headrace.data.loader.executors.base import BuiltBatch, Executor
from headrace.data.loader.quarantine import BadSampleBudget
from headrace.sampling.plan import Plan, PlanState
from headrace.sampling.seeds import batch_seed


class BatchSpecs(Protocol):
    """The batches of one epoch, from where it is resumed."""

    @property
    def world(self) -> int:
        """The world size."""

    def __iter__(self) -> Iterator[BatchSpec]:
        """Iterate over the specs of the batches still to be delivered."""

    def position_after(self, delivered: int) -> int:
        """Return the epoch's position after `delivered` batches: all that resuming needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBatchSpecs:
    """The plan's batches for one rank; a position counts samples over all ranks."""

    plan: Plan  # of the epoch, from the position where it is resumed
    rank: int
    world: int  # the world size
    single: bool = False  # each batch is one uncollated sample

    @property
    def left_out(self) -> int:
        """Samples that the last batch would hold beside one of each rank: single ones hold no two.

        Other batches take the tail that is smaller than the world size in.
        """
        if not self.single or not self.plan.num_batches(self.world):
            return 0
        return (self.plan.num_samples - self.plan.start) % self.world

    def __iter__(self) -> Iterator[BatchSpec]:
        """Iterate over the specs of this rank's part of each global batch."""
        first_batch = self.plan.start // self.plan.global_batch
        for number in range(self.plan.num_batches(self.world)):
            samples = self.plan.batch(number, self.rank, self.world).tolist()
            if self.single:
                del samples[1:]
            yield BatchSpec(
                draws=(first_batch + number) * self.world + self.rank,
                epoch=self.plan.epoch,
                indices=samples,
                seed_ids=samples,
                single=self.single,
            )

    def position_after(self, delivered: int) -> int:
        """Return the global position after `delivered` batches."""
        return self.plan.position_after(delivered - 1, self.world) if delivered else self.plan.start


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerBatchSpecs:
    """The batches of a given sampler, unchanged; a position counts this rank's batches."""

    batches: Iterable[Any]  # lists of indices; single ones where `single`
    epoch: int
    start: int = 0  # batches delivered before, which are skipped by their indices
    single: bool = False  # each batch is one uncollated sample
    rank: int = 0  # samplers of different ranks draw differently
    world: int = 1

    def __iter__(self) -> Iterator[BatchSpec]:
        """Iterate over the sampler's batches; a sample's seed derives from its place among them."""
        place = 0
        for number, batch in enumerate(self.batches):
            indices = [batch] if self.single else list(batch)
            places = range(place, place + len(indices))
            place += len(indices)
            if number >= self.start:
                yield BatchSpec(
                    draws=number * self.world + self.rank,
                    epoch=self.epoch,
                    indices=indices,
                    seed_ids=[each * self.world + self.rank for each in places],
                    single=self.single,
                )

    def position_after(self, delivered: int) -> int:
        """Return the number of the sampler's batches that are delivered."""
        return self.start + delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class IterableBatchSpecs:
    """The batch specs of an iterable dataset, which itself decides what comes next."""

    epoch: int
    start: int = 0  # batches delivered before, which are made again and skipped
    rank: int = 0
    world: int = 1

    def __iter__(self) -> Iterator[BatchSpec]:
        """Iterate without end; the stream ends when every worker is exhausted."""
        for number in count():
            yield BatchSpec(draws=number * self.world + self.rank, epoch=self.epoch)

    def position_after(self, delivered: int) -> int:
        """Return the number of batches that are delivered."""
        return self.start + delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCount:
    """The position in an epoch of a given sampler or of an iterable dataset."""

    epoch: int
    position: int  # how many of this rank's batches were delivered
    seed: int
    world: int
    batch_size: int  # on this rank
    workers: int  # that share an iterable dataset; 0 for a sampler
    shuffled: int = 0  # window in which a Ray Dataset is shuffled, in samples; 0: it is not

    def check_same(self, loader: BatchCount) -> None:
        """Raise CheckpointError unless a loader counts in the same batches."""
        names = {
            "world": "rank(s)",
            "batch_size": "sample(s) a batch",
            "workers": "worker(s)",
            "shuffled": "sample(s) shuffled together",
        }
        changed = [name for name in names if getattr(self, name) != getattr(loader, name)]
        if changed:
            was, now = (
                ", ".join(f"{getattr(count, name)} {names[name]}" for name in changed)
                for count in (self, loader)
            )
            raise CheckpointError(
                f"This state was taken with {was}, and the loader has {now}. The place of a given "
                "sampler, or of an iterable dataset, is a number of batches, which are others "
                "then. Make the loader as it was; a map-style dataset without a sampler goes on "
                "at any of these."
            )


LoaderState = PlanState | BatchCount


def state_to_dict(state: LoaderState) -> dict[str, Any]:
    """Return the state as plain numbers and strings."""
    if isinstance(state, PlanState):
        return {"kind": "plan", **state.to_dict()}
    return {"kind": "batches", **asdict(state)}


def state_from_dict(entries: Mapping[str, Any], *, planned: bool) -> LoaderState:
    """Return the state that `state_to_dict` wrote, of the same kind; raises CheckpointError."""
    if not isinstance(entries, Mapping):
        raise CheckpointError(
            f"A loader's state is a dict, as state_dict() gives it; this is a "
            f"{type(entries).__name__}."
        )
    rest = dict(entries)
    kind = rest.pop("kind", None)
    if kind != ("plan" if planned else "batches"):
        has = "no sampler of its own" if planned else "its own sampler or an iterable dataset"
        raise CheckpointError(
            f"This state is of kind {kind!r}, but the loader has {has}. Make the loader with the "
            f"arguments of the run that saved the state."
        )
    if kind == "plan":
        return PlanState.from_dict(rest)
    try:
        state = BatchCount(**{name: operator.index(value) for name, value in rest.items()})
    except TypeError as error:
        raise CheckpointError(f"This is no state of a loader: {error}.") from None
    if min(state.epoch, state.position) < 0:
        raise CheckpointError(
            f"This is no state of a loader: epoch {state.epoch} and position {state.position} are "
            "0 or more."
        )
    return state


@dataclass(slots=True, kw_only=True)
class LoaderStats:
    """Counts and times of one loader, since it was made or since `reset`.

    Attributes:
        batches: Batches delivered.
        samples: Samples in them, on this rank.
        wait_ns: Time the script spent in `iter(loader)` and waiting for batches, in nanoseconds:
            the data wait. In the first epoch workers start in it.
        elapsed_ns: Time from `iter(loader)` to the end of the last step, summed over iterations,
            in nanoseconds: data wait and everything else.
        first_batch_ns: The newest iteration's time from `iter(loader)` to the first batch.
    """

    batches: int = 0
    samples: int = 0
    wait_ns: int = 0
    elapsed_ns: int = 0
    first_batch_ns: int = 0

    @property
    def data_wait_share(self) -> float:
        """Data wait / step time, 0 to 1; 0 before anything was measured."""
        return self.wait_ns / self.elapsed_ns if self.elapsed_ns else 0.0

    def reset(self) -> None:
        """Set all counts to zero, at the start of an epoch for example."""
        self.batches = self.samples = self.wait_ns = self.elapsed_ns = self.first_batch_ns = 0


def map_tensors(
    batch: Any,
    change: Callable[[torch.Tensor], Any],
    has_own: Callable[[type], object],
    own: Callable[[Any], Any] = lambda part: part,
) -> Any:
    """Return `batch` with every tensor in its dicts, lists and tuples replaced by `change(it)`.

    An object of a class that `has_own` accepts is replaced by `own(it)`, whatever it holds. Other
    objects stay the same.
    """
    inner = functools.partial(map_tensors, change=change, has_own=has_own, own=own)
    match batch:
        case torch.Tensor():
            return change(batch)
        case _ if has_own(type(batch)):
            return own(batch)
        case MutableMapping():
            changed = copy.copy(batch)  # of the same class: an OrderedDict, a UserDict, ...
            changed.update({name: inner(value) for name, value in batch.items()})
            return changed
        case tuple() if hasattr(batch, "_fields"):
            return type(batch)(*map(inner, batch))
        case list() | tuple():
            return type(batch)(map(inner, batch))
        case _:
            return batch


def pins_itself(kind: type) -> bool:
    """Return whether objects of a class have a `pin_memory()` of their own, as torch looks for."""
    return callable(getattr(kind, "pin_memory", None)) and not issubclass(kind, torch.nn.Module)


@functools.lru_cache(maxsize=256)
def _to_options(kind: type) -> Mapping[str, bool] | None:
    """Return what the `to(device)` of a class takes for a copy that need not be waited for.

    None: it has none; a `to` may also convert units, or times.
    """
    method = getattr(kind, "to", None)
    if not callable(method) or issubclass(kind, torch.nn.Module):
        return None
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return None
    given = [*parameters.values()][1:]  # without self
    is_any = bool(given) and given[0].kind is inspect.Parameter.VAR_POSITIONAL
    if not is_any and (not given or given[0].kind is inspect.Parameter.KEYWORD_ONLY):
        return None
    if not is_any and given[0].name != "device" and "non_blocking" not in parameters:
        return None
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in given)
    return {"non_blocking": True} if takes_all or "non_blocking" in parameters else {}


def moves_itself(kind: type) -> bool:
    """Return whether objects of a class have a `to(device)` of their own, as PackedSequence has."""
    return _to_options(kind) is not None


def _or_itself(changed: Any, part: Any) -> Any:
    """Return what an object's own method gave; the object where it has changed that itself."""
    return part if changed is None else changed


def _pinned(batch: Any) -> Any:
    return map_tensors(
        batch,
        lambda tensor: tensor.pin_memory(),
        pins_itself,
        lambda part: _or_itself(part.pin_memory(), part),
    )


class DeviceTransfer:
    """Copies batches to a device and applies the transform there.

    On CUDA a batch is copied into pinned memory and from there on a side stream, so that the copy
    overlaps with the current step; the consuming stream waits on the device, the host never does.
    Objects with methods `pin_memory()` or `to(device)` of their own are pinned and moved by these.

    Args:
        device: Where batches go; None leaves them where they are. "cuda" without a number is the
            current device when the first batch comes, as in torch.
        transform: Called with the batch on its device; draws from torch's global generators, which
            are seeded by (seed, epoch, batch, rank) for it and put back afterwards.
        pin_memory: Without a device: leave tensors in pinned memory, where there is CUDA.
    """

    def __init__(
        self,
        device: torch.device | str | None,
        transform: Callable[[Any], Any] | None,
        *,
        pin_memory: bool = False,
    ) -> None:
        self._device = torch.device(device) if device is not None else None
        self._pins = pin_memory and torch.cuda.is_available()
        self._transform = transform
        self._stream: torch.cuda.Stream | None = None  # from the first batch on, for CUDA
        # Pinned sources of copies that may be unfinished, with the event that ends each.
        self._under_way: deque[tuple[torch.cuda.Event, Any]] = deque()

    def __call__(self, batch: Any, seed: int) -> Any:
        """Return a batch on its device, transformed with generators of that seed."""
        if self._device is not None and self._device.type == "cuda":
            batch = self._copy_on_side_stream(batch, self._stream or self._begun(self._device))
        elif self._device is not None:
            batch = map_tensors(
                batch,
                lambda tensor: tensor.to(self._device),
                moves_itself,
                lambda part: _or_itself(part.to(self._device), part),
            )
        elif self._pins:
            batch = _pinned(batch)
        if self._transform is None:
            return batch
        on_cuda = self._device if self._stream is not None else None
        with torch.random.fork_rng(devices=[on_cuda] if on_cuda is not None else []):
            # Not torch.manual_seed: it would seed every accelerator, and fork_rng restores one.
            torch.default_generator.manual_seed(seed)
            if on_cuda is not None:
                torch.cuda.default_generators[on_cuda.index or 0].manual_seed(seed)
            return self._transform(batch)

    def _begun(self, device: torch.device) -> torch.cuda.Stream:
        """Fix the device number now: a script may choose its device after it made its loader."""
        number = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device(device.type, number)
        self._stream = torch.cuda.Stream(self._device)
        return self._stream

    def _copy_on_side_stream(self, batch: Any, stream: torch.cuda.Stream) -> Any:
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        pinned = _pinned(batch)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(stream):
            moved = map_tensors(
                pinned,
                lambda tensor: tensor.to(self._device, non_blocking=True),
                moves_itself,
                lambda part: self._moved_itself(part, current),
            )
            event = torch.cuda.Event()
            event.record(stream)
        self._under_way.append((event, pinned))
        current.wait_event(event)
        # The caching allocator must not reuse this memory while the step's stream reads it.
        map_tensors(moved, lambda tensor: tensor.record_stream(current), moves_itself)
        return moved

    def _moved_itself(self, part: Any, current: torch.cuda.Stream) -> Any:
        """Move an object by its own method, on the step's stream: its tensors are not known."""
        kind: type = type(part)
        with torch.cuda.stream(current):
            return _or_itself(part.to(self._device, **(_to_options(kind) or {})), part)


@dataclass(slots=True)
class IterationProgress:
    """The progress of an iteration; it outlives the iteration."""

    specs: BatchSpecs
    delivered: int = 0  # batches that the script has received
    samples: int = 0  # in them
    finished: bool = False  # the script has received StopIteration

    def position(self) -> int:
        """Return the epoch's position after the batches delivered so far."""
        return self.specs.position_after(self.delivered)

    def seen_with(self, samples: int) -> int:
        """Return about how many samples all ranks have received after one more batch."""
        if isinstance(self.specs, PlanBatchSpecs):
            return self.specs.position_after(self.delivered + 1)
        return (self.samples + samples) * self.specs.world


@dataclass(eq=False, repr=False)
class BatchStream(Iterator[Any]):
    """Submits batch specs ahead, returns batches in order, and counts those delivered.

    Attributes:
        batch_samples: Samples in the batch delivered last.
    """

    progress: IterationProgress
    executor: Executor
    _: KW_ONLY
    seed: int
    feed: DeviceTransfer
    budget: BadSampleBudget
    stats: LoaderStats
    timeout_s: float
    on_end: Callable[[], None]
    is_taken: Callable[[], bool]
    began_ns: int  # by the monotonic clock
    survives_errors: bool = False  # the script may go on with the next batch

    def __post_init__(self) -> None:
        self._ended = False
        self.batch_samples = self._order_ns = 0
        self._upcoming: Iterator[BatchSpec] = iter(self.progress.specs)
        self._all_submitted = False
        self._in_flight: list[BatchSpec] = []
        self._working = set(range(max(self.executor.workers, 1)))
        # An iterable dataset has no start position: delivered batches are made again.
        specs = self.progress.specs
        self._to_skip = specs.start if isinstance(specs, IterableBatchSpecs) else 0
        self.stats.first_batch_ns = 0
        self._give_out()
        # The script has waited since `iter(loader)`; in the first epoch for workers to start.
        self._stepped_ns = self.began_ns
        self._account(self.began_ns)

    def __next__(self) -> Any:
        """Return the next batch; raises workers' errors, LoaderTimeoutError, StopIteration."""
        observer = LOADER_HOOKS.loaders
        if observer is None:
            return self._next()
        began = observer.fetch_began(self)
        if began is None:
            return observer.next_unrecorded(self, self._next)
        try:
            batch = self._next()
        except BaseException as error:
            observer.fetch_raised(self, began, error)
            raise
        observer.fetch_ended(self, began, batch)
        return batch

    def _next(self) -> Any:
        if self._ended:
            raise StopIteration
        if self.is_taken():
            self._ended = True  # the executor works for the other iteration
            raise LoaderError(
                "Another iteration has taken the executor of this one. Give each loader that is "
                "iterated over meanwhile an executor of its own."
            )
        start_ns = time.monotonic_ns()
        try:
            batch = self._next_batch()
        except BaseException as error:
            if not (self.survives_errors and isinstance(error, WorkerError)):
                self.end()
            raise
        finally:
            self._account(start_ns)
        self.stats.batches += 1
        if not self.stats.first_batch_ns:
            self.stats.first_batch_ns = self._stepped_ns - self.began_ns
        return batch

    def _next_batch(self) -> Any:
        self._give_out()
        while self._in_flight:
            try:
                built = self.executor.next_made(self.timeout_s, self._give_out)
            except WorkerError:
                self._in_flight.pop(0)
                raise
            spec = self._in_flight.pop(0)
            if built.exhausted:  # a worker of an iterable dataset has no more batches
                self._working.discard(built.batch % max(self.executor.workers, 1))
            elif self._to_skip:
                self._to_skip -= 1
            else:
                return self._deliver(spec, built)
            self._give_out()
        if self._working and not self._all_submitted:
            raise LoaderError(
                "No batch can be ordered: the executor has no room although none is under way."
            )
        self.budget.check(self.progress.delivered)
        self.progress.finished = True
        raise StopIteration

    def _deliver(self, spec: BatchSpec, built: BuiltBatch) -> Any:
        number = self.progress.delivered
        self.budget.check(number)
        try:
            batch = self.feed(built.content, batch_seed(self.seed, spec.epoch, spec.draws))
        except StopIteration as error:  # a `for` loop would end silently
            raise RuntimeError("The device_transform raised StopIteration.") from error
        if built.bad:  # before the count: if it raises, the batch was not delivered
            self.budget.note(built.bad, number, self.progress.seen_with(built.samples))
        self.progress.delivered += 1
        self.batch_samples = built.samples
        self.progress.samples += built.samples
        self.stats.samples += built.samples
        return batch

    def _give_out(self) -> None:
        while self._working and self.executor.has_room():
            began_ns = time.monotonic_ns()
            spec = next(self._upcoming, None)
            self._order_ns += time.monotonic_ns() - began_ns
            if spec is None:
                self._all_submitted = True
                return
            self.executor.submit(spec)
            self._in_flight.append(spec)

    def take_order_ns(self) -> int:
        """Return the time spent in the plan or sampler since the last call, in nanoseconds."""
        spent, self._order_ns = self._order_ns, 0
        return spent

    def _account(self, start_ns: int) -> None:
        now_ns = time.monotonic_ns()
        self.stats.wait_ns += now_ns - start_ns
        self.stats.elapsed_ns += now_ns - self._stepped_ns
        self._stepped_ns = now_ns

    def end(self) -> None:
        """Stop submitting, and free the executor for another iteration."""
        if not self._ended:
            self._ended = True
            if not self.is_taken():
                self.on_end()

    def __del__(self) -> None:
        """End a stream that a loop left with `break`."""
        self.end()
