"""The offload client in a rank, and the executors of loaders that have one.

The client has a loader's batches made on auxiliary hosts by a proxy.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import HeadraceError, LoaderError, LoaderTimeoutError, NotSendableError
from headrace.core.world import World, current_world
from headrace.data.loader.batch_builder import PickledLoaderSpec
from headrace.data.loader.executors.base import Executor
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.memory_budget import memory_for_batches
from headrace.data.loader.workers.child_process import ChildProcess
from headrace.data.loader.workers.messages import TaskMessage
from headrace.offload.connection import HostsFile
from headrace.offload.protocol import LoaderSpecMessage

if TYPE_CHECKING:
    from headrace.data.loader.dataloader import DataLoader  # whose import has this one registered

_ANSWER_S = 10.0
_TIMEOUT_HINT = "It was stopped, or this host has no processor time to spare."
_MIN_CORES = 8  # room for hosts that come later
_MAX_TASKS = 96  # each slot is a descriptor in this process and in each worker
_MAX_PARTITIONS = 48  # of each, two batches are made ahead


def partitions_of_rank(hosts_file: HostsFile, world_size: int) -> int:
    """Return how many partitions of a rank's iterable dataset go to auxiliary hosts.

    It is the same on every rank, as scripts expect the same number of workers everywhere.
    """
    if not hosts_file.partitions:
        return 0
    return min(_MAX_PARTITIONS, max(1, hosts_file.partitions // world_size))


class OffloadClient:
    """The auxiliary hosts of one loader's executor; see `RemoteWorkers`.

    Raises LaunchError where the hosts file cannot be read.
    """

    def __init__(self, hosts_file: Path, world: World) -> None:
        hosts = HostsFile.read(hosts_file)
        self._file = hosts_file
        root = Path(hosts.folder)
        self._roots = root, root.resolve()  # working folders have no links
        self._world = world
        cores = max(hosts.cores, _MIN_CORES)
        self.max_open_tasks = min(3 * cores, _MAX_TASKS)
        self.most_bytes = memory_for_batches() // world.local_size
        self.partitions = partitions_of_rank(hosts, world.size)
        self._process: ChildProcess | None = None
        self._ends: tuple[list[int], int] | None = None
        self._spec_count = 0
        self._loader: int | None = None
        self._sent_digest = b""  # of the loader spec that was sent last
        self._noted = 0  # answers taken in since the proxy started, or dropped all tasks

    def connect(self, slots: Sequence[int], answers: int) -> None:
        """Start the proxy; see `RemoteWorkers`."""
        self._ends = list(slots), answers
        self._sent_digest = b""
        self._noted = 0
        self._loader = _recorded_loader_number()
        self._process = ChildProcess(
            f"rank {self._world.rank}: the receiver of batches from auxiliary hosts",
            "headrace.offload.proxy:main",
            [
                answers,
                self._ends[0],
                str(self._file),
                self._world.rank,
                int(self._world.local_rank == 0),
            ],
            descriptors=[answers, *slots],
            environment=env.child_environment(env.CLEARED_IN_CHILDREN),
        )

    @property
    def lives(self) -> bool:
        """Whether its proxy lives."""
        return self._process is not None and self._process.lives

    def start(self, loader_spec: PickledLoaderSpec, partitions: range) -> None:
        """Make batches of a loader spec from now on; see `RemoteWorkers`."""
        if not self.lives and self._ends is not None:
            print_status(
                "the receiver of batches from auxiliary hosts has ended, and is started anew"
            )
            self.connect(*self._ends)
        message = LoaderSpecMessage(
            rank=self._world.rank,
            loader=self._loader,
            folder=self._below_root(Path(loader_spec.folder)) or loader_spec.folder,
            path=[below for entry in sys.path if (below := self._below_root(Path(entry)))],
            variables=loader_spec.variables,
            partitions=partitions.stop,
            content=loader_spec.content,
        )
        content = message.to_bytes()
        digest = hashlib.blake2b(content).digest()
        with suppress(LoaderError):  # it has ended: the local workers go on
            if digest == self._sent_digest and not partitions:  # an iterable dataset starts over
                self._request("again")
                return
            self._spec_count += 1
            self._request("load", self._spec_count, content, list(partitions))
            self._sent_digest = digest

    def send(self, task: TaskMessage, partition: int) -> None:
        """Hand a task to the proxy; raises LoaderError where that has ended."""
        task_fields = task.number, task.slot, task.payload_bytes
        self._request("task", *task_fields, partition, self._noted)

    def note_answer(self) -> None:
        """Count an answer; the proxy learns the number with the next message."""
        self._noted += 1

    def discard(self, number: int) -> None:
        """Report a batch that had been made here meanwhile."""
        with suppress(LoaderError):
            self._request("discard", number)

    def finish(self) -> None:
        """Report how many answers were taken in: no task follows for now."""
        with suppress(LoaderError):
            self._request("noted", self._noted)

    def reclaim_partition(self, partition: int) -> None:
        """Have all tasks of a partition given back, now and later."""
        with suppress(LoaderError):  # it has ended, and the executor takes all tasks back
            self._request("reclaim", partition)

    def forget(self) -> bool:
        """Drop all tasks; afterwards the proxy writes to no slot and sends no answer for one."""
        if self._process is None or not self._process.lives:
            return False
        try:
            self._request("forget", self._noted)
            self._noted = 0
            while self._process.report(_ANSWER_S, _TIMEOUT_HINT)[0] != "forgotten":
                pass
        except LoaderTimeoutError:
            self._process.end()  # it must write nothing from now on
            return False
        except LoaderError:
            return False
        return True

    def report_failure(self, failure: BatchFailure, worker: int) -> None:
        """Report that a batch failed on a host and was made locally."""
        with suppress(LoaderError):
            self._request("failed", worker, failure.summary)

    def close(self) -> None:
        """End the proxy."""
        if self._process is not None and self._process.is_own:
            self._process.close()

    def _request(self, *request: object) -> None:
        if self._process is not None:
            self._process.request(*request)

    def _below_root(self, path: Path) -> str | None:
        """Return a path relative to the job's folder; None for one elsewhere."""
        for root in self._roots:
            with suppress(ValueError):
                return str(path.absolute().relative_to(root))
        return None


def _recorded_loader_number() -> int | None:
    """Return the probe's number of the current loader; None without records."""
    if env.RECORDS_DIR.get() is None:
        return None
    return int(env.child_environment().get(env.LOADER.name, -1))


_MIN_SHARING_WORKERS = 2
"""The least number of workers with which an iterable dataset must share its samples among
workers; with fewer it need not, and many do not."""


class OffloadExecutors:
    """The factory of executors with an offload client; see `ExecutorFactory`."""

    def __init__(self, hosts_file: Path) -> None:
        self._hosts_file = hosts_file
        self._printed: WeakSet[DataLoader] = WeakSet()  # loaders whose partitions were printed

    def new_executor(self, loader: DataLoader) -> Executor:
        """Return a loader's new executor, with an offload client where it can have one."""
        partitions = self.remote_partitions(loader)
        try:
            if partitions or not loader.iterable:
                executor = loader.new_executor(OffloadClient(self._hosts_file, loader.world))
            else:
                executor = loader.new_executor()
        except (HeadraceError, OSError) as error:
            _exclude_loader(loader, error)
            self._printed.add(loader)
            print_local_only(loader, str(error))
            return loader.new_executor()
        if loader.iterable and loader not in self._printed:
            self._printed.add(loader)
            if partitions:
                print_shared(loader, partitions)
            else:
                reason = self.local_only_reason(loader.num_workers, loader.world.size)
                print_local_only(
                    loader, reason or "so are those of the loader that it was copied from"
                )
        return executor

    def remote_partitions(self, loader: DataLoader) -> int:
        """Return how many partitions of a loader's iterable dataset offload servers have."""
        if loader.is_local_only or loader.num_workers < _MIN_SHARING_WORKERS:
            return 0
        return self.partitions(loader.world.size)

    def partitions(self, world_size: int) -> int:
        """Return how many partitions of each rank's iterable dataset offload servers have."""
        return _partitions(self._hosts_file, world_size)

    def local_only_reason(self, num_workers: int, world_size: int) -> str:
        """Return why an iterable dataset has no partitions on offload servers; "": it has."""
        partitions = self.partitions(world_size)
        if not partitions:
            return (
                "it is iterated, and nobody knew when the job began how many cores there would be "
                "on other hosts to share it among; --group NAME=HOSTS:cpus=N says so, --offload "
                "auto does not"
            )
        if num_workers < _MIN_SHARING_WORKERS:
            return (
                f"it is iterated by num_workers={num_workers}, and may not share itself out; with "
                f"num_workers=2 or more it is shared among these and {partitions} on auxiliary "
                "hosts"
            )
        return ""


@functools.cache  # constant for the whole job
def _partitions(hosts_file: Path, world_size: int) -> int:
    return partitions_of_rank(HostsFile.read(hosts_file), world_size)


def is_same_on_all_ranks(error: Exception) -> bool:
    """Whether all ranks meet an error, so that all iterate the dataset as torch does.

    If only one rank did, ranks would share the dataset among different numbers of workers: samples
    would be lost or duplicated without notice.
    """
    return current_world().size == 1 or isinstance(error, NotSendableError)


def _exclude_loader(loader: DataLoader, error: Exception) -> None:
    """Exclude a loader from offload, permanently where its dataset is iterable.

    Its states, and those of its copies, count batches per local worker from then on. Raises the
    given error where other ranks may not have met it, and LoaderError where the loader resumes from
    a position that is counted among more workers.
    """
    if not loader.iterable:
        return
    if not is_same_on_all_ranks(error):
        raise error
    counted = loader.resumed_count
    if counted is not None and counted.position:
        raise LoaderError(
            f"The loader goes on from batch {counted.position}, counted among {counted.workers} "
            f"workers, and those on auxiliary hosts cannot be had. Start the job anew. {error}"
        ) from error
    loader.is_local_only = True


def print_local_only(loader: Any, why: str) -> None:
    """Print that a loader's batches are made on this host alone."""
    kind = type(loader.dataset).__name__
    print_status(f"batches of {kind} are made on this host alone: {why}")


def print_shared(loader: Any, partitions: int) -> None:
    """Print among how many workers a loader's iterable dataset is shared."""
    here, world = loader.num_workers, current_world()
    if world.local_rank:  # local rank 0 prints it for all
        return
    kind = type(loader.dataset).__name__
    of_each = " in each rank" if world.size > 1 else ""
    print_status(
        f"{kind} is shared among {here + partitions} workers{of_each}: {here} here, "
        f"{partitions} on auxiliary hosts"
    )
