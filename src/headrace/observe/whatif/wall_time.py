"""The wall time of a run: start-up, steps, evaluation, batches passed over, the rest.

Each nanosecond of a rank belongs to one part. A row of `steps` tells which, and rows follow each
other without a gap while recording is on. What precedes a rank's first row is start-up; the doctor
adds later imports of libraries to it. What follows its last row while it lives is open: a wait, or
other work, that has not ended and so has no row. What a rank was at then is known by its stack
samples, which are written each second. What a step waits for a rank that does not train belongs to
what that one does: see `rank_waits`.

A batch is passed over if the script only asked for it and trained on later ones of the same
iteration alone, as a script does that resumes within an epoch. If it did more with such batches, as
where it estimates its loss on some before the first step, they are an evaluation. Passed over is
also an iteration before the first step in which the script only asked for batches, unless it keeps
them and trains on them later, without the loader: that is start-up, or kept batches where each
epoch does so. A step may also hold more batches than others because the script did not let its
optimizer step after each backward, as with accumulated gradients or where a gradient scaler skips
steps whose gradients overflow: those are used, not passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from headrace.observe.whatif.batch_lists import (
    USED_NS,
    find_batch_lists,
    is_little_use,
    iterations,
)
from headrace.observe.whatif.evaluation_waits import part_of_evaluation
from headrace.observe.whatif.tables import Columns, Flags, Floats, Ints, Tables, columns
from headrace.observe.whatif.train_steps import rank_waits
from headrace.records.schema import PHASES, RANK_ENDED, SCRIPT_ENDED

TimePart = Literal[
    "steps", "evaluation", "passed_over", "batch_lists", "between", "open", "unrecorded"
]
TIME_PARTS: tuple[TimePart, ...] = get_args(TimePart)
_SAMPLED_NS, _SILENT_NS = 1_000_000_000, 5_000_000_000
"""A row of `stacks` is of a second, and written after it; a second or two late on full cores."""
_NEARLY_ALL = 0.9
_FEWEST_FED = 2
"""Steps that take a batch of their loader, where it feeds training."""
_FEWEST_PASSED_OVER = 10
"""An iteration of fewer batches is not passed over but looked at, as a first batch often is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTime:
    """What a rank did last, if it had not ended when its records end."""

    rank: int
    pid: int
    since_ns: int
    until_ns: int  # when the rank was seen for the last time
    phase: str  # that of most stack samples since then; "": there are none, though it lives;
    # "start": it has asked for no batch yet
    loader: int  # that was asked last; -1 if none was
    batch: int  # number in the iteration of the batch that it waits for, if it does
    longest_ns: int  # of the like before: waits for batches, or steps; 0 if there were none

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return (self.until_ns - self.since_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """Batches of all ranks that were fetched alone: rows of `steps`, or parts of them."""

    loader: Ints
    start_ns: Ints
    wall_ns: Ints
    batches: Ints

    @property
    def main_loader(self) -> int:
        """The number of the loader that most of them came from."""
        return int(np.bincount(self.loader, self.batches).argmax())


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTime:
    """The wall time of a run."""

    ranks: int = 0  # with any record of what they did
    start_ns: int = 0  # start-up, as the sum over the ranks, like the other parts
    part_ns: Mapping[TimePart, int] = field(default_factory=dict)
    evaluation: Columns  # rows of the table `steps`, like `between`
    between: Columns  # without time in which other ranks evaluate; with steps' waits for ranks
    passed_over: FetchedBatches | None = None  # and not trained on
    batch_lists: FetchedBatches | None = None  # before the first is trained on
    open: tuple[OpenTime, ...] = ()
    outside_ns: tuple[Floats, Floats]  # beginnings and ends of evaluation, time between, open time
    began_ns: int = 2**62  # the run, by the host's clock; later than any time if unknown

    def seconds(self, part: TimePart) -> float:
        """Return the seconds of a part, as the mean over the ranks."""
        return self.part_ns.get(part, 0) / max(self.ranks, 1) / 1e9

    @property
    def evaluating_ranks(self) -> float:
        """The ranks by which sums over rows of evaluation give the run's time.

        All of them, if each evaluates; one, if the others wait for it.
        """
        return float(self.evaluation["wall_ns"].sum()) / 1e9 / max(self.seconds("evaluation"), 1e-9)

    @property
    def start_seconds(self) -> float:
        """Seconds of start-up, as the mean over the ranks."""
        return self.start_ns / max(self.ranks, 1) / 1e9

    def seconds_before(self, at_ns: int) -> float:
        """Return seconds of evaluation, and of batches passed over or kept, before a time."""
        rows = self.evaluation
        before_ns = int(rows["wall_ns"][rows["start_ns"] < at_ns].sum())
        for fetched in (self.passed_over, self.batch_lists):
            if fetched is not None:
                before_ns += int(fetched.wall_ns[fetched.start_ns < at_ns].sum())
        return before_ns / max(self.ranks, 1) / 1e9

    @property
    def run_seconds(self) -> float:
        """Seconds after start-up, which is paid once however long a run is, to the end."""
        return sum(self.seconds(part) for part in TIME_PARTS)

    @property
    def evaluation_loader(self) -> int:
        """The number of the loader that evaluation takes longest with; -1 without one."""
        loaders, wall_ns = self.evaluation["loader"], self.evaluation["wall_ns"]
        known = loaders >= 0
        if not known.any():
            return -1
        return int(np.bincount(loaders[known], wall_ns[known]).argmax())

    @property
    def shares(self) -> dict[str, float]:
        """The share of each part after start-up, 0 to 1."""
        total = max(self.run_seconds, 1e-9)
        return {part: self.seconds(part) / total for part in TIME_PARTS}


def read_wall_time(tables: Tables, step_kind: str = "train") -> WallTime:
    """Return the wall time of a run.

    Args:
        tables: The run's tables.
        step_kind: Kind of the rows that are steps: "eval" for a run without an optimizer.
    """
    steps, fetches = _finished_steps(tables), columns(tables, "fetches")
    is_step, is_between = steps["kind"] == step_kind, steps["kind"] == "between"
    fetched = _FetchedAlone(steps.count)
    if step_kind == "train":
        fetched = _fetched_alone(steps, fetches)
        fetched.passed_within += _passed_within_waits(tables, steps, fetches)
    is_evaluation = ~(is_step | is_between | fetched.any)
    passed = _joined(steps.where(fetched.passed), fetched.passed_within)
    kept = _joined(steps.where(fetched.kept), fetched.kept_within)
    within = [*fetched.passed_within, *fetched.kept_within]
    processes = columns(tables, "processes").having(role="rank")
    began_ns = _beginning_ns(tables, processes)
    ranks = _rank_times(tables, steps, fetches, processes, began_ns)
    open_times = tuple(each.open for each in ranks if each.open is not None)
    every_between = steps.where(is_between).followed_by(_last_rows(steps, ranks))
    waits = rank_waits(tables, steps)
    if step_kind == "train" and waits.any:
        every_between = every_between.followed_by(waits.rows_between(steps))
    waited_ns = int(waits.wait_ns[is_step].sum())
    between, moved_ns = part_of_evaluation(every_between, steps.where(is_evaluation))
    return WallTime(
        ranks=len(ranks),
        start_ns=sum(each.start_ns for each in ranks) + _wall_ns(steps, fetched.preloaded),
        part_ns={
            "steps": _wall_ns(steps, is_step)
            - waited_ns
            - sum(wall_ns for _, _, wall_ns, _ in within),
            "evaluation": _wall_ns(steps, is_evaluation) + moved_ns,
            "passed_over": int(passed.wall_ns.sum()) if passed is not None else 0,
            "batch_lists": int(kept.wall_ns.sum()) if kept is not None else 0,
            "between": int(every_between["wall_ns"].sum()) - moved_ns,
            "open": sum(each.open_ns for each in ranks),
            "unrecorded": sum(each.gaps_ns for each in ranks),
        },
        evaluation=steps.where(is_evaluation),
        between=between,
        passed_over=passed,
        batch_lists=kept,
        open=open_times,
        outside_ns=_outside_ns((steps.where(is_evaluation), every_between), kept, open_times),
        began_ns=2**62 if began_ns is None else began_ns,
    )


def _finished_steps(tables: Tables) -> Columns:
    """Return the rows of `steps` by rank and time, without waits that an error or ctrl-C ended.

    A rank that ends amid a wait for a batch has a last row of that wait, in which none came.
    """
    steps, fetches = columns(tables, "steps"), columns(tables, "fetches")
    steps = steps.where(np.lexsort((steps["start_ns"], steps["rank"])))
    is_last = np.diff(steps["rank"], append=-1) != 0
    waits = steps["data_wait_ns"] >= _NEARLY_ALL * steps["wall_ns"]
    is_long = is_last & (steps["kind"] == "between") & waits & (steps["wall_ns"] >= _SILENT_NS)
    for place in np.flatnonzero(is_long):
        began_ns = fetches["start_ns"][fetches["rank"] == steps["rank"][place]]
        if (began_ns >= steps["start_ns"][place]).any():  # a wait that ended, with the iteration
            is_long[place] = False
    return steps.where(~is_long)


def _joined(rows: Columns, parts: list[tuple[int, int, int, int]]) -> FetchedBatches | None:
    """Return rows of batches passed over, and such parts of steps; None without any."""
    names = ("loader", "start_ns", "wall_ns", "batches")
    added = np.array(parts, dtype=np.int64).reshape(len(parts), len(names)).T
    joined = {
        name: np.concatenate((rows[name].astype(np.int64), more))
        for name, more in zip(names, added, strict=True)
    }
    return FetchedBatches(**joined) if len(joined["loader"]) else None


def _outside_ns(
    parts: tuple[Columns, ...], kept: FetchedBatches | None, open_times: tuple[OpenTime, ...]
) -> tuple[Floats, Floats]:
    # What a rank did last that is silent since then was sampled before.
    since_ns = [each.since_ns - (0 if each.phase else _SAMPLED_NS) for each in open_times]
    until_ns = [each.until_ns for each in open_times]
    begins = [rows["start_ns"].astype(np.float64) for rows in parts]
    ends = [begin + rows["wall_ns"] for begin, rows in zip(begins, parts, strict=True)]
    if kept is not None:
        begins.append(kept.start_ns.astype(np.float64))
        ends.append(begins[-1] + kept.wall_ns)
    return np.concatenate((*begins, since_ns)), np.concatenate((*ends, until_ns))


def _wall_ns(rows: Columns, where: Flags) -> int:
    return int(rows["wall_ns"][where].sum())


class _FetchedAlone:
    """Batches that a script fetches and does not train on at once: rows of `steps`, and parts.

    A part is (loader, start, wall time, batches), times in ns.
    """

    def __init__(self, rows: int) -> None:
        self.passed, self.preloaded, self.kept = np.zeros((3, rows), dtype=np.bool_)
        self.passed_within: list[tuple[int, int, int, int]] = []
        self.kept_within: list[tuple[int, int, int, int]] = []

    @property
    def any(self) -> Flags:
        """Which rows hold such batches alone."""
        return np.asarray(self.passed | self.preloaded | self.kept)


def _fetched_alone(steps: Columns, fetches: Columns) -> _FetchedAlone:
    """Return the batches that were passed over, or kept for later.

    The step clock holds up to 64 batches back, as gradients may be accumulated over them; these
    become part of the first step.
    """
    found = _FetchedAlone(steps.count)
    trained = np.unique(steps["loader"][(steps["kind"] == "train") & (steps["loader"] >= 0)])
    for loader in map(int, trained):
        for rank in map(int, np.unique(steps["rank"])):
            places = np.flatnonzero((steps["rank"] == rank) & (steps["loader"] == loader))
            rows = steps.where(places)
            trains = rows["kind"] == "train"
            if not trains.any():
                continue
            mine = fetches.having(rank=rank, loader=loader, ended=0)
            if _are_preloaded(rows, mine):
                found.preloaded[places] = rows["start_ns"] < rows["start_ns"][trains][0]
                continue
            kept, found.kept[places], parts = find_batch_lists(rows, mine)
            found.kept_within += [(loader, *part) for part in parts]
            others = ~kept
            found.passed[places[others]] = _passed_rows(rows, mine)[others]
            within = _passed_within_steps(rows.where(others), mine)
            found.passed_within += [(loader, *part) for part in within]
    return found


def _are_preloaded(rows: Columns, fetches: Columns) -> bool:
    """Return whether a script keeps the batches of one rank and loader, and trains on them later.

    As by `list(loader)`: no step asks for a batch, and the first one holds what the step clock has
    held back.
    """
    trains = rows.where(rows["kind"] == "train")
    first_ends_ns = int(trains["start_ns"][0] + trains["wall_ns"][0])
    fed = int((trains["batches"] > 0).sum())
    return fed < _FEWEST_FED <= trains.count and not (fetches["start_ns"] > first_ends_ns).any()


def _passed_rows(rows: Columns, fetches: Columns) -> Flags:
    """Return which rows of one rank and loader, in their order, are of batches passed over."""
    trains, evaluates = rows["kind"] == "train", rows["kind"] == "eval"
    passed = np.zeros(rows.count, dtype=np.bool_)
    if not evaluates.any():
        return passed
    iteration = iterations(rows, fetches)
    first_trained = np.flatnonzero(trains)[0]
    for number in np.unique(iteration[evaluates]):
        inside = evaluates & (iteration == number)
        steps = np.flatnonzero(trains & (iteration == number))
        if len(steps):  # the rows before the iteration's first step
            inside[steps[0] :] = False
            inside &= np.arange(rows.count) < _first_used(rows, inside)
        elif np.flatnonzero(inside)[-1] > first_trained:
            continue
        if _is_unused(rows.where(inside)):
            passed |= inside
    return passed


def _first_used(rows: Columns, inside: Flags) -> int:
    """Return the place of the first of several batches in a row with which a script did more.

    As where it evaluates after it has passed batches over.
    """
    used_ns = _used_ns(rows) / np.maximum(rows["batches"], 1)
    places = np.flatnonzero(inside)
    is_used = used_ns[places] > USED_NS
    runs = np.flatnonzero(is_used[:-1] & is_used[1:])
    return int(places[runs[0]]) if len(runs) else rows.count


def _used_ns(rows: Columns) -> Ints:
    """Return the time after batches came in which a script did more than copy them."""
    return np.asarray(rows["wall_ns"] - rows["data_wait_ns"] - rows["copy_ns"])


def _is_unused(rows: Columns) -> bool:
    """Return whether a script did nothing with the batches of an iteration."""
    enough = int(rows["batches"].sum()) >= _FEWEST_PASSED_OVER
    return enough and is_little_use(_used_ns(rows), int(rows["wall_ns"].sum()))


def _passed_within_steps(rows: Columns, fetches: Columns) -> list[tuple[int, int, int]]:
    """Return what was passed over within the first step of iterations: start, wall ns, batches."""
    trains = rows.where(rows["kind"] == "train")
    fed = trains["batches"][trains["batches"] > 0]
    usual = max(int(np.median(fed)) if len(fed) else 0, 1)
    is_first = np.diff(iterations(trains, fetches), prepend=-1) != 0
    fetches = fetches.where(np.argsort(fetches["start_ns"], kind="stable"))
    asked_ns, had_ns = fetches["start_ns"], fetches["start_ns"] + fetches["wait_ns"]
    found = []
    # Fewer are batches that a library fetches ahead: Accelerate's loaders, timm's, Lightning's.
    added = trains["batches"].astype(np.int64) - usual
    for place in np.flatnonzero(is_first & (added >= _FEWEST_PASSED_OVER)):
        begin_ns, count = int(trains["start_ns"][place]), int(added[place])
        first = int(np.searchsorted(asked_ns, begin_ns))
        if first + count >= len(asked_ns):
            continue
        wall_ns = min(int(asked_ns[first + count]) - begin_ns, int(trains["wall_ns"][place]))
        used_ns = asked_ns[first + 1 : first + count + 1] - had_ns[first : first + count]
        if is_little_use(used_ns, wall_ns):
            found.append((begin_ns, wall_ns, count))
    return found


def _passed_within_waits(
    tables: Tables, steps: Columns, fetches: Columns
) -> list[tuple[int, int, int, int]]:
    """Return what libraries passed over within a wait for an iteration's first batch.

    As Accelerate's `skip_first_batches` of a stream does. Then more batches were made meanwhile
    than a loader makes ahead, and so many of the iteration were never asked for. The parts are as
    in `_passed_over`.
    """
    made, loaders = columns(tables, "batches"), columns(tables, "loaders")
    found = []
    trained = np.unique(steps["loader"][(steps["kind"] == "train") & (steps["loader"] >= 0)])
    for loader in map(int, trained):
        described = loaders.having(loader=loader)
        if not described.count:
            continue
        ahead = max(int((described["workers"] * described["prefetch_factor"]).max()), 1)
        for rank in map(int, np.unique(fetches["rank"])):
            asked = fetches.having(rank=rank, loader=loader, ended=0)
            own = made.having(rank=rank, loader=loader)
            had_ns = own["start_ns"] + own["wall_ns"]
            parts = _made_within_waits(asked, np.sort(had_ns), ahead)
            found += [(loader, *part) for part in parts]
    return found


def _made_within_waits(asked: Columns, had_ns: Ints, ahead: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, wall time, batches) of those passed over as a rank waits for a first batch.

    Args:
        asked: Its requests for batches of one loader.
        had_ns: When each of that loader's batches was made, in order.
        ahead: How many it makes ahead.
    """
    asked_ns, is_first = asked["start_ns"], asked["batch"] == 0
    order = np.argsort(asked_ns[is_first], kind="stable")
    begins, waits = asked_ns[is_first][order], asked["wait_ns"][is_first][order]
    ends = np.append(begins[1:], 2**62)
    begun = np.searchsorted(had_ns, begins)
    meanwhile = np.searchsorted(had_ns, begins + waits, side="right") - begun
    never_asked_for = np.searchsorted(had_ns, ends) - begun
    asked_ns = np.sort(asked_ns)
    never_asked_for -= np.searchsorted(asked_ns, ends) - np.searchsorted(asked_ns, begins)
    counts = np.minimum(meanwhile - ahead, never_asked_for)
    # Where one rank makes the batches of others, it makes several a request all the time.
    made_later = np.searchsorted(had_ns, ends) - begun - meanwhile
    asked_later = np.searchsorted(asked_ns, ends) - np.searchsorted(asked_ns, begins) - 1
    is_for_others = made_later > 1.5 * asked_later + ahead
    for place in np.flatnonzero((counts >= _FEWEST_PASSED_OVER) & ~is_for_others):
        begin_ns, count = int(begins[place]), int(counts[place])
        yield begin_ns, int(had_ns[begun[place] + count - 1]) - begin_ns, count


def read_open_times(tables: Tables) -> tuple[OpenTime, ...]:
    """Return what ranks did last, of those that had not ended it when their records end."""
    steps, fetches = _finished_steps(tables), columns(tables, "fetches")
    processes = columns(tables, "processes").having(role="rank")
    ranks = _rank_times(tables, steps, fetches, processes, None)
    return tuple(each.open for each in ranks if each.open is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankTime:
    rank: int
    start_ns: int
    gaps_ns: int
    open_ns: int
    open: OpenTime | None
    # Start, time and phase of what it did last, and ended without a row.
    last_row: tuple[int, int, str] | None


def _last_rows(steps: Columns, ranks: list[_RankTime]) -> Columns:
    """Return rows of `steps` for what ranks did last and ended without one, by `os._exit`."""
    ended = [(each.rank, *each.last_row) for each in ranks if each.last_row is not None]
    known: dict[str, list[Any]] = {
        "rank": [rank for rank, _, _, _ in ended],
        "kind": ["between"] * len(ended),
        "loader": [-1] * len(ended),
        "start_ns": [start_ns for _, start_ns, _, _ in ended],
        "wall_ns": [wall_ns for _, _, wall_ns, _ in ended],
    }
    for name in PHASES:
        known[f"{name}_ns"] = [wall_ns * (phase == name) for _, _, wall_ns, phase in ended]
    nothing = [0] * len(ended)
    return Columns(
        {name: np.array(known.get(name, nothing), dtype=steps[name].dtype) for name in steps}
    )


def _rank_times(
    tables: Tables, steps: Columns, fetches: Columns, processes: Columns, began_ns: int | None
) -> list[_RankTime]:
    """Return what the rows of each rank do not hold."""
    stacks, usage = columns(tables, "stacks"), columns(tables, "process_usage")
    starts = _open_starts(columns(tables, "startup_stacks"))
    ranks = np.union1d(np.union1d(steps["rank"], processes["rank"]), np.array([*starts], dtype=int))
    has_ended = columns(tables, "events").having(kind=SCRIPT_ENDED).count > 0
    found = []
    for rank in map(int, ranks):
        rows, mine = steps.having(rank=rank), processes.having(rank=rank)
        own_stacks = stacks.where((stacks["rank"] == rank) & (stacks["worker"] < 0))
        own_fetches = fetches.having(rank=rank)
        open_time = _open_time(
            rank, rows, own_fetches, mine, own_stacks, usage, is_over=_is_over(tables, rank, mine)
        )
        if rows.count == 0 and own_fetches.count == 0:
            open_time = open_time or starts.get(rank)
        if rows.count == 0 and open_time is None:
            continue
        start, end = rows["start_ns"], rows["start_ns"] + rows["wall_ns"]
        first_ns = int(start[0]) if rows.count else open_time.since_ns if open_time else 0
        last_ns = int(end.max()) if rows.count else first_ns
        after_ns = max(open_time.until_ns - last_ns, 0) if open_time else 0
        # A script that ends by itself has ended all but a wait for a batch, which a signal ends.
        is_ended = has_ended and open_time is not None and open_time.phase != "data_wait"
        last_row = None
        if open_time is not None and is_ended and rows.count:
            last_row = last_ns, after_ns, open_time.phase or "other"
        own_began = mine["started_ns"].min(initial=first_ns)
        begin_ns = min(int(own_began), first_ns) if began_ns is None else began_ns
        found.append(
            _RankTime(
                rank=rank,
                start_ns=max(first_ns - begin_ns, 0),
                gaps_ns=int(np.maximum(start[1:] - end[:-1], 0).sum()),
                open_ns=0 if is_ended else after_ns,
                open=None if is_ended else open_time,
                last_row=last_row,
            )
        )
    return found


def _open_starts(stacks: Columns) -> dict[int, OpenTime]:
    """Return the starts of ranks that had not ended when the records end, by rank.

    Several processes may be about to become a rank, such as a program that starts the script: the
    one that was started last is where it hangs.
    """
    found: dict[int, OpenTime] = {}
    for pid in map(int, np.unique(stacks["pid"])):
        rows = stacks.having(pid=pid)
        if rows["stack"][rows["end_ns"].argmax()] == "":
            continue
        rank = int(rows["rank"][-1])
        since_ns = int(rows["start_ns"].min())
        if rank not in found or since_ns > found[rank].since_ns:
            found[rank] = OpenTime(
                rank=rank,
                pid=pid,
                since_ns=since_ns,
                until_ns=int(rows["end_ns"].max()),
                phase="start",
                loader=-1,
                batch=0,
                longest_ns=0,
            )
    return found


def _is_over(tables: Tables, rank: int, processes: Columns) -> bool:
    """Return whether a rank's recording was closed, or switched off and not on again."""
    events = columns(tables, "events")
    switched = events.having(kind="switched")
    if switched.count and str(switched["text"][switched["at_ns"].argmax()]) == "off":
        return True
    ended = events.having(kind=RANK_ENDED, rank=rank)
    return bool((ended["at_ns"] >= processes["started_ns"].max(initial=0)).any())


def _beginning_ns(tables: Tables, processes: Columns) -> int | None:
    """Return when the run began; None without a process."""
    system = columns(tables, "system")
    if not processes.count:
        return None
    return int(min(processes["started_ns"].min(), system["t_ns"].min(initial=2**62)))


def _open_time(
    rank: int, rows: Columns, fetches: Columns, processes: Columns, stacks: Columns,
    usage: Columns, *, is_over: bool,
) -> OpenTime | None:  # fmt: skip
    """Return what a rank did last, if it goes on after the last row's end.

    Stack samples since then show it. If there are none while the process lives, native code holds
    its interpreter, or it was stopped; unless its recording is over.
    """
    if not processes.count or not stacks.count:
        return None
    pid = int(processes["pid"][processes["started_ns"].argmax()])
    stacks = stacks.having(pid=pid)
    row_ends = rows["start_ns"] + rows["wall_ns"]
    fetch_ends = fetches["start_ns"] + fetches["wait_ns"]
    ends = np.concatenate((row_ends, fetch_ends))
    if not stacks.count:
        return None
    since_ns = int(ends.max()) if len(ends) else int(stacks["start_ns"].min())
    later = stacks.where(stacks["start_ns"] >= since_ns)
    sampled_ns = int((stacks["start_ns"] + _SAMPLED_NS).max())
    sampled_ns = max(sampled_ns, int(stacks["end_ns"].max()))
    alive_ns = usage["t_ns"][(usage["pid"] == pid) & (usage["threads"] > 0)]
    until_ns = max(sampled_ns, int(alive_ns.max(initial=0)))
    if not is_over and until_ns - sampled_ns >= _SILENT_NS:
        phase, since_ns = "", sampled_ns
    elif later.count:
        by_phase = later.summed(by=("phase",), sums=("wall_ns",))
        phase = str(by_phase["phase"][by_phase["wall_ns"].argmax()])
    else:
        return None
    last = int(fetches["start_ns"].argmax()) if fetches.count else -1
    lasted = fetches["wait_ns"][1:] if phase == "data_wait" else rows["wall_ns"][2:]
    return OpenTime(
        rank=rank,
        pid=pid,
        since_ns=since_ns,
        until_ns=until_ns,
        phase=phase,
        loader=int(fetches["loader"][last]) if last >= 0 else -1,
        batch=int(fetches["batch"][last]) + 1 if last >= 0 and not fetches["ended"][last] else 0,
        longest_ns=int(lasted.max(initial=0)),
    )
