"""The partitions of an iterable dataset, and their scheduler over auxiliary hosts, without I/O.

A partition is what the dataset yields for one worker id. It stays with one host, which makes its
batches in order. If the host is lost, others take its partitions over, and first skip the batches
that were made. If no host is left, or a batch failed, a partition returns to the rank: its tasks
are given back, now and later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.offload.scheduler import Assignment, Scheduler


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
