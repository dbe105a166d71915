"""The offload client in a rank: it has a loader's batches made on auxiliary hosts by a proxy."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.core import env
from headrace.core.errors import LoaderError, LoaderTimeoutError
from headrace.core.world import World
from headrace.data.loader.batch_builder import PickledLoaderSpec
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.memory_budget import memory_for_batches
from headrace.data.loader.workers.child_process import ChildProcess
from headrace.data.loader.workers.messages import TaskMessage
from headrace.offload.host_status import print_status
from headrace.offload.hosts_file import HostsFile
from headrace.offload.protocol import LoaderSpecMessage

_ANSWER_S = 10.0
_TIMEOUT_HINT = "It was stopped, or this host has no processor time to spare."
_MIN_CORES = 8  # room for hosts that come later
_MAX_TASKS = 96  # each slot is a descriptor in this process and in each worker
_MAX_PARTITIONS = 48  # of each, two batches are made ahead


def partitions_of_rank(hosts_file: HostsFile, world_size: int) -> int:
    """Return how many partitions of a rank's iterable dataset go to auxiliary hosts.

    It is the same on every rank, as scripts expect the same number of workers everywhere.
    """
    if not hosts_file.strands:
        return 0
    return min(_MAX_PARTITIONS, max(1, hosts_file.strands // world_size))


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
            strands=partitions.stop,
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
