"""A channel's tree: taken as it is where a job has made it, else made; held while it is used."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import HeadraceError, StorageError
from headrace.data.copies.fetching import FOLDER, Fetcher
from headrace.data.copies.folders import CacheFolders, Lock, told_of_disk, wait_for_lock
from headrace.data.copies.known import KnownContents
from headrace.data.copies.listing import Listing, named_few
from headrace.data.copies.objects import Objects, is_untouched
from headrace.data.copies.progress import Progress, say
from headrace.data.copies.room import Need, make_room
from headrace.data.copies.sharing import Share, default_processes, fetching_elsewhere, share_out
from headrace.data.storage import ObjectInfo, StorageConfig
from headrace.data.storage.background import submit

_PATIENCE_S = 120.0  # a process that makes a tree shows that it lives every second
_BEAT_S = 1.0
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTree:
    """A complete tree that nobody removes while it is held.

    Attributes:
        folder: Where the channel's files are.
        listing: What they are of.
        lock: What holds it.
        used: The file whose time says when it was last in use.
    """

    folder: Path
    listing: Listing
    lock: Lock
    used: Path

    def let_go(self) -> None:
        """Note that it was in use until now, and let go of it."""
        with suppress(OSError):
            os.utime(self.used)
        self.lock.close()


class Trees:
    """The trees of a cache.

    Args:
        folders: The cache's.
        limit_bytes: How much it may hold; None: what the disk does.
        config: How requests are made.
        processes: How many fetch small objects at once; None: as the cores allow.
    """

    def __init__(
        self, folders: CacheFolders, limit_bytes: int | None, config: StorageConfig,
        processes: int | None = None,
    ) -> None:  # fmt: skip
        self._folders = folders
        self._limit_bytes = limit_bytes
        self._config = config
        self._processes = processes or default_processes()

    def hold(self, name: str, listing: Listing) -> HeldTree:
        """Return the tree of a listing, made where there is none, and held.

        Args:
            name: The channel's.
            listing: What it has.

        Raises:
            StorageError: An object cannot be had, or the disk cannot take it.
            UsageError: The disk has no locks.
        """
        for identity in _identities(listing.identity()):
            while True:
                lock = self._folders.lock(identity)
                if not self._taken_alone(name, identity, lock):
                    if self._is_intact(identity, listing):
                        return self._held(name, identity, listing, lock)
                    lock.close()
                    break  # a running job has spoilt it: another one is made beside it
                if not self._is_intact(identity, listing):
                    self._make(name, identity, listing)
                # Turned into a shared one it may be lost for a moment: then all begins anew.
                if lock.take(alone=False) and self._folders.complete(identity).exists():
                    return self._held(name, identity, listing, lock, said=True)
                lock.close()
        raise AssertionError

    def _taken_alone(self, name: str, identity: str, lock: Lock) -> bool:
        """Take a tree's lock alone; False: it is complete, and taken together with others."""
        complete, beat = self._folders.complete(identity), self._folders.tree(identity) / "beat"

        def is_shared() -> bool:
            return complete.exists() and lock.take(alone=False)

        if is_shared():
            return False
        return wait_for_lock(
            lock,
            alone=True,
            first=lambda holder: say(
                f"headrace: channel {name}: {holder} is copying the same; waiting for it\n"
            ),
            alive=lambda: _modified_s(beat),
            patience_s=_PATIENCE_S,
            until=is_shared,
        )

    def _held(
        self, name: str, identity: str, listing: Listing, lock: Lock, *, said: bool = False
    ) -> HeldTree:
        complete = self._folders.complete(identity)
        os.utime(complete)
        if not said:
            progress = Progress(name, len(listing.objects), listing.size_bytes)
            progress.end(listing.url)
        folder = self._folders.tree(identity) / "data"
        return HeldTree(folder=folder, listing=listing, lock=lock, used=complete)

    def _is_intact(self, identity: str, listing: Listing) -> bool:
        """Whether a tree is complete, and nobody has written to its files since."""
        if not self._folders.complete(identity).exists():
            return False
        data = self._folders.tree(identity) / "data"
        return not any(_lacks(f"{data}/{info.path}", info) for info in listing.objects)

    def _make(self, name: str, identity: str, listing: Listing) -> None:
        tree = self._folders.tree(identity)
        data = tree / "data"
        known = KnownContents(self._folders, listing.base)
        progress = Progress(name, len(listing.objects), listing.size_bytes)
        try:
            self._folders.complete(identity).unlink(missing_ok=True)
            data.mkdir(parents=True, exist_ok=True)
            for folder in listing.folders:
                (data / folder).mkdir(exist_ok=True)
            missing = self._link_known(listing, data, known, progress)
            need = Need(
                channel=f"--channel {name}={listing.url}",
                size_bytes=listing.size_bytes,
                missing_bytes=sum(info.size_bytes for info in missing),
                missing_files=len(missing),
            )
            make_room(self._folders, need, self._limit_bytes)
            if missing:
                self._fetch(missing, listing.base, tree, known, progress)
            lost = [info.path for info in listing.objects if _lacks(f"{data}/{info.path}", info)]
            if lost:
                raise StorageError(
                    f"{need.channel}: {named_few(lost)}: gone from {data} while the channel was "
                    "copied. Does another program tidy there? Name another folder: --cache-dir."
                )
            self._folders.complete(identity).touch()
        except HeadraceError:
            raise
        except OSError as error:
            raise told_of_disk(error, str(data)) from error
        known.close()  # not after a failure: threads may be writing there, until this process ends
        progress.end(listing.url)

    def _fetch(
        self, missing: Sequence[ObjectInfo], base: str, tree: Path, known: KnownContents,
        progress: Progress,
    ) -> None:  # fmt: skip
        data, cache = str(tree / "data"), str(self._folders.folder)
        own, *others = share_out(missing, self._processes)
        shares = [
            Share(base=base, tree=data, cache=cache, objects=tuple(objects)) for objects in others
        ]
        with fetching_elsewhere(shares, progress) as works:
            fetcher = Fetcher(base, data, self._folders, known, progress, self._config)
            here = submit(fetcher.fetch(own))
            try:
                _show_until([*works, here], progress, tree / "beat")
            finally:
                here.cancel()  # where another process failed

    def _link_known(
        self, listing: Listing, data: Path, known: KnownContents, progress: Progress
    ) -> list[ObjectInfo]:
        """Have what is on this host already in the tree; return what is not."""
        objects, missing = Objects(self._folders), []
        for info in listing.objects:
            place = f"{data}/{info.path}"
            if _lacks(place, info) and not _link(objects, known.get(info), info, place):
                missing.append(info)
                continue
            progress.keep(objects=1, size_bytes=info.size_bytes)
        return missing


def _link(objects: Objects, content: str | None, info: ObjectInfo, place: str) -> bool:
    if content is None:
        return False
    if content == FOLDER:
        Path(place).mkdir(exist_ok=True)
        return True
    return objects.link(content, info.size_bytes, place)


def _lacks(place: str, info: ObjectInfo) -> bool:
    if is_untouched(place, info.size_bytes):
        return False
    return info.size_bytes > 0 or not Path(place).is_dir()


def _show_until(works: Sequence[Future[None]], progress: Progress, beat: Path) -> None:
    """Wait for works, showing how far they are; each request of theirs has a deadline.

    Raises what the first of them raises that fails.
    """
    beaten_s = 0.0
    while True:
        now = time.monotonic()
        if now - beaten_s >= _BEAT_S:
            beaten_s = now
            beat.touch()
        progress.show()
        done, pending = wait(works, _LOOK_EVERY_S, return_when=FIRST_EXCEPTION)
        for work in done:
            work.result()
        if not pending:
            return


def _modified_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _identities(first: str) -> Iterator[str]:
    yield first
    number = 2
    while True:
        yield f"{first}-{number}"
        number += 1
