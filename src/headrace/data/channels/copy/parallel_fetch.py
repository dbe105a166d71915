"""Small objects of a copy, fetched by several processes: one alone is limited by one core.

A small object costs a process half a millisecond of a core or more, so it fetches at most 2,000 a
second, however many are in flight. The sidecar reads its share as a message, reports counts, and
says when it is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import StorageError
from headrace.core.process.sidecar import Sidecar, SidecarParent, run_sidecar
from headrace.core.world import usable_cores
from headrace.data.channels.copy.cache_dir import CacheDir, disk_errors
from headrace.data.channels.copy.fetcher import MAX_REQUESTS, SMALL_BYTES, ObjectFetcher
from headrace.data.channels.copy.object_files import ContentRecords
from headrace.data.channels.copy.progress import CopyCounts
from headrace.data.storage import ObjectInfo, StorageConfig, declare_leaf
from headrace.data.storage.client.requests import submit
from headrace.data.storage.client.subprocess_protocol import object_of_row, object_row

_LEAST_OBJECTS = 1000  # a process fetches as many while another one starts
_MOST_PROCESSES = 4  # some 5,000 objects a second: S3's limit for one prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchShare:
    """The objects that one more process fetches."""

    base: str  # the URL that the objects' paths are below; may hold secrets
    tree: str  # the folder of the tree
    cache: str  # the folder of the cache
    objects: tuple[ObjectInfo, ...]

    def to_fields(self) -> dict[str, Any]:
        """Return a JSON object that `from_fields` reads."""
        objects = [object_row(info) for info in self.objects]
        return {"base": self.base, "tree": self.tree, "cache": self.cache, "objects": objects}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> FetchShare:
        """Return the share that `to_fields` wrote."""
        return cls(**{**fields, "objects": tuple(map(object_of_row, fields["objects"]))})


def default_processes() -> int:
    """Return the number of processes for small objects: one for two cores, four at most."""
    return max(1, min(_MOST_PROCESSES, usable_cores() // 2))


def split_objects(objects: Sequence[ObjectInfo], processes: int) -> list[list[ObjectInfo]]:
    """Split objects among up to `processes` processes; the first one has all large objects."""
    small = [info for info in objects if info.size_bytes <= SMALL_BYTES]
    count = max(1, min(processes, len(small) // _LEAST_OBJECTS))
    shares = [small[number::count] for number in range(count)]
    shares[0] += [info for info in objects if info.size_bytes > SMALL_BYTES]
    return shares


@contextmanager
def fetch_in_processes(
    shares: Sequence[FetchShare], counts: CopyCounts
) -> Iterator[list[Future[None]]]:
    """Fetch each share in a process of its own; leaving the block ends the processes.

    Call it in the main thread: the processes end with the thread that started them.

    Yields:
        A future for each process; its error is the process's.

    Raises:
        StorageError: No more processes can be started.
    """
    with ExitStack() as ending:
        pool = ThreadPoolExecutor(max(1, len(shares)), thread_name_prefix="headrace-share")
        ending.callback(pool.shutdown)  # after the processes, whose ends end its threads' work
        works = []
        for share in shares:
            sidecar = _start()
            ending.callback(sidecar.kill)
            works.append(pool.submit(_follow, sidecar, share, counts))
        yield works


def _start() -> Sidecar:
    try:
        return Sidecar("headrace.data.channels.copy.parallel_fetch", {})
    except OSError as error:
        raise StorageError(
            f"One more process to fetch with could not be started: {error.strerror}. How many "
            "there may be is limited by ulimit -u, or by the container."
        ) from error


def _follow(sidecar: Sidecar, share: FetchShare, counts: CopyCounts) -> None:
    """Send a process its share, and count its reports until it is done."""
    sidecar.send(share.to_fields())
    while (message := sidecar.receive()) is not None:
        if message == _DONE:
            return
        counts.add(**message)
    raise StorageError(
        f"A process that fetched {len(share.objects):,} objects to {share.tree} ended before they "
        f"were there (exit code {sidecar.wait()}). Was it killed, as where memory is short? What "
        "has come stays: start the job again."
    )


_DONE = {"done": True}
_REPORT_EVERY_S = 0.2


def main(parent: SidecarParent) -> None:
    """Fetch a share, and report counts."""
    declare_leaf()
    fields = parent.read()
    if fields is None:
        return
    share = FetchShare.from_fields(fields)
    with disk_errors(share.tree):
        _fetch(share, parent)
    parent.send(_DONE)


def _fetch(share: FetchShare, parent: SidecarParent) -> None:
    folders, counts = CacheDir(Path(share.cache)), CopyCounts()
    known = ContentRecords(folders, share.base, is_read=False)
    config = StorageConfig(in_flight=MAX_REQUESTS)
    fetcher = ObjectFetcher(share.base, share.tree, folders, known, counts, config)
    work = submit(fetcher.fetch(share.objects))
    reported_objects, reported_bytes, is_done = 0, 0, False
    while not is_done:
        is_done = bool(wait([work], timeout=_REPORT_EVERY_S).done)
        objects, size_bytes = counts.fetched, counts.fetched_bytes
        parent.send(
            {"objects": objects - reported_objects, "size_bytes": size_bytes - reported_bytes}
        )
        reported_objects, reported_bytes = objects, size_bytes
    work.result()


if __name__ == "__main__":
    run_sidecar(main)
