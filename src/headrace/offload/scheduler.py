"""The schedulers of a rank's tasks over auxiliary hosts: which host makes which batch, without I/O.

Tasks are assigned in order, a few in a row to one host, so that what a host has read for one batch
helps with the next. If a host takes much longer than usual over a batch, another host is assigned
it as well, and the first result counts.

An iterable dataset has partitions: what it yields for one worker id. A partition stays with one
host, which makes its batches in order. If the host is lost, others take its partitions over, and
first skip the batches that were made. If no host is left, or a batch failed, a partition returns to
the rank: its tasks are given back, now and later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_LATE_FACTOR = 2.0  # times the 90th percentile of the host's durations
_LATE_BEST_FACTOR = 4.0  # ... or times that of the fastest host
_LATE_MORE_S = 0.1
_LATE_MIN_SAMPLES = 5  # durations needed for a percentile
_BACKOFF_FACTOR = 0.7  # of the task limit, after a batch that came too late
_SAMPLES = 64
_MAX_ASSIGNMENTS = 3  # at once for one task
_DUPLICATES_ONE_IN = 8  # of the assignments under way
_RUNS_PER_HOST = 5  # a run of consecutive tasks is this part of a host's limit


class Assignment(NamedTuple):
    """The assignment of a task to a host."""

    number: int  # counts assignments
    task: int
    host: str
    since_s: float
    partition: int = 0  # of an iterable dataset


class Scheduler:
    """The base of schedulers: the assignments under way."""

    def __init__(self) -> None:
        self._next_assignment = 0
        self._assignments: dict[int, Assignment] = {}

    def _new_assignment(self, task: int, host: str, now_s: float, partition: int = 0) -> Assignment:
        assignment = Assignment(self._next_assignment, task, host, now_s, partition)
        self._next_assignment += 1
        self._assignments[assignment.number] = assignment
        return assignment

    def _known(self, number: int, host: str) -> Assignment | None:
        assignment = self._assignments.get(number)
        return assignment if assignment is not None and assignment.host == host else None

    def requested_s(self, number: int, host: str) -> float | None:
        """Return when an assignment was made; None if it is not known any more."""
        assignment = self._known(number, host)
        return assignment.since_s if assignment is not None else None


@dataclass(slots=True)
class _Task:
    assignments: set[int] = field(default_factory=set)
    arriving: int | None = None  # the assignment whose batch is being received


@dataclass(slots=True)
class _HostLoad:
    accepted: int  # tasks that the server accepts
    out: set[int] = field(default_factory=set)
    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    limit: float = float("inf")  # of tasks at a time, lowered after late batches

    @property
    def task_limit(self) -> int:
        return int(min(self.accepted, self.limit))

    @property
    def free(self) -> int:
        return self.task_limit - len(self.out)

    @property
    def usual_s(self) -> float:
        """The 90th percentile of its batches' durations; infinite while too few are known."""
        if len(self.took_s) < _LATE_MIN_SAMPLES:
            return float("inf")
        return sorted(self.took_s)[int(0.9 * (len(self.took_s) - 1))]

    def note(self, took_s: float, *, in_time: bool) -> None:
        self.took_s.append(took_s)
        self.limit = self.limit + 1 if in_time else max(1.0, self.task_limit * _BACKOFF_FACTOR)


class BatchScheduler(Scheduler):
    """The scheduler of a loader's tasks where any host can make any batch."""

    def __init__(self) -> None:
        super().__init__()
        self._forgotten = 0  # assignments before this one are of dropped tasks
        self._waiting: deque[int] = deque()
        self._tasks: dict[int, _Task] = {}
        self._hosts: dict[str, _HostLoad] = {}

    @property
    def room(self) -> int:
        """How many tasks it has room for: what hosts accept, and as many again waiting."""
        return 2 * sum(host.accepted for host in self._hosts.values())

    def wanted_batches(self, host: str) -> int:
        """Return how many batches a host could work on, if it were the only one."""
        load = self._hosts.get(host)
        return (len(load.out) if load else 0) + len(self._waiting)

    def add(self, task: int, partition: int = 0) -> None:  # noqa: ARG002 - see `PartitionScheduler`
        """Add a task."""
        self._tasks[task] = _Task()
        self._waiting.append(task)

    def set_task_limit(self, host: str, limit: int) -> None:
        """Set how many tasks a host, maybe a new one, may have."""
        load = self._hosts.setdefault(host, _HostLoad(limit))
        load.accepted = limit

    def lose(self, host: str) -> None:
        """Remove a host; its tasks are assigned to others, before all that wait."""
        load = self._hosts.pop(host, None)
        lost = sorted(load.out, reverse=True) if load else []
        for number in lost:
            assignment = self._assignments.pop(number)
            task = self._task_of(assignment)
            if task is None:
                continue
            if task.arriving == number:
                task.arriving = None
            self._end_without_batch(assignment, task)

    def assign(self, now_s: float) -> list[Assignment]:
        """Return the new assignments."""
        self._requeue_late_tasks(now_s)
        assignments: list[Assignment] = []
        while self._waiting:
            task = self._waiting[0]
            host = self._choose(self._tasks[task])
            if host is None:
                return assignments
            for _ in range(self._run_length(host)):
                assignments.append(self._assign_to(self._waiting.popleft(), host, now_s))
                if not self._waiting or self._is_assigned_to(self._waiting[0], host):
                    break
        return assignments

    def _run_length(self, host: str) -> int:
        load = self._hosts[host]
        return max(1, min(load.free, load.task_limit // _RUNS_PER_HOST))

    def _is_assigned_to(self, task: int, host: str) -> bool:
        return any(self._assignments[each].host == host for each in self._tasks[task].assignments)

    def _choose(self, task: _Task) -> str | None:
        """Return a host for a task: the one with most room that it is not assigned to yet."""
        assigned = {self._assignments[each].host for each in task.assignments}
        free = {name: host for name, host in self._hosts.items() if host.free > 0}
        if not assigned:  # wait for room for a whole run, but never until a host idles
            free = {
                name: host
                for name, host in free.items()
                if host.free >= host.task_limit // _RUNS_PER_HOST
            }
        return max(
            free,
            key=lambda name: (name not in assigned, free[name].free / free[name].task_limit, name),
            default=None,
        )

    def _assign_to(self, task: int, host: str, now_s: float) -> Assignment:
        assignment = self._new_assignment(task, host, now_s)
        self._tasks[task].assignments.add(assignment.number)
        self._hosts[host].out.add(assignment.number)
        return assignment

    def _requeue_late_tasks(self, now_s: float) -> None:
        duplicates = sum(len(task.assignments) > 1 for task in self._tasks.values())
        duplicates += sum(bool(self._tasks[each].assignments) for each in self._waiting)
        limit = max(1, len(self._assignments) // _DUPLICATES_ONE_IN)
        for number, task in self._tasks.items():
            if duplicates >= limit:
                return
            if self._is_late(task, now_s) and number not in self._waiting:
                self._waiting.appendleft(number)
                duplicates += 1

    def _is_late(self, task: _Task, now_s: float) -> bool:
        if task.arriving is not None or not 0 < len(task.assignments) < _MAX_ASSIGNMENTS:
            return False
        best_s = min(host.usual_s for host in self._hosts.values())
        return all(
            now_s - assignment.since_s > self._late_s(assignment.host, best_s)
            for assignment in map(self._assignments.__getitem__, task.assignments)
        )

    def _late_s(self, host: str, best_s: float) -> float:
        """Return how long a host may take over a batch before another is assigned it, too."""
        usual_s = self._hosts[host].usual_s
        return min(_LATE_FACTOR * usual_s, _LATE_BEST_FACTOR * best_s) + _LATE_MORE_S

    def begins(self, number: int, host: str) -> int | None:
        """Note that a batch begins to arrive; return its task, None if it is not needed."""
        assignment = self._known(number, host)
        task = self._task_of(assignment) if assignment else None
        if assignment is None or task is None or task.arriving is not None:
            return None
        task.arriving = number
        if assignment.task in self._waiting:  # it was late
            self._waiting.remove(assignment.task)
        return assignment.task

    def arrived(self, number: int, host: str, now_s: float) -> int | None:
        """Note that a batch has arrived; return its task, None if it is not needed."""
        assignment = self._known(number, host)
        if assignment is None:
            return None
        del self._assignments[number]
        self._hosts[host].out.discard(number)
        task = self._task_of(assignment)
        counts = task is not None and task.arriving == number
        was_in_time = counts or assignment.number < self._forgotten
        self._hosts[host].note(now_s - assignment.since_s, in_time=was_in_time)
        if task is None:
            return None
        if not counts:  # another's was arriving when this one began, and may be lost since
            self._end_without_batch(assignment, task)
            return None
        self._drop(assignment.task)
        return assignment.task

    def returned(self, number: int, host: str) -> None:
        """Note that a host will not make a batch: the task is assigned to another if needed."""
        assignment = self._known(number, host)
        if assignment is None:
            return
        del self._assignments[number]
        self._hosts[host].out.discard(number)
        task = self._task_of(assignment)
        if task is not None:
            self._end_without_batch(assignment, task)

    def _end_without_batch(self, assignment: Assignment, task: _Task) -> None:
        """End an assignment without a batch: its task waits again, unless it has others."""
        task.assignments.discard(assignment.number)
        if not task.assignments and assignment.task not in self._waiting:
            self._waiting.appendleft(assignment.task)

    def _task_of(self, assignment: Assignment) -> _Task | None:
        """Return an assignment's task; None where that is done, or its number reused."""
        task = self._tasks.get(assignment.task)
        return task if task is not None and assignment.number in task.assignments else None

    def _drop(self, number: int) -> None:
        del self._tasks[number]
        if number in self._waiting:
            self._waiting.remove(number)

    def give_back(self) -> list[int]:
        """Return the tasks that no host can take, and drop them."""
        if self._hosts:
            return []
        tasks = sorted(self._tasks)
        self._tasks.clear()
        self._waiting.clear()
        return tasks

    def again(self, host: str) -> tuple[int, float]:  # noqa: ARG002 - see `PartitionScheduler`
        """Return (0, 0.0): no host has to repeat another's batches."""
        return 0, 0.0

    def forget(self) -> None:
        """Drop all tasks; batches that still arrive are discarded."""
        self._tasks.clear()
        self._waiting.clear()
        self._forgotten = self._next_assignment


def assign_partitions(
    partitions: Sequence[int], limits: Mapping[str, int], has: Mapping[str, int]
) -> dict[int, str]:
    """Return a host for each partition, in proportion to the hosts' task limits.

    The result is empty if there is no host. `has` is how many partitions each host has already.
    """
    counts = {host: has.get(host, 0) for host in limits}
    hosts: dict[int, str] = {}
    for partition in partitions if limits else ():
        host = min(counts, key=lambda name: ((counts[name] + 1) / limits[name], name))
        counts[host] += 1
        hosts[partition] = host
    return hosts


@dataclass(slots=True)
class _Partition:
    host: str | None = None  # None: at the rank, or not assigned yet
    is_at_rank: bool = False
    waiting: deque[int] = field(default_factory=deque)  # numbers of tasks without a host
    out: deque[int] = field(default_factory=deque)  # numbers of assignments under way
    heard_s: float = 0.0  # when its last batch arrived
    left: set[str] = field(default_factory=set)  # hosts that lost it
    made: int = 0  # batches that have arrived
    cost_s: float = 0.0  # what repeating these takes
    is_begun_anew: bool = False  # its host has to skip these first


class PartitionScheduler(Scheduler):
    """The scheduler of a loader's tasks where its dataset is iterable; see `BatchScheduler`."""

    def __init__(self) -> None:
        super().__init__()
        self._task_limits: dict[str, int] = {}
        self._partitions: dict[int, _Partition] = {}
        self._returned_tasks: list[int] = []
        self.is_assigned = True

    def begin(self, partitions: Sequence[int]) -> None:
        """Start an iteration over these partitions, which `assign_all` assigns to hosts."""
        self.forget()
        self._partitions = {number: _Partition() for number in partitions}
        self.is_assigned = False

    @property
    def room(self) -> int:
        """How many tasks it has room for, approximately."""
        return 2 * sum(not partition.is_at_rank for partition in self._partitions.values())

    def wanted_batches(self, host: str) -> int:
        """Return how many batches a host could work on at a time."""
        return sum(
            partition.host == host and bool(partition.out or partition.waiting)
            for partition in self._partitions.values()
        )

    def add(self, task: int, number: int) -> None:
        """Add a task for the next batch of a partition."""
        partition = self._partitions.get(number)
        if partition is None or partition.is_at_rank:
            self._returned_tasks.append(task)
        else:
            partition.waiting.append(task)

    def set_task_limit(self, host: str, limit: int) -> None:
        """Set how many tasks a host, maybe a new one, may have."""
        self._task_limits[host] = limit

    def lose(self, host: str) -> None:
        """Remove a host; others take over its partitions."""
        self._task_limits.pop(host, None)
        for number, partition in self._partitions.items():
            if partition.host == host:
                self._move(number, partition)

    def assign_all(self) -> int:
        """Assign each partition to a host; return how many got none and return to the rank."""
        self.is_assigned = True
        hosts = assign_partitions(list(self._partitions), self._task_limits, {})
        for number, partition in self._partitions.items():
            self._place(partition, hosts.get(number))
        return len(self._partitions) - len(hosts)

    def assign(self, now_s: float) -> list[Assignment]:
        """Return the new assignments."""
        assignments: list[Assignment] = []
        for number, partition in self._partitions.items():
            while partition.host is not None and partition.waiting:
                task = partition.waiting.popleft()
                assignment = self._new_assignment(task, partition.host, now_s, number)
                partition.out.append(assignment.number)
                assignments.append(assignment)
        return assignments

    def needs(self, number: int | None, host: str) -> bool:
        """Whether an assignment's batch is still needed; True if `number` is None."""
        return number is None or self._known(number, host) is not None

    def begins(self, number: int, host: str) -> int | None:
        """Note that a batch begins to arrive; return its task, None if it is not needed."""
        assignment = self._known(number, host)
        return None if assignment is None else assignment.task

    def arrived(self, number: int, host: str, now_s: float) -> int | None:
        """Note that a batch has arrived; return its task, None if it is not needed."""
        assignment = self._known(number, host)
        if assignment is None:
            return None
        del self._assignments[number]
        partition = self._partitions[assignment.partition]
        partition.out.remove(number)
        partition.heard_s = now_s
        return assignment.task

    def took(self, number: int, host: str, making_s: float) -> None:
        """Note how long a host took to make a batch."""
        assignment = self._known(number, host)
        if assignment is None:
            return
        partition = self._partitions[assignment.partition]
        partition.made += 1
        if partition.is_begun_anew:
            partition.is_begun_anew = False
            partition.cost_s = max(partition.cost_s, making_s)  # it includes the skipped batches
        else:
            partition.cost_s += making_s

    def again(self, host: str) -> tuple[int, float]:
        """Return what other hosts would have to repeat if a host were lost: batches, seconds.

        The seconds are those of its longest partition, as partitions are repeated in parallel.
        """
        own = [partition for partition in self._partitions.values() if partition.host == host]
        costs_s = (partition.cost_s for partition in own)
        return sum(partition.made for partition in own), max(costs_s, default=0.0)

    def returned(self, number: int, host: str) -> None:
        """Note that a host will not make a batch: it has lost its position in the partition."""
        assignment = self._known(number, host)
        if assignment is not None:
            self._move(assignment.partition, self._partitions[assignment.partition])

    def failed(self, number: int, host: str) -> None:
        """Note that a batch arrives as an error: its partition is retried at the rank."""
        assignment = self._known(number, host)
        if assignment is not None:
            self._return_to_rank(self._partitions[assignment.partition], without=number)

    def reclaim_partition(self, number: int) -> str | None:
        """Return a late partition, and those of its host that are as late, to the rank.

        Returns the host; None if it had none.
        """
        late = self._partitions.get(number)
        if late is None or late.is_at_rank:
            return None
        host = late.host
        since_s = self._oldest_s(late)
        for partition in self._partitions.values():
            is_as_late = self._oldest_s(partition) <= since_s and partition.heard_s <= since_s
            if partition.host == host and is_as_late:
                self._return_to_rank(partition)
        self._return_to_rank(late)
        return host

    def _oldest_s(self, partition: _Partition) -> float:
        """Return when the oldest assignment of a partition was made; infinite without one."""
        times_s = (self._assignments[number].since_s for number in partition.out)
        return min(times_s, default=float("inf"))

    def give_back(self) -> list[int]:
        """Return the tasks that no host can take, and drop them."""
        tasks, self._returned_tasks = self._returned_tasks, []
        return tasks

    def forget(self) -> None:
        """Drop all tasks; batches that still arrive are discarded."""
        self._assignments.clear()
        self._partitions.clear()
        self._returned_tasks.clear()
        self.is_assigned = True

    def _move(self, number: int, partition: _Partition) -> None:
        """Move a partition that its host has lost to another host."""
        if partition.host is not None:
            partition.left.add(partition.host)
        partition.is_begun_anew = partition.made > 0
        self._cancel(partition)
        others = {
            name: limit for name, limit in self._task_limits.items() if name not in partition.left
        }
        has = {name: sum(one.host == name for one in self._partitions.values()) for name in others}
        self._place(partition, assign_partitions([number], others, has).get(number))

    def _place(self, partition: _Partition, host: str | None) -> None:
        if host is None:
            self._return_to_rank(partition)
        else:
            partition.host = host

    def _return_to_rank(self, partition: _Partition, without: int | None = None) -> None:
        partition.is_at_rank = True
        self._cancel(partition, without)
        self._returned_tasks += partition.waiting
        partition.waiting.clear()

    def _cancel(self, partition: _Partition, without: int | None = None) -> None:
        """Cancel the assignments of a partition, except one; their tasks wait again, in order."""
        cancelled = [
            self._assignments.pop(number).task for number in partition.out if number != without
        ]
        partition.out = deque(number for number in partition.out if number == without)
        partition.waiting.extendleft(reversed(cancelled))
        partition.host = None
