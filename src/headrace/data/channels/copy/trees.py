"""The trees of channels in the cache: made, or reused from another job, locked while in use.

The sidecar that copies channels answers with the copies' folders; then it waits. On `END` it checks
whether objects have changed since, and reports that on stderr; where its input ends it exits at
once. It forks nothing, as the object-store client does not survive a fork: its children are
programs of their own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from headrace.core.console import print_status
from headrace.core.errors import StorageError
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.data.channels.copy.cache_dir import (
    CacheDir,
    CacheLock,
    SpaceNeed,
    disk_errors,
    make_space,
    wait_for_lock,
)
from headrace.data.channels.copy.fetcher import (
    FOLDER,
    MAX_REQUESTS,
    CopyProgress,
    FetchShare,
    ObjectFetcher,
    default_processes,
    fetch_in_processes,
    split_objects,
)
from headrace.data.channels.copy.object_files import ContentRecords, ObjectFiles, is_unmodified
from headrace.data.channels.listing import (
    ChannelListing,
    first_names,
    list_channel,
    warn_of_changes,
)
from headrace.data.channels.sidecar_client import END, ChannelRequest, ChannelsRequest
from headrace.data.storage import ObjectInfo, StorageConfig, declare_leaf
from headrace.data.storage.client.requests import submit

_PATIENCE_S = 120.0  # a process that makes a tree updates its heartbeat every second
_HEARTBEAT_S = 1.0
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedTree:
    """A complete tree that is locked, so that nobody removes it."""

    folder: Path  # of the channel's files
    listing: ChannelListing
    lock: CacheLock  # shared
    used: Path  # its modification time is the last use

    def let_go(self) -> None:
        """Update the time of last use, and release the lock."""
        with suppress(OSError):
            os.utime(self.used)
        self.lock.close()


class CacheTrees:
    """The trees of a cache with a limit, None for the disk's.

    Small objects are fetched in `processes`, None: as many as the cores allow.
    """

    def __init__(
        self, folders: CacheDir, limit_bytes: int | None, config: StorageConfig,
        processes: int | None = None,
    ) -> None:  # fmt: skip
        self._folders = folders
        self._limit_bytes = limit_bytes
        self._config = config
        self._processes = processes or default_processes()

    def hold(self, name: str, listing: ChannelListing) -> LockedTree:
        """Return the tree of a channel's listing, made if needed, and locked.

        StorageError: an object cannot be fetched or stored. UsageError: the disk has no locks.
        """
        first = listing.identity()
        for identity in chain([first], (f"{first}-{number}" for number in count(2))):
            while True:
                lock = self._folders.lock(identity)
                if not self._lock_exclusively(name, identity, lock):
                    if self._is_intact(identity, listing):
                        progress = CopyProgress(name, len(listing.objects), listing.size_bytes)
                        progress.end(listing.url)
                        return self._held(identity, listing, lock)
                    lock.close()
                    break  # a running job has changed its files: make another tree
                if not self._is_intact(identity, listing):
                    self._make(name, identity, listing)
                # Converting the lock is not atomic: where another process took it, start again.
                if lock.take(alone=False) and self._folders.complete(identity).exists():
                    return self._held(identity, listing, lock)
                lock.close()
        raise AssertionError

    def _lock_exclusively(self, name: str, identity: str, lock: CacheLock) -> bool:
        """Take a tree's lock exclusively; False where it is complete and now locked shared."""
        complete = self._folders.complete(identity)
        heartbeat = self._folders.tree(identity) / "beat"

        def is_shared() -> bool:
            return complete.exists() and lock.take(alone=False)

        if is_shared():
            return False
        return wait_for_lock(
            lock,
            first=lambda holder: print_status(
                f"channel {name}: {holder} is copying the same; waiting for it"
            ),
            alive=lambda: _modified_s(heartbeat),
            patience_s=_PATIENCE_S,
            until=is_shared,
        )

    def _held(self, identity: str, listing: ChannelListing, lock: CacheLock) -> LockedTree:
        complete = self._folders.complete(identity)
        os.utime(complete)
        folder = self._folders.tree(identity) / "data"
        return LockedTree(folder=folder, listing=listing, lock=lock, used=complete)

    def _is_intact(self, identity: str, listing: ChannelListing) -> bool:
        """Return whether a tree is complete, and nobody has written to its files since."""
        if not self._folders.complete(identity).exists():
            return False
        data = self._folders.tree(identity) / "data"
        return not _missing(data, listing)

    def _make(self, name: str, identity: str, listing: ChannelListing) -> None:
        tree = self._folders.tree(identity)
        data = tree / "data"
        known = ContentRecords(self._folders, listing.base)
        progress = CopyProgress(name, len(listing.objects), listing.size_bytes)
        with disk_errors(data):
            self._folders.complete(identity).unlink(missing_ok=True)
            data.mkdir(parents=True, exist_ok=True)
        with disk_errors(data), _heartbeat(tree / "beat"):
            for folder in listing.folders:
                (data / folder).mkdir(exist_ok=True)
            missing = self._hardlink_known(listing, data, known, progress)
            need = SpaceNeed(
                channel=f"--channel {name}={listing.url}",
                size_bytes=listing.size_bytes,
                missing_bytes=sum(info.size_bytes for info in missing),
                missing_files=len(missing),
            )
            make_space(self._folders, need, self._limit_bytes)
            if missing:
                self._fetch(missing, listing, tree, known, progress)
            lost = _missing(data, listing)
            if lost:
                raise StorageError(
                    f"{need.channel}: {first_names(lost)}: gone from {data} while the channel was "
                    "copied. Does another program tidy there? Name another folder: --cache-dir."
                )
            self._folders.complete(identity).touch()
        known.close()  # not after a failure: threads may still write there
        progress.end(listing.url)

    def _fetch(
        self, missing: Sequence[ObjectInfo], listing: ChannelListing, tree: Path,
        known: ContentRecords, progress: CopyProgress,
    ) -> None:  # fmt: skip
        data, cache = str(tree / "data"), str(self._folders.folder)
        own_objects, *others = split_objects(missing, self._processes)
        shares = [
            FetchShare(
                base=listing.base,
                inner=listing.inner,
                tree=data,
                cache=cache,
                objects=tuple(objects),
            )
            for objects in others
        ]
        with fetch_in_processes(shares, progress) as futures:
            fetcher = ObjectFetcher(
                listing.base, data, self._folders, known, progress, self._config, listing.inner
            )
            own_future = submit(fetcher.fetch(own_objects))
            try:
                _show_until([*futures, own_future], progress)
            finally:
                own_future.cancel()  # needed where another process failed

    def _hardlink_known(
        self, listing: ChannelListing, data: Path, known: ContentRecords, progress: CopyProgress
    ) -> list[ObjectInfo]:
        """Link objects that the cache has into the tree; return the missing ones."""
        objects, missing = ObjectFiles(self._folders), []
        for info in listing.objects:
            place = f"{data}/{listing.place(info)}"
            if _is_missing(place, info) and not _hardlink(objects, known.get(info), info, place):
                missing.append(info)
                continue
            progress.keep(objects=1, size_bytes=info.size_bytes)
        return missing


def _hardlink(objects: ObjectFiles, content: str | None, info: ObjectInfo, place: str) -> bool:
    if content is None:
        return False
    if content == FOLDER:
        Path(place).mkdir(exist_ok=True)
        return True
    return objects.link(content, info.size_bytes, place)


def _missing(data: Path, listing: ChannelListing) -> list[str]:
    return [
        info.path for info in listing.objects if _is_missing(f"{data}/{listing.place(info)}", info)
    ]


def _is_missing(place: str, info: ObjectInfo) -> bool:
    if is_unmodified(place, info.size_bytes):
        return False
    return info.size_bytes > 0 or not Path(place).is_dir()


@contextmanager
def _heartbeat(file: Path) -> Iterator[None]:
    """Touch a file now and every second: those that wait see by it that this process goes on."""
    ended = threading.Event()

    def beat() -> None:
        is_over = False
        while not is_over:
            with suppress(OSError):  # a full disk, of which what writes there says more
                file.touch()
            is_over = ended.wait(_HEARTBEAT_S)

    thread = threading.Thread(target=beat, daemon=True, name="heartbeat of a copy")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_HEARTBEAT_S)  # a disk that hangs does so for what follows, too


def _show_until(futures: Sequence[Future[None]], progress: CopyProgress) -> None:
    """Wait for futures, whose requests have deadlines; raises the first error of one."""
    while True:
        progress.show()
        done, pending = wait(futures, _LOOK_EVERY_S, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        if not pending:
            return


def _modified_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def main(parent: SidecarParent) -> None:
    """Copy the channels, answer, hold their locks until the job ends, and check for changes."""
    declare_leaf()
    request = ChannelsRequest.from_fields(parent.request)
    config = StorageConfig(in_flight=MAX_REQUESTS)
    locked: list[tuple[ChannelRequest, LockedTree]] = []
    try:
        with parent.heartbeats():
            for channel in request.channels:
                trees = CacheTrees(CacheDir(Path(channel.folder)), request.limit_bytes, config)
                listing = list_channel(channel, config)
                listing.print_outside_folder(channel.name)
                locked.append((channel, trees.hold(channel.name, listing)))
        parent.send({"folders": {channel.name: str(tree.folder) for channel, tree in locked}})
        if parent.read() == END:
            for channel, tree in locked:
                warn_of_changes(channel, tree.listing, config, read="them as they were before")
    finally:
        for _, tree in locked:
            tree.let_go()


if __name__ == "__main__":
    run_sidecar(main)
