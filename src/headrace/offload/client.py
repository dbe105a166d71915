"""The offload client in a rank: its executor's auxiliary hosts, through a proxy process."""

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
from headrace.offload.hosts_file import HostsFile
from headrace.offload.protocol import LoaderSpecMessage

_ANSWER_S = 10.0
_TIMEOUT_HINT = "It was stopped, or this host has no processor time to spare."
_MIN_CORES = 8  # room for hosts that come later
_MAX_TASKS = 96  # each slot is a descriptor, in this process and in each worker
_MAX_PARTITIONS = 48  # ... and of each two batches are made ahead


def partitions_of_rank(found: HostsFile, world_size: int) -> int:
    """Return among how many workers of auxiliary hosts a rank's iterable dataset is shared.

    It is the same on every rank: scripts count on all to have as many workers.
    """
    if not found.strands:
        return 0
    return min(_MAX_PARTITIONS, max(1, found.strands // world_size))


class OffloadClient:
    """Makes batches of one loader on auxiliary hosts.

    Args:
        hosts_file: Tells of them, as they come and go.
        world: This rank's.

    Attributes:
        max_open_tasks: The most tickets that it will ever have room for.
        most_bytes: The most memory that batches made ahead may take, in bytes.
        strands: For how many workers it stands where a dataset is iterated.

    Raises:
        LaunchError: There is no such file.
    """

    def __init__(self, hosts_file: Path, world: World) -> None:
        found = HostsFile.read(hosts_file)
        self._file = hosts_file
        root = Path(found.folder)
        self._roots = root, root.resolve()  # the system tells of the working folder without links
        self._world = world
        cores = max(found.cores, _MIN_CORES)
        self.max_open_tasks = min(3 * cores, _MAX_TASKS)
        self.most_bytes = memory_for_batches() // world.local_size
        self.strands = partitions_of_rank(found, world.size)
        self._process: ChildProcess | None = None
        self._ends: tuple[list[int], int] | None = None
        self._recipes = 0
        self._loader: int | None = None
        self._sent = b""  # the digest of the recipe that was sent last

    def connect(self, slots: Sequence[int], answers: int) -> None:
        """Start the receiver; see `RemoteWorkers`."""
        self._ends = list(slots), answers
        self._sent = b""
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
        """Whether its receiver does."""
        return self._process is not None and self._process.lives

    def start(self, recipe: PickledLoaderSpec, strands: range) -> None:
        """Make batches of a recipe from now on; see `RemoteWorkers`."""
        if not self.lives and self._ends is not None:
            _print_status(
                "the receiver of batches from auxiliary hosts has ended, and is started anew"
            )
            self.connect(*self._ends)
        message = LoaderSpecMessage(
            rank=self._world.rank,
            loader=self._loader,
            folder=self._below_root(Path(recipe.folder)) or recipe.folder,
            path=[below for entry in sys.path if (below := self._below_root(Path(entry)))],
            variables=recipe.variables,
            strands=strands.stop,
            content=recipe.content,
        )
        whole = message.to_bytes()
        digest = hashlib.blake2b(whole).digest()
        with suppress(LoaderError):  # it has ended: the workers here go on
            if digest == self._sent and not strands:  # an iterable dataset is begun anew
                self._request("again")
                return
            self._recipes += 1
            self._request("recipe", self._recipes, whole, list(strands))
            self._sent = digest

    def send(self, ticket: TaskMessage, partition: int) -> None:
        """Take a ticket; raises LoaderError where the receiver has ended."""
        self._request("ticket", ticket.number, ticket.slot, ticket.payload_bytes, partition)

    def reclaim_partition(self, partition: int) -> None:
        """Return all tickets of a strand, now and later."""
        with suppress(LoaderError):  # it has ended, and its tickets come home with it
            self._request("take home", partition)

    def forget(self) -> bool:
        """Forget all tickets; when this returns, nobody writes to a slot or answers for one."""
        if self._process is None or not self._process.lives:
            return False
        try:
            self._request("forget")
            while self._process.report(_ANSWER_S, _TIMEOUT_HINT)[0] != "forgotten":
                pass
        except LoaderTimeoutError:
            self._process.end()  # it must write nothing from now on
            return False
        except LoaderError:
            return False
        return True

    def report_failure(self, failure: BatchFailure, worker: int) -> None:
        """Note that a batch failed over there which could be made here."""
        with suppress(LoaderError):
            self._request("failed", worker, failure.summary)

    def close(self) -> None:
        """End the receiver."""
        if self._process is not None and self._process.is_own:
            self._process.close()

    def _request(self, *request: object) -> None:
        if self._process is not None:
            self._process.request(*request)

    def _below_root(self, path: Path) -> str | None:
        """Return a path from the job's folder on, None for one elsewhere."""
        for root in self._roots:
            with suppress(ValueError):
                return str(path.absolute().relative_to(root))
        return None


def _recorded_loader_number() -> int | None:
    """Return the number by which the probe knows the loader at work; None: nothing is recorded."""
    if env.RECORDS_DIR.get() is None:
        return None
    return int(env.child_environment().get(env.LOADER.name, -1))


def _print_status(line: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(f"headrace: {line}\n")
