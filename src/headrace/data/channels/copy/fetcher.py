"""The fetcher of a channel's objects, in one process or several, and the progress of a copy.

It fetches many small objects concurrently, large ones in parts. A small object costs a process half
a millisecond of a core or more, so one alone fetches at most 2,000 a second, however many are in
flight. So sidecars fetch shares of them: each reads its share as a message, reports counts, and
says when it is done.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import obstore

from headrace.core.console import write_status
from headrace.core.errors import CorruptError, NotFoundError, StorageError
from headrace.core.process.sidecar import SILENCE_S, Sidecar, SidecarParent, run_sidecar
from headrace.core.units import format_bytes, format_seconds
from headrace.core.world import usable_cores
from headrace.data.channels.copy.cache_dir import CacheDir, disk_errors
from headrace.data.channels.copy.object_files import (
    ContentRecords,
    ObjectFiles,
    PartialObject,
    content_name,
)
from headrace.data.channels.listing import check_unchanged, place_of
from headrace.data.storage import ObjectInfo, Part, StorageConfig, declare_leaf, parse_url
from headrace.data.storage.client.direct import DirectClient
from headrace.data.storage.client.requests import (
    all_or_none,
    checked_range,
    info_of,
    part_of,
    submit,
)
from headrace.data.storage.client.subprocess_protocol import object_of_row, object_row

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SILENT_S = 2.0  # shorter copies show no progress
_LINE_EVERY_S = 5.0
_REFRESH_EVERY_S = 0.2


class CopyCounts:
    """The counts of a copy; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.objects = 0  # that are complete
        self.size_bytes = 0  # theirs, and those of finished parts
        self.fetched = 0  # objects that came from the store
        self.fetched_bytes = 0

    def add(self, *, objects: int = 0, size_bytes: int = 0) -> None:
        """Count objects and bytes from the store."""
        with self._lock:
            self.fetched += objects
            self.fetched_bytes += size_bytes
        self.keep(objects=objects, size_bytes=size_bytes)

    def keep(self, *, objects: int = 0, size_bytes: int = 0) -> None:
        """Count objects and bytes that were here before."""
        with self._lock:
            self.objects += objects
            self.size_bytes += size_bytes


class CopyProgress(CopyCounts):
    """Shows the progress of a channel's copy, which has so many objects and bytes."""

    def __init__(self, name: str, objects: int, size_bytes: int) -> None:
        super().__init__()
        self._name = name
        self._of_objects = objects
        self._of_bytes = size_bytes
        self._began_s = time.monotonic()
        self._next_s = self._began_s + _SILENT_S
        self._on_terminal = sys.stderr.isatty()
        self._line_shown = False

    def show(self) -> None:
        """Show the progress, every 5 s, or every 0.2 s on a terminal."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + (_REFRESH_EVERY_S if self._on_terminal else _LINE_EVERY_S)
        self._write(self._line(now))

    def end(self, source: str) -> None:
        """Show what was copied, and how fast."""
        elapsed_s = time.monotonic() - self._began_s
        size = format_bytes(self._of_bytes)
        count = "1 object" if self._of_objects == 1 else f"{self._of_objects:,} objects"
        text = f"headrace: channel {self._name}: {count}, {size}, of {source}"
        if not self.fetched:
            self._last(f"{text}: here already\n")
            return
        rate = format_bytes(self.fetched_bytes / max(elapsed_s, 1e-3))
        reused = self._of_objects - self.fetched
        before = f"; {reused:,} were here already" if reused else ""
        self._last(f"{text}: copied in {format_seconds(elapsed_s)} ({rate}/s{before})\n")

    def _line(self, now: float) -> str:
        elapsed_s = now - self._began_s
        rate = self.fetched_bytes / elapsed_s
        left = (self._of_bytes - self.size_bytes) / rate if rate else 0.0
        numbers = [
            f"{self.objects:,}/{self._of_objects:,} objects",
            f"{format_bytes(self.size_bytes)}/{format_bytes(self._of_bytes)}",
            f"{format_bytes(rate)}/s",
            f"{format_seconds(round(left))} left" if rate else "nothing has come yet",
        ]
        return f"headrace: channel {self._name}: {', '.join(numbers)}"

    def _write(self, line: str) -> None:
        if self._on_terminal:
            self._line_shown = True
            write_status(f"\r{line}\x1b[K")
        else:
            write_status(f"{line}\n")

    def _last(self, line: str) -> None:
        write_status(f"\r\x1b[K{line}" if self._line_shown else line)


FOLDER = "folder"
"""The content of an empty object whose key ends in "/": consoles write these as folders."""
SMALL_BYTES = 2**20
"""Objects up to this size are fetched whole; they take less than 256 MiB of memory a process."""
MAX_SMALL_REQUESTS = 128  # at 30 ms latency 4,000 objects a second, more than one loop can process
MAX_PART_REQUESTS = 12  # of large objects: each takes 8 MiB of memory
MAX_REQUESTS = MAX_SMALL_REQUESTS + MAX_PART_REQUESTS
WRITING_THREADS = 4
_WRITE_BATCH_OBJECTS = 16  # objects that one call of a writing thread writes
_Fetched: TypeAlias = tuple[ObjectInfo, memoryview]
_Parts: TypeAlias = asyncio.Queue[tuple[PartialObject, int] | None]
_MD5 = re.compile(r"[0-9a-f]{32}")


class ObjectFetcher:
    """Fetches objects, whose paths are below the URL `base`, into a tree whose folders exist.

    The files of folder `inner` lie directly in the tree.

    `known` gets their contents, `counts` counts them. All its coroutines run on one loop.
    """

    def __init__(
        self, base: str, tree: str, folders: CacheDir, known: ContentRecords,
        counts: CopyCounts, config: StorageConfig, inner: str = "",
    ) -> None:  # fmt: skip
        self._location = parse_url(base)
        self._base = base
        self._inner = inner
        self._client = DirectClient(self._location, config)
        self._tree = tree
        self._folders = folders
        self._objects = ObjectFiles(folders)
        self._known = known
        self._counts = counts
        self._writers = ThreadPoolExecutor(WRITING_THREADS, thread_name_prefix="headrace-write")
        self._fetched_small: list[_Fetched] = []
        self._tags_are_md5 = True

    async def fetch(self, infos: Sequence[ObjectInfo]) -> None:
        """Fetch objects; StorageError: one cannot be fetched or written, or has changed."""
        small = iter([info for info in infos if info.size_bytes <= SMALL_BYTES])
        large = [info for info in infos if info.size_bytes > SMALL_BYTES]
        parts: _Parts = asyncio.Queue(MAX_PART_REQUESTS)
        try:
            await all_or_none(
                [
                    self._fetch_all_small(small),
                    self._plan_parts(large, parts),
                    *(self._fetch_parts(parts) for _ in range(MAX_PART_REQUESTS)),
                ]
            )
        finally:
            self._writers.shutdown(wait=False, cancel_futures=True)

    async def _fetch_all_small(self, infos: Iterable[ObjectInfo]) -> None:
        await all_or_none([self._fetch_small(infos) for _ in range(MAX_SMALL_REQUESTS)])
        await self._place_small(self._fetched_small)

    async def _fetch_small(self, infos: Iterable[ObjectInfo]) -> None:
        for info in infos:
            try:
                data = await self._whole(info)
                self._fetched_small.append((info, data))
            except NotFoundError:
                if info.size_bytes:
                    raise
                self._note_folder(info)
            if len(self._fetched_small) >= _WRITE_BATCH_OBJECTS:
                fetched, self._fetched_small = self._fetched_small, []
                await self._place_small(fetched)

    async def _place_small(self, fetched: Sequence[_Fetched]) -> None:
        """Write objects in a thread: writing a file may take longer than its GET."""
        loop = asyncio.get_running_loop()
        doubtful = await loop.run_in_executor(self._writers, self._write_small, fetched)
        for info, data in doubtful:
            await self._read_again(info, data)

    def _write_small(self, fetched: Sequence[_Fetched]) -> list[_Fetched]:
        """Place objects; return those whose ETag looks like an MD5 and differs."""
        doubtful, placed = [], []
        for info, data in fetched:
            if self._tags_are_md5 and not _matches_etag(info, data):
                doubtful.append((info, data))
                continue
            content = hashlib.sha256(data).hexdigest()
            place = self._place(info)
            with disk_errors(place):
                self._objects.place(content, data, place)
            placed.append((info, content))
            self._counts.add(objects=1, size_bytes=info.size_bytes)
        self._known.add(placed)
        return doubtful

    async def _read_again(self, info: ObjectInfo, data: memoryview) -> None:
        """Accept an object whose second read has the ETag's MD5, or equals the first.

        In the second case the store's ETags are no MD5s, as for encrypted objects.
        """
        again = await self._whole(info)
        if not _matches_etag(info, again):
            if again != data:
                _, target = self._named(info)
                raise CorruptError(
                    f"{target}: two reads of it differ, and neither has the MD5 that its ETag "
                    "says. Something between the store and this host changes bytes: check the "
                    "network's proxies."
                )
            self._tags_are_md5 = False
        self._write_small([(info, again)])

    async def _whole(self, info: ObjectInfo) -> memoryview:
        key, target = self._named(info)

        async def get(store: ObjectStore) -> Part:
            result = await obstore.get_async(store, key)
            data = memoryview(await result.bytes_async())
            return Part(data=checked_range(data, result.meta["size"]), info=info_of(result.meta))

        part = await self._client.request(target, get)
        check_unchanged(target, info, part.info)
        return part.data

    def _note_folder(self, info: ObjectInfo) -> None:
        Path(self._place(info)).mkdir(exist_ok=True)
        self._known.add([(info, FOLDER)])
        self._counts.add(objects=1)

    async def _plan_parts(self, infos: Sequence[ObjectInfo], parts: _Parts) -> None:
        """Queue the missing parts; each draft is opened only when its parts are queued."""
        loop = asyncio.get_running_loop()
        for info in infos:
            with disk_errors(self._place(info)):
                draft = PartialObject(self._folders, self._base, info)
                resumed = await loop.run_in_executor(self._writers, draft.resume)
            self._counts.keep(size_bytes=resumed)
            missing = draft.missing()
            draft.left = len(missing)
            if not missing:
                self._place_draft(draft)
            for number in missing:
                await parts.put((draft, number))
        for _ in range(MAX_PART_REQUESTS):
            await parts.put(None)

    async def _fetch_parts(self, parts: _Parts) -> None:
        loop = asyncio.get_running_loop()
        while (part := await parts.get()) is not None:
            draft, number = part
            start, length = draft.span(number)
            data = await self._part(draft.info, start, length)
            with disk_errors(draft.file):
                await loop.run_in_executor(self._writers, draft.write, number, data)
            self._counts.add(size_bytes=length)
            draft.left -= 1
            if not draft.left:
                self._place_draft(draft)

    async def _part(self, info: ObjectInfo, start: int, length: int) -> memoryview:
        key, target = self._named(info)
        part = await self._client.request(
            f"{target} (bytes {start}-{start + length - 1})",
            lambda store: part_of(store, key, start, length),
        )
        check_unchanged(target, info, part.info)
        return part.data

    def _place_draft(self, draft: PartialObject) -> None:
        content = content_name(draft.digests(), draft.info.size_bytes)
        place = self._place(draft.info)
        with disk_errors(place):
            self._objects.place_draft(draft.file, draft.descriptor, content, place)
            draft.close()
            self._known.add([(draft.info, content)])
        self._counts.add(objects=1)

    def _named(self, info: ObjectInfo) -> tuple[str, str]:
        return self._location.key(info.path), self._location.object_url(info.path)

    def _place(self, info: ObjectInfo) -> str:
        return f"{self._tree}/{place_of(info, self._inner)}"


def _matches_etag(info: ObjectInfo, data: memoryview) -> bool:
    """Return whether data match an object's ETag, where that may be an MD5."""
    if not _MD5.fullmatch(info.etag):
        return True
    return hashlib.md5(data, usedforsecurity=False).hexdigest() == info.etag


_LEAST_OBJECTS = 1000  # a process fetches as many while another one starts
_MOST_PROCESSES = 4  # some 5,000 objects a second: S3's limit for one prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchShare:
    """The objects that one more process fetches."""

    base: str  # the URL that the objects' paths are below; may hold secrets
    inner: str = ""  # the folder whose files lie directly in the tree
    tree: str  # the folder of the tree
    cache: str  # the folder of the cache
    objects: tuple[ObjectInfo, ...]

    def to_fields(self) -> dict[str, Any]:
        """Return a JSON object that `from_fields` reads."""
        objects = [object_row(info) for info in self.objects]
        fields = {"base": self.base, "inner": self.inner, "tree": self.tree, "cache": self.cache}
        return {**fields, "objects": objects}

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

    Yields a future for each, with its error. Call it in the main thread: the processes end with the
    thread that started them. StorageError: no more processes can be started.
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
        return Sidecar("headrace.data.channels.copy.fetcher", {})
    except OSError as error:
        raise StorageError(
            f"One more process to fetch with could not be started: {error.strerror}. How many "
            "there may be is limited by ulimit -u, or by the container."
        ) from error


def _follow(sidecar: Sidecar, share: FetchShare, counts: CopyCounts) -> None:
    """Send a process its share, and count its reports until it is done."""
    sidecar.send(share.to_fields())
    try:
        while (message := sidecar.receive(SILENCE_S)) is not None:  # counts come 5 times a second
            if message == _DONE:
                return
            counts.add(**message)
    except TimeoutError as silence:
        raise StorageError(
            f"A process that fetched {len(share.objects):,} objects to {share.tree} does not "
            f"answer: {silence}. What has come stays: start the job again."
        ) from None
    raise StorageError(
        f"A process that fetched {len(share.objects):,} objects to {share.tree} ended before they "
        f"were there ({sidecar.last_words()}). Was it killed, as where memory is short? What "
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
    fetcher = ObjectFetcher(share.base, share.tree, folders, known, counts, config, share.inner)
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
