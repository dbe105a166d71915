"""Small objects of a copy, fetched by several processes: one alone is limited by one core.

A small object costs a process half a millisecond of a core or more, so it fetches at most 2,000 a
second, however many are in flight. `python -m headrace.data.channels.copy.parallel_fetch --parent
PID` reads its share as one line, reports counts on stdout, and ends with an answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import HeadraceError, StorageError
from headrace.core.world import usable_cores
from headrace.data.channels.copy.cache_dir import CacheDir, disk_error
from headrace.data.channels.copy.fetcher import MAX_REQUESTS, SMALL_BYTES, ObjectFetcher
from headrace.data.channels.copy.object_files import ContentRecords
from headrace.data.channels.messages import ChannelsAnswer
from headrace.data.channels.sidecar import CopyCounts, become_sidecar, write_answer
from headrace.data.storage import ObjectInfo, StorageConfig
from headrace.data.storage.client.requests import submit

_LEAST_OBJECTS = 1000  # a process fetches as many while another one starts
_MOST_PROCESSES = 4  # some 5,000 objects a second: S3's limit for one prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchShare:
    """The objects that one more process fetches.

    Attributes:
        base: The URL that the objects' paths are below; may hold secrets.
        tree: The folder of the tree.
        cache: The folder of the cache.
        objects: The objects.
    """

    base: str
    tree: str
    cache: str
    objects: tuple[ObjectInfo, ...]

    def to_json(self) -> str:
        """Return one line that `from_json` reads."""
        objects = [(i.path, i.size_bytes, i.etag, i.modified_s) for i in self.objects]
        return json.dumps(
            {"base": self.base, "tree": self.tree, "cache": self.cache, "objects": objects}
        )

    @classmethod
    def from_json(cls, text: str) -> FetchShare:
        """Return the share that `to_json` wrote."""
        fields = json.loads(text)
        objects = (
            ObjectInfo(path=path, size_bytes=size_bytes, etag=etag, modified_s=modified_s)
            for path, size_bytes, etag, modified_s in fields["objects"]
        )
        return cls(**{**fields, "objects": tuple(objects)})


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

    Args:
        shares: One for each process.
        counts: Counts the objects fetched.

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
            process = _start()
            ending.callback(_end, process)
            works.append(pool.submit(_follow, process, share, counts))
        yield works


def _start() -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "headrace.data.channels.copy.parallel_fetch"]
    try:
        return subprocess.Popen(
            [*command, "--parent", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    except OSError as error:
        raise StorageError(
            f"One more process to fetch with could not be started: {error.strerror}. How many "
            "there may be is limited by ulimit -u, or by the container."
        ) from error


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def _follow(process: subprocess.Popen[str], share: FetchShare, counts: CopyCounts) -> None:
    """Send a process its share, and count its reports until it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{share.to_json()}\n")
        process.stdin.flush()
    except BrokenPipeError:  # it has ended; its output says why
        pass
    for line in process.stdout:
        message = json.loads(line)
        if isinstance(message, list):
            objects, size_bytes = message
            counts.add(objects=objects, size_bytes=size_bytes)
            continue
        error = ChannelsAnswer.from_json(line).error()
        if error is not None:
            raise error
        return
    raise StorageError(
        f"A process that fetched {len(share.objects):,} objects to {share.tree} ended before they "
        f"were there (exit code {process.wait()}). Was it killed, as where memory is short? What "
        "has come stays: start the job again."
    )


_REPORT_EVERY_S = 0.2


def main() -> None:
    """Fetch a share, report counts, and answer."""
    become_sidecar(int(sys.argv[2]))
    share = FetchShare.from_json(sys.stdin.readline())
    code = 1
    try:
        write_answer(_answer(share))
        code = 0
    finally:
        if code:
            traceback.print_exc()
        # At once: an orderly exit would finalise the interpreter under the client's threads.
        os._exit(code)


def _answer(share: FetchShare) -> ChannelsAnswer:
    try:
        _fetch(share)
    except HeadraceError as error:
        return ChannelsAnswer.of(error)
    except OSError as error:
        return ChannelsAnswer.of(disk_error(error, share.tree))
    return ChannelsAnswer(folders={})


def _fetch(share: FetchShare) -> None:
    folders, counts = CacheDir(Path(share.cache)), CopyCounts()
    known = ContentRecords(folders, share.base, is_read=False)
    config = StorageConfig(in_flight=MAX_REQUESTS)
    fetcher = ObjectFetcher(share.base, share.tree, folders, known, counts, config)
    work = submit(fetcher.fetch(share.objects))
    reported_objects, reported_bytes, is_done = 0, 0, False
    while not is_done:
        is_done = bool(wait([work], timeout=_REPORT_EVERY_S).done)
        objects, size_bytes = counts.fetched, counts.fetched_bytes
        sys.stdout.write(
            f"{json.dumps([objects - reported_objects, size_bytes - reported_bytes])}\n"
        )
        sys.stdout.flush()
        reported_objects, reported_bytes = objects, size_bytes
    work.result()


if __name__ == "__main__":
    main()
