"""Segments that wait for a step to take them, and those among them that are an evaluation.

A batch is trained on if a backward follows, of itself or of another loader's batch after it: two
loaders that are iterated together, fed one after the other. What an optimizer's step ends takes all
that was trained on since the step before. A loader's batches in a row that no backward follows are
an evaluation as another loader is asked, unless as many went with the step before this one.

Batches with a backward, of a loader that no step has taken any of, are an evaluation, too, such as
one under attack: where its iterator ends and another loader goes on before an optimizer steps, or
where all that its iterator has delivered came in a row since the last step.

Very many batches at once are fetched ahead if a backward for each follows, or if the next step
takes as many; else they are passed over, or an evaluation with gradients on.

Pure: nothing here knows torch, and times decide nothing, as the device's clock has others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import takewhile

from headrace.observe.probe.step_segments import RowKind, Segment, joined

_MANY = 64
"""Batches without a backward. If more are fetched at once, the step's end decides on them, and of a
loader that is known to be fetched so far ahead, only the sum of the oldest is kept."""
_MAX_UNUSED = 256  # the same, before they count as evaluation; then `_MANY`, until a step
_MAX_ACCUMULATED = 64  # batches with a backward that are kept apart, once a step has come
_MAX_UNSTEPPED = 256
"""Batches with backward before the first optimizer's step; with more, there is no optimizer that
can be seen, as where a script changes its parameters itself."""
_MAX_AHEAD = 16  # without a backward, of a loader never trained on, once another one was
_MOST_LEFT = 4  # the same, as another loader is asked before any step, or its own next iteration


@dataclass(slots=True)
class _Accumulated:
    """Batches up to one with a backward."""

    loader: int  # of the one with the backward
    segments: list[Segment]
    before: int = 0  # batches before the one with the backward, if it is open whether it used them
    is_again: bool = False  # as for the step before, of an iterator that goes on


class PendingSegments:
    """The segments of a step that has not ended; `emit` gets what is a row by itself."""

    def __init__(self, emit: Callable[[RowKind, Segment], None]) -> None:
        self._emit = emit
        self._accumulated: list[_Accumulated] = []
        self._unused: list[Segment] = []  # since the last backward
        self._run: dict[int, int] = {}  # the batches of each loader since then
        self._fetches_ahead: set[int] = set()  # loaders of very many batches before each backward
        # The most of each loader before one backward, since the last step, and before that.
        self._asked: dict[int, int] = {}
        self._asked_before: dict[int, int] = {}
        self._trained: set[int] = set()  # loaders of batches with a backward that a step has taken
        self._left: set[int] = set()  # others whose loop is over, with backwards but no step
        self._most = 1  # batches of a step so far
        self._evaluated: int | None = None  # the loader of the last batch, if it was evaluated
        self._fetched: dict[int, int] = {}  # batches of each loader's latest iterator, if seen made
        self._ended: set[int] = set()  # loaders whose last request found the iterator's end
        self._has_stepped = self._lacks_optimizer = False
        self._had_many = False  # the last step was open to take very many batches before a backward
        self._is_evaluation_long = False  # more of it than are held have been emitted

    def __len__(self) -> int:
        return len(self._unused) + sum(len(each.segments) for each in self._accumulated)

    def goes_on(self, loader: int, current: Segment | None) -> bool:
        """Return whether a new iterator goes on with its loop, as one made for each batch."""
        if self._fetched.get(loader) != 1:
            return False
        pending = (segment for each in self._accumulated for segment in each.segments)
        segments = (*pending, *self._unused, *(() if current is None else (current,)))
        return any(segment.loader == loader for segment in segments)

    def iterator_began(self, loader: int, *, goes_on: bool) -> None:
        """Note a new iterator; `goes_on`: in the same loop."""
        if not goes_on:
            self._end_iteration(loader)
            if self._run.pop(loader, 0) > _MOST_LEFT:
                self._count_evaluation({loader})  # no step has taken them
        self._fetched[loader] = 0

    def fetch_began(self, loader: int) -> None:
        """Note that a loader is asked for a batch."""
        if self._ended:
            self._ended.discard(loader)
        if self._left:
            self._left.discard(loader)

    def fetched(self, loader: int) -> None:
        """Note that it has delivered one."""
        if loader in self._fetched:
            self._fetched[loader] += 1

    def ended(self, loader: int) -> None:
        """Note that there was none: its iterator has ended."""
        self._ended.add(loader)
        for taken in self._accumulated:
            if any(each.loader == loader for each in taken.segments):
                self._left.add(taken.loader)

    def evaluate(self, segment: Segment) -> None:
        """Emit a batch that was asked for with gradients off."""
        self._emit("eval", segment)
        self._evaluated = segment.loader

    def hold(self, segment: Segment) -> None:
        """Keep a batch without a backward."""
        self._unused.append(segment)
        self._run[segment.loader] = self._run.get(segment.loader, 0) + 1

    def accumulate(self, segment: Segment) -> None:
        """Keep a batch with a backward; without an optimizer, it is a step."""
        accumulated = self._accumulated
        if accumulated and accumulated[-1].loader != segment.loader:
            self._leave(segment.loader)
        accumulated.append(self._take(segment))
        if self._lacks_optimizer:
            self._emit_each()
            return
        if self._has_stepped:
            is_trained = segment.loader in self._trained
            if len(accumulated) > (_MAX_ACCUMULATED if is_trained else _MAX_UNSTEPPED):
                _join_oldest_groups(accumulated)
        elif len(accumulated) > _MAX_UNSTEPPED:
            self._has_stepped = self._lacks_optimizer = True
            self._emit_each()

    def step(self, segment: Segment) -> None:
        """Emit a step, which ends with a segment."""
        if segment.loader not in self._trained and segment.loader >= 0:
            self._trained.add(segment.loader)
        if self._accumulated:
            self._leave(segment.loader)
            self._count_as_evaluation(self._left - self._trained)
            self._left.clear()
        taken = self._take(segment) if self._run or self._unused else None
        if self._accumulated or (taken is not None and taken.before):
            self._accumulated.append(taken or _Accumulated(segment.loader, [segment]))
            self._decide_on_many()
            segments = []
            for group in self._accumulated:
                segments += group.segments
                if group.loader not in self._trained and group.loader >= 0:
                    self._trained.add(group.loader)
            self._accumulated = []
        else:
            segments = [segment] if taken is None else taken.segments
            self._had_many = False
        if len(segments) > 1:
            own = sum(each.batches for each in segments if each.loader == segment.loader)
            self._most = max(self._most, own)
            segment = joined(segments)
        self._asked_before, self._asked = self._asked, {}
        self._evaluated, self._lacks_optimizer, self._has_stepped = None, False, True
        self._is_evaluation_long = False
        self._emit("train", segment)

    def settle(self, next_loader: int) -> None:
        """Count held batches as evaluation if they are one, as a loader is asked for the next."""
        if not self._unused:
            return
        last = self._unused[-1].loader
        if self._evaluates(last, next_loader):
            self._count_evaluation({last, *self._left_over()})
        elif len(self._unused) > _MANY:
            if last in self._fetches_ahead:
                _join_oldest(self._unused)
            elif self._is_evaluation_long or len(self._unused) > _MAX_UNUSED:
                self._is_evaluation_long = True
                self._count_evaluation({each.loader for each in self._unused})

    def forget(self) -> None:
        """Drop all segments."""
        self._accumulated, self._unused = [], []
        self._run.clear()
        self._left.clear()

    def close(self) -> None:
        """Emit all segments: no step comes."""
        # What is accumulated for a step that does not come is time between.
        if self._has_stepped and self._accumulated:
            for loader in {each.loader for each in self._accumulated}:
                self._end_iteration(loader)
            self._leave(-1)
            self._count_as_evaluation(self._left - self._trained)
        self._emit_each("between" if self._has_stepped else "train")
        self._count_evaluation({each.loader for each in self._unused})
        self.forget()

    def _take(self, segment: Segment) -> _Accumulated:
        """Return the batches up to one with a backward, which is `segment`."""
        taken = _Accumulated(segment.loader, [*self._unused, segment])
        before = self._run.get(segment.loader, 0)
        if before > _MANY and segment.loader not in self._fetches_ahead:
            taken.before = before
            taken.is_again = self._had_many and segment.loader not in self._ended
        self._unused = []
        self._run.clear()
        return taken

    def _backwards_of(self, loader: int) -> list[_Accumulated]:
        return [each for each in self._accumulated if each.loader == loader]

    def _leave(self, loader: int) -> None:
        """Note that a backward of a loader follows those of another, whose loop may be over.

        It was a loop of its own if all batches of its iterator came in a row, after the last step.
        """
        last = self._accumulated[-1].loader if self._accumulated else loader
        if last in self._trained or last in {loader, -1} or not self._has_stepped:
            return
        rows = [*takewhile(lambda each: each.loader == last, reversed(self._accumulated))]
        segments = [each for taken in rows for each in taken.segments]
        count = sum(each.batches for each in segments if each.loader == last)
        if count > 1 and self._fetched.get(last) == count + self._run.get(last, 0):
            self._left.add(last)
            # Of a batch at which it was left by `break`.
            self._count_evaluation({each.loader for each in segments} - {loader})

    def _end_iteration(self, loader: int) -> None:
        """Count a loader's iteration as evaluation if it is over, and is longer than any step."""
        segments = [each for taken in self._backwards_of(loader) for each in taken.segments]
        count = sum(each.batches for each in segments if each.loader == loader)
        whole = self._fetched.get(loader, 0) - self._run.get(loader, 0)
        if self._has_stepped and self._most < count == whole:
            self._count_as_evaluation({loader})
            self._count_evaluation({loader})

    def _count_as_evaluation(self, loaders: Collection[int]) -> None:
        """Count batches with a backward, of some loaders, as an evaluation: as in an attack."""
        if not loaders:
            return
        accumulated, self._accumulated = self._accumulated, []
        for each in accumulated:
            if each.loader in loaders:
                self._emit("eval", joined(each.segments))
            else:
                self._accumulated.append(each)

    def _decide_on_many(self) -> None:
        """Decide on very many batches that were fetched before a backward, as a step ends.

        They belong to it if most have one, or if they are fetched again for later steps. Else they
        were kept, passed over, or an evaluation, but for as many as have backwards.
        """
        self._had_many = any(each.before for each in self._accumulated)
        if not self._had_many:
            return
        segments = [each for taken in self._accumulated for each in taken.segments]
        backwards = sum(each.backwards for each in segments)
        for taken in self._accumulated:
            loader = taken.loader
            if not taken.before:
                continue
            if taken.is_again or 2 * backwards > taken.before:
                self._fetches_ahead.add(loader)
                continue
            surplus = sum(each.batches for each in segments if each.loader == loader) - backwards
            unused = [each for each in taken.segments[:-1] if each.loader == loader]
            gone = unused[: max(surplus, 0)]
            places = {id(each) for each in gone}
            taken.segments = [each for each in taken.segments if id(each) not in places]
            for each in gone:
                self._emit("eval", each)

    def _emit_each(self, kind: RowKind = "train") -> None:
        """Emit the batches up to each backward as a row of their own."""
        self._decide_on_many()
        accumulated, self._accumulated = self._accumulated, []
        for each in accumulated:
            self._emit(kind, joined(each.segments))
            if kind == "train":
                self._trained.add(each.loader)

    def _evaluates(self, last: int, next_loader: int) -> bool:
        """Return whether a loader's batches are an evaluation: more than steps take.

        A single batch in every step is part of its data, and so are as many as in the step before:
        two loaders are iterated together.
        """
        is_first = not self._has_stepped  # then those with a backward are trained on
        if last in self._trained or (is_first and self._backwards_of(last)):
            return False
        count, usual = self._run.get(last, 0), self._usual(last)
        if next_loader == last:  # their backward may follow, as some scripts fetch ahead
            goes_on = self._evaluated == last or count > max(_MAX_AHEAD, usual)
            if goes_on and (self._trained or self._accumulated):
                self._evaluated = last
            return self._evaluated == last
        before, self._evaluated = self._evaluated, None
        self._asked[last] = max(count, self._asked.get(last, 0))
        if last == before:
            return True
        if count <= usual:
            return False
        if self._has_stepped or count > _MOST_LEFT:
            return True
        return count > 1 and last in self._ended

    def _usual(self, loader: int) -> int:
        """Return how many batches of a loader go with a backward of another, by those before."""
        most = max(self._asked.get(loader, 0), self._asked_before.get(loader, 0))
        # A loop of its own, which each epoch of a single step may be followed by.
        is_loop = loader in self._ended or self._fetched.get(loader) == self._run.get(loader)
        return min(most, 1) if is_loop else most

    def _left_over(self) -> list[int]:
        """Return the loaders of more held batches than a script fetches ahead of an evaluation."""
        return [
            loader
            for loader, count in self._run.items()
            if count > max(_MOST_LEFT, self._usual(loader))
        ]

    def _count_evaluation(self, loaders: Collection[int]) -> None:
        """Count held batches of some loaders as an evaluation."""
        evaluated = [each for each in self._unused if each.loader in loaders]
        self._unused = [each for each in self._unused if each.loader not in loaders]
        for segment in evaluated:
            self._emit("eval", segment)


def _oldest_pair(loaders: list[int]) -> tuple[int, int]:
    """Return the places of the first two of one loader; the first two without any."""
    places: dict[int, int] = {}
    for place, loader in enumerate(loaders):
        if loader in places:
            return places[loader], place
        places[loader] = place
    return 0, 1


def _join_oldest(segments: list[Segment]) -> None:
    """Keep only the sum of the two oldest segments of a loader."""
    one, other = _oldest_pair([each.loader for each in segments])
    segments[one] = joined([segments[one], segments.pop(other)])


def _join_oldest_groups(groups: list[_Accumulated]) -> None:
    """Keep only the sums, by loader, of the two oldest groups of a loader."""
    one, other = _oldest_pair([each.loader for each in groups])
    later, by_loader = groups.pop(other), dict[int, list[Segment]]()
    for segment in (*groups[one].segments, *later.segments):
        by_loader.setdefault(segment.loader, []).append(segment)
    groups[one] = _Accumulated(later.loader, [joined(each) for each in by_loader.values()])
