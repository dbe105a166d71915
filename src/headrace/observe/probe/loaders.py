"""The loaders of a rank: their numbers, where they were constructed, their iterators.

A loader that a script constructs again, such as for each epoch, keeps its number, also where a
process of its own does so.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.source_location import CallPlace, call_places
from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.batch_samples import samples_in
from headrace.observe.probe.iterator_state import known_state, state_of
from headrace.observe.probe.loader_workers import start_method
from headrace.observe.probe.rank_loaders import RankLoaders
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.sampler_reads import (
    add_sampler_ns,
    hook_sampler_reads,
    register_sampler_reads,
)
from headrace.records.layout import RINGS
from headrace.records.schema import LIBRARY_LOADERS, LOADERS

__all__ = [
    "LOADER_OF_THREAD",
    "LOADER_REGISTRY",
    "STARTING_LOADER",
    "LoaderNumbers",
    "LoaderRegistry",
    "samples_in",
]
"""`samples_in` is where it was until batches' samples had a module: scripts may import it here."""
_OWN_REFERENCES = 4
"""References to a dataset that only its loader uses: loader, sampler, and two of the counting."""
_PLAIN = (bool, int, float, str, type(None))


class LoaderNumbers:
    """Numbers loaders in the order of their construction.

    A loader takes the number of an earlier one whose iteration has ended if the same call stack
    constructs it with the same settings and the same dataset, or with another dataset if only the
    earlier loader still refers to its own. So a loader made anew in each round counts as one, and
    those for training and evaluation, made by turns at one line, count as two.
    """

    def __init__(self) -> None:
        self._last = -1
        self._given: set[int] = set()
        self._of_rank: RankLoaders | None = None
        self._made: dict[Hashable, list[int]] = {}  # by construction; the latest comes last
        self._iterators: dict[int, list[weakref.ref[Any]]] = {}  # since each was last constructed
        self._datasets: dict[int, Callable[[], Any]] = {}

    def new(self, construction: Hashable | None = None) -> int:
        """Return an unused number, or the one that an earlier process of the rank gave it.

        Args:
            construction: Where and how the loader is constructed; None: not known.
        """
        number = self._number_in_rank(construction)
        if number is None:  # nothing is recorded, or the file cannot be had
            number = self._last + 1
        self._last = max(self._last, number)
        self._given.add(number)
        return number

    @guarded
    def _number_in_rank(self, construction: Hashable | None) -> int | None:
        if SESSION.role != "rank":
            return None
        path = SESSION.folder / RINGS / f"rank-{SESSION.rank}.loaders"
        if self._of_rank is None or self._of_rank.path != path:
            self._of_rank = RankLoaders(path)
        with suppress(OSError):  # no room, or the folder is gone
            return self._of_rank.new(construction, self._given, self._last + 1)
        return None

    def constructed(self, arguments: Sequence[tuple[int | str, Any]]) -> int:
        """Return the number of a loader that is being constructed.

        Args:
            arguments: The constructor's, by position or name; the dataset is at position 0.
        """
        dataset = next((value for name, value in arguments if name in (0, "dataset")), None)
        construction = (_construction_stack(), _settings_of(arguments))
        numbers = self._made.setdefault(construction, [])
        unused = [number for number in numbers if self._is_over(number)]
        reusable = [number for number in unused if self._datasets[number]() is dataset]
        reusable += [number for number in unused if self._is_dataset_gone(number)]
        number = reusable[0] if reusable else self.new(construction)
        if reusable:
            numbers.remove(number)
            del self._iterators[number]
        numbers.append(number)
        self._datasets[number] = _weak_reference(dataset)
        return number

    def iterated(self, number: int, iterator: Any) -> None:
        """Register an iterator of a loader."""
        known = self._iterators.get(number, ())
        alive = [ref for ref in known if ref() is not None and ref() is not iterator]
        self._iterators[number] = [*alive, weakref.ref(iterator)]

    def is_iterated(self, number: int) -> bool:
        """Return whether a loader was iterated since its construction, if only for one batch."""
        return number in self._iterators

    def _is_over(self, number: int) -> bool:
        """Return whether a loader was iterated since its construction, and no iterator is left."""
        known = self._iterators.get(number)
        return known is not None and all(ref() is None for ref in known)

    def _is_dataset_gone(self, number: int) -> bool:
        """Return whether a loader's dataset is gone, or would go with the loader."""
        dataset = self._datasets[number]()
        return dataset is None or sys.getrefcount(dataset) <= _OWN_REFERENCES


def _weak_reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # such as a list
        return lambda: None


def _construction_stack() -> Hashable:
    """Return file and line of each frame that led here, innermost first."""
    found, frame = [], sys._getframe(1).f_back  # noqa: SLF001 - inspect.stack reads source files
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _settings_of(arguments: Sequence[tuple[int | str, Any]]) -> Hashable:
    """Return the settings among arguments, and the type names of all others."""
    return tuple(
        (name, value if type(value) in _PLAIN else _type_name(value)) for name, value in arguments
    )


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _has_settings_of(loader: Any, other: Any) -> bool:
    """Return whether a loader has the settings that a copy of another one takes over.

    A copy may have another sampler, or the other's batch size by a batch sampler.
    """
    sizes = {_batch_size_of(loader), _batch_size_of(other)} - {None}
    return (
        getattr(loader, "collate_fn", None) is getattr(other, "collate_fn", None)
        and getattr(loader, "num_workers", None) == getattr(other, "num_workers", None)
        and len(sizes) <= 1
    )


def _batch_size_of(loader: Any) -> int | None:
    """Return a loader's batch size, or that of its batch sampler; None where neither has one."""
    for each in (loader, getattr(loader, "batch_sampler", None)):
        size = getattr(each, "batch_size", None)
        if isinstance(size, int):
            return size
    return None


_NUMBER_ATTRIBUTE = "_headrace_loader"  # attribute of loaders
_Place = tuple[CallPlace, CallPlace, int]
"""The script's line, the library's within it, and time in ns: where and when it was constructed."""
_UNKNOWN_NUMBER = -1


class _Number(int):
    """A loader's number, as its attribute: of use in the process alone that constructed it.

    A loader may be pickled, into a file or for another process, where its number is another one's.

    Attributes:
        place: Where it was constructed, if it is not recorded yet.
    """

    place: _Place | None = None

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (_UNKNOWN_NUMBER,)

    def __deepcopy__(self, _known: dict[int, Any]) -> _Number:
        return self


def _known_number(loader: Any) -> int:
    """Return the number that a loader has in this process; -1 if it has none."""
    return int(getattr(loader, "__dict__", {}).get(_NUMBER_ATTRIBUTE, _UNKNOWN_NUMBER))


def _take_place(loader: Any) -> _Place | None:
    """Return where a loader that is not recorded yet was constructed; None from then on."""
    number = getattr(loader, "__dict__", {}).get(_NUMBER_ATTRIBUTE)
    if not isinstance(number, _Number):
        return None
    place, number.place = number.place, None
    return place


STARTING_LOADER: ContextVar[int] = ContextVar("headrace_starting", default=-1)
"""The loader whose workers this thread is starting; in a worker, the one it works for."""
LOADER_OF_THREAD: ContextVar[int] = ContextVar("headrace_thread_loader", default=-1)
"""The loader that this thread asks for a batch beside the one that trains; -1: none."""
_IS_ITERATING: ContextVar[bool] = ContextVar("headrace_iterating", default=False)
"""Whether this thread is making an iterator, which may take seconds: others may do so meanwhile."""


class LoaderRegistry:
    """The loaders of this rank, numbered as they are constructed: see LoaderNumbers.

    Attributes:
        on_iterator: Called with a loader's number and True before an iterator is made, and with
            False afterwards; workers may start in between.
        asked: The loader that the last batch was requested from; -1 before the first.
        counted_outside: Loaders whose batches are counted where a library hands them on.
    """

    def __init__(self) -> None:
        self._numbers = LoaderNumbers()
        self._epochs: dict[int, int] = {}  # iterations of each loader
        # Loaders at a line of the script's, and that line; the latest comes last.
        self._script_loaders: list[tuple[Callable[[], Any], CallPlace]] = []
        self.counted_outside: set[int] = set()
        self.asked = -1
        self.on_iterator: Callable[[int, bool], None] = lambda _loader, _begins: None

    def hook_torch(self, module: ModuleType) -> None:
        """Hook torch's DataLoader and its iterators."""
        self.hook_class(module.DataLoader)
        self._hook_setattr(module.DataLoader)
        iterator_class = module._BaseDataLoaderIter  # noqa: SLF001 - base of all torch iterators
        original = iterator_class.__init__

        @functools.wraps(original)
        @skipped_by_warnings
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            # Set for good: a subclass starts its workers once this has returned.
            STARTING_LOADER.set(self.number_of_loader(loader))
            began_ns = monotonic_ns()
            original(iterator, loader, *args, **kwargs)
            spent_ns = monotonic_ns() - began_ns  # mostly in `iter(sampler)`
            _register_iterator(iterator, loader)
            add_sampler_ns(iterator, spent_ns)

        iterator_class.__init__ = __init__
        hook_sampler_reads(module)

    def hook_class(self, loader_class: Any) -> None:
        """Hook what a class of loaders defines itself: its construction and its iterators."""
        own = vars(loader_class)
        for name in ("__iter__", "_get_iterator"):
            if name in own:
                setattr(loader_class, name, self._iterating(own[name]))
        original = loader_class.__init__
        if "__init__" not in own:
            return

        @functools.wraps(original)
        @skipped_by_warnings
        def construct(loader: Any, *args: Any, **kwargs: Any) -> None:
            self._construct(_describe_torch, original, loader, args, kwargs)

        loader_class.__init__ = construct

    def _iterating(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        @skipped_by_warnings
        def iterate(loader: Any) -> Any:
            return self.iterate(original, loader)

        return iterate

    def _hook_setattr(self, loader_class: Any) -> None:
        """Note where loaders are constructed that never call DataLoader.__init__.

        Every constructor sets the loader's dataset, by torch's own `__setattr__`.
        """
        original = loader_class.__setattr__

        @functools.wraps(original)
        @skipped_by_warnings
        def __setattr__(loader: Any, name: str, value: Any) -> None:  # noqa: N807
            original(loader, name, value)
            if name == "dataset":
                self._note_dataset(loader, value)

        loader_class.__setattr__ = __setattr__

    @guarded
    def _note_dataset(self, loader: Any, dataset: Any) -> None:
        if SESSION.role == "rank" and _known_number(loader) < 0:
            found = self._numbers.constructed([("dataset", dataset), ("kind", type(loader))])
            number = loader.__dict__[_NUMBER_ATTRIBUTE] = _Number(found)
            script, library = call_places(loader)
            if not library.file:  # a library's is compared once it has its settings: at first use
                self._add_script_loader(loader, script)
            number.place = (script, library, monotonic_ns())

    def number_of_loader(self, loader: Any) -> int:
        """Return a loader's number; -1 if unknown. It is recorded now if no constructor was."""
        place, number = _take_place(loader), _known_number(loader)
        if place is not None:
            _record_loader(loader, number, _describe_torch, place)
        is_torchs = "_dataset_kind" in getattr(loader, "__dict__", {})
        if number < 0 and is_torchs and SESSION.role == "rank":
            added = self._add_unpickled(loader)
            number = _UNKNOWN_NUMBER if added is None else added
        return number

    @guarded
    def _add_unpickled(self, loader: Any) -> int:
        """Number and record a loader that was constructed in another process, at a place unknown.

        Each time that a script unpickles the same at a line, it is the same loader.
        """
        description, kind = _describe_torch(loader), type(loader).__qualname__
        number = self._numbers.constructed(
            [("dataset", loader.dataset), ("kind", kind), ("description", repr(description))]
        )
        loader.__dict__[_NUMBER_ATTRIBUTE] = _Number(number)
        _record_description(number, description, (CallPlace(), CallPlace(), monotonic_ns()))
        return number

    @skipped_by_warnings
    def construct_own(
        self, construct: Callable[..., None], loader: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Construct a loader of Headrace's by `construct`, and record it."""
        self._construct(_describe_own, construct, loader, args, kwargs)

    @skipped_by_warnings
    def iterate(self, begin: Callable[[Any], Any], loader: Any) -> Any:
        """Return a loader's new iterator, which `begin` returns, with the loader's number."""
        if _IS_ITERATING.get():  # `__iter__` calls `_get_iterator`, a subclass the one below it
            return begin(loader)
        number = self.number_of_loader(loader)
        self.on_iterator(number, True)
        token = _IS_ITERATING.set(True)
        try:
            with _starting_workers_of(number):
                iterator = begin(loader)
        finally:
            _IS_ITERATING.reset(token)
            self.on_iterator(number, False)
        _register_iterator(iterator, loader)
        return iterator

    def places_of(
        self, loader: Any, script: CallPlace, library: CallPlace
    ) -> tuple[CallPlace, CallPlace]:
        """Return the lines that construct a loader: the script's, and a library's.

        Trainers make another loader of the script's one, such as with another sampler, and with
        its arguments: then it is where the script constructed its own, where they can be changed.

        Args:
            loader: The loader, with all its settings.
            script: The script's line that led to its construction.
            library: The library's line within it; of no file if the script's own line made it.
        """
        if library.file:
            original = self._place_of_original(loader)
            if original is None:
                return script, library
            script = original
        self._add_script_loader(loader, script)
        return script, CallPlace()

    def _place_of_original(self, copy: Any) -> CallPlace | None:
        """Return where the script made the loader that a library's is a copy of; None if none.

        It is the latest loader of the same dataset with the same settings, else the latest that
        was not iterated. One with other settings that was iterated, as for statistics of the
        dataset, is in use itself: the library made its own of the dataset alone.
        """
        unused: CallPlace | None = None
        for reference, place in self._script_loaders[::-1]:
            loader = reference()  # what a library copies is not gone yet
            if loader is None or loader.dataset is not copy.dataset:
                continue
            if _has_settings_of(copy, loader):
                return place
            number = _known_number(loader)
            if unused is None and not self._numbers.is_iterated(number):
                unused = place
        return unused

    def _add_script_loader(self, loader: Any, place: CallPlace) -> None:
        """Add a loader that the script made, or a copy of it, of which libraries make more copies.

        By then, the first one may be gone.
        """
        alive = [each for each in self._script_loaders if each[0]() is not None]
        if all(reference() is not loader for reference, _ in alive):
            alive.append((_weak_reference(loader), place))
        self._script_loaders = alive

    def add(self, *description: float | str) -> int:
        """Record a loader whose construction no hook saw, at its first use; return its number."""
        number = self._numbers.new()
        _record_description(number, description)
        return number

    def mark(self, iterator: Any, number: int) -> None:
        """Attach a loader's number and next epoch to an iterator."""
        epoch = self._epochs.get(number, 0)
        self._epochs[number] = epoch + 1
        state_of(iterator).begin_epoch(number, epoch)
        self._numbers.iterated(number, iterator)

    @guarded
    def _number_of_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        return self._numbers.constructed([*enumerate(args), *kwargs.items()])

    @skipped_by_warnings
    def _construct(
        self, describe: Callable[[Any], tuple[Any, ...]], construct: Callable[..., None],
        loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        known, is_noted = _known_number(loader), _take_place(loader) is not None
        if known >= 0 and not is_noted:  # a subclass's constructor calls the one below it
            construct(loader, *args, **kwargs)
            return
        number = known if is_noted else self._number_of_new(args, kwargs)
        number = self._numbers.new() if number is None else number  # None if the probe failed
        if SESSION.role == "rank":
            loader.__dict__[_NUMBER_ATTRIBUTE] = _Number(number)
        with _starting_workers_of(number):  # Headrace's workers may start right now
            construct(loader, *args, **kwargs)
        _record_loader(loader, number, describe)


LOADER_REGISTRY = LoaderRegistry()


@contextmanager
def _starting_workers_of(number: int) -> Iterator[None]:
    """Let worker processes that start in the block know their loader's number."""
    token = STARTING_LOADER.set(number)
    try:
        with env.child_overrides({env.LOADER.name: str(number)}):
            yield
    finally:
        STARTING_LOADER.reset(token)


@guarded
def _record_loader(
    loader: Any,
    number: int,
    describe: Callable[[Any], tuple[Any, ...]],
    place: _Place | None = None,
) -> None:
    if SESSION.role == "rank":
        script, library, created_ns = place or (*call_places(loader), monotonic_ns())
        places = LOADER_REGISTRY.places_of(loader, script, library)
        _record_description(number, describe(loader), (*places, created_ns))


@guarded
def _record_description(
    number: int, description: tuple[Any, ...], place: _Place | None = None
) -> None:
    """Record a loader; `place`: where and when it was constructed, if not here and now."""
    SESSION.reclaim()
    # If the rank trains, this is a program that it started, with loaders of its own.
    if SESSION.is_claimed_by_another and not SESSION.stand_aside():
        return
    script, library, created_ns = place or (*call_places(), monotonic_ns())
    found = script if script.file else library
    SESSION.write(LOADERS, SESSION.rank, number, *description, found.file, found.line, created_ns)
    if library.file:
        SESSION.write(
            LIBRARY_LOADERS, SESSION.rank, number, library.file, library.line, library.function
        )


@guarded
def _register_iterator(iterator: Any, loader: Any) -> None:
    """Attach a loader's number to an iterator; a reused iterator begins its next epoch."""
    number, known = _known_number(loader), known_state(iterator)
    is_new = known is not None and known.fetches == 0
    if number < 0 or is_new or number in LOADER_REGISTRY.counted_outside:
        return
    LOADER_REGISTRY.mark(iterator, number)
    state_of(iterator).sampler = register_sampler_reads(iterator, loader)


def _describe_torch(loader: Any) -> tuple[Any, ...]:
    context = loader.multiprocessing_context
    if loader.num_workers and context is None:
        method = start_method()
    else:
        method = context.get_start_method() if context is not None else ""
    return (
        "torch",
        type(loader.dataset).__qualname__,
        "map" if loader._dataset_kind == 0 else "iterable",  # noqa: SLF001 - no public way
        loader.num_workers,
        loader.prefetch_factor or 0,
        -1 if loader.batch_size is None else loader.batch_size,
        # torch takes these for true or false, whatever they are: None, or a text.
        int(bool(loader.pin_memory)),
        int(bool(loader.persistent_workers)),
        int(bool(getattr(loader, "in_order", True))),
        method,
    )


def _describe_own(loader: Any) -> tuple[Any, ...]:
    return (
        # Which library's processes make its batches.
        "ray" if loader.is_ray_dataset else "headrace",
        type(loader.dataset).__qualname__,
        "iterable" if loader.iterable else "map",
        loader.num_workers,
        -(-loader.prefetch_batches // max(loader.num_workers, 1)),
        -1 if loader.batch_size is None else loader.batch_size,
        int(bool(loader.pin_memory)),
        1,
        1,
        "fork" if loader.num_workers else "",
    )
