"""The sync of a folder to a URL, pass after pass, each of which ends with a manifest.

What is complete is uploaded; then a manifest lists it, with what was listed before of all that is
being written at this moment. So each manifest is a state that the folder could have been found in:
a file that was written after another is never listed without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from headrace.core.errors import CheckpointError
from headrace.jobs.sync.file_groups import FileGroup, FileState, FolderScan, group_of
from headrace.jobs.sync.manifest import SyncedFile, SyncManifest, file_checksum
from headrace.jobs.sync.remote_copy import MergedFiles, RemoteCopy, adopting_manifest

_MAX_UPLOADS = 4
_REMOVALS_WAIT_S = 5.0
"""So long what was removed stays listed: the whole folder may be about to go."""
_REMOVALS_WAIT_LONGEST_S = 60.0
_MAX_PASS_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPass:
    """What one pass came to.

    Attributes:
        uploaded: How many files.
        waiting: Names of files and folders that were not complete.
    """

    uploaded: int
    waiting: tuple[str, ...]


class FolderSync:
    """The keeping of one host's folder.

    Args:
        kept: What is kept at the URL.
        folder: The folder.
        host: The host's name.
        others: The job's other hosts; None: they are not known.
        told: Called with what a user should know.
        clock: Gives seconds.
    """

    def __init__(
        self, kept: RemoteCopy, folder: Path, host: str, others: Iterable[str] | None,
        told: Callable[[str], object], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._kept = kept
        self._folder = folder
        self._host = host
        self._others = None if others is None else set(others)
        self._owner = uuid4().hex[:12]
        self._watch = FolderScan(folder, told, clock)
        self._manifests: list[SyncManifest] = []
        self._synced_states: dict[str, FileState] = {}  # of files as they were uploaded
        self._files: dict[str, SyncedFile] = {}  # likewise, also where no manifest lists them yet
        self._foreign: dict[str, FileState] = {}  # of files that other hosts keep
        self._gone_s: dict[str, float] = {}
        self._number = 0

    def begin(self) -> None:
        """Take over from whoever kept this host's files before.

        Raises:
            CheckpointError: What is kept is broken, or somebody else takes over just now.
            StorageError: The store does not answer.
        """
        union = self._kept.newest()
        before = union.manifests.get(self._host)
        others = self._others
        # One host takes over what hosts of an earlier job have left that have no part in this.
        is_first = others is not None and all(self._host < other for other in others)
        if others is None or not is_first:
            others = set(union.manifests) - {self._host}
        newest = adopting_manifest(
            union, self._host, self._owner, self._kept.generation(self._host) + 1, others
        )
        self._kept.publish(newest)
        self._manifests = [each for each in (before, newest) if each is not None]
        self._kept.drop_before(self._host, newest.generation - 1)
        left = set(union.manifests) - others - {self._host}
        for host in left:
            self._kept.disown(host)
        if is_first:
            self._kept.tidy()
        self._note(union, others)

    def one_pass(self, *, at_the_end: bool = False, may_remove: bool = True) -> SyncPass:
        """Upload what is complete and not kept yet, and publish a manifest where one is due.

        Args:
            at_the_end: The script has ended: what is closed is complete.
            may_remove: What is gone from the folder need not be listed any more.

        Raises:
            CheckpointError: Somebody else keeps this host's files by now, or the folder is gone.
            StorageError: The store does not answer; the next pass begins where this one ended.
            OSError: A file cannot be read.
        """
        if not self._folder.is_dir():
            raise CheckpointError(
                f"{self._folder} is gone. What was kept of it stays at {self._kept.store.url}."
            )
        units = self._own(self._watch.look(at_the_end=at_the_end))
        ready = {key for key, unit in units.items() if unit.is_complete}
        ready -= {key for key in ready if _must_wait(units[key], units.values())}
        files: dict[str, SyncedFile] = {}
        uploaded, waiting = 0, set(units) - ready
        before = self._manifests[-1].files
        for key in sorted(ready, key=lambda each: units[each].changed_s):
            fresh = self._uploaded(units[key])
            if fresh is None:
                waiting.add(key)
                continue
            uploaded += len(fresh)
            self._files |= fresh
            self._synced_states |= units[key].files
            files |= {name: self._files[name] for name in units[key].files}
        files |= {name: file for name, file in before.items() if group_of(name) in waiting}
        wait_s = 0.0 if at_the_end else _REMOVALS_WAIT_S if may_remove else float("inf")
        files |= self._not_yet_removed(before, units, wait_s)
        if files != before:
            self._publish(files)
        return SyncPass(uploaded=uploaded, waiting=tuple(sorted(waiting)))

    def _note(self, union: MergedFiles, others: set[str]) -> None:
        """Note which files are on this host as they are kept: these are not uploaded again."""
        for name, file in union.files.items():
            mark = self._watch.mark(name)
            if mark is None or mark.link != file.link:
                continue
            same = (mark.size_bytes, mark.mtime_ns) == (file.size_bytes, file.mtime_ns)
            if file.link or (same and file_checksum(self._folder / name) == file.checksum):
                own = union.hosts[name] not in others
                (self._synced_states if own else self._foreign)[name] = mark
                if own:
                    self._files[name] = file

    def _own(self, units: Mapping[str, FileGroup]) -> dict[str, FileGroup]:
        """Return units without what other hosts keep; a file that this host changes is its own."""
        found: dict[str, FileGroup] = {}
        for key, unit in units.items():
            files = {
                name: mark for name, mark in unit.files.items() if self._foreign.get(name) != mark
            }
            if files:
                found[key] = FileGroup(
                    files=files, changed_s=unit.changed_s, is_complete=unit.is_complete,
                    is_settling=unit.is_settling,
                )  # fmt: skip
        return found

    def _uploaded(self, unit: FileGroup) -> dict[str, SyncedFile] | None:
        """Upload what is new of a unit; None: it changed meanwhile."""
        new = {
            name: mark for name, mark in unit.files.items() if self._synced_states.get(name) != mark
        }
        if not new:
            return {}
        before = self._manifests[-1].files
        with ThreadPoolExecutor(_MAX_UPLOADS) as pool:
            sending = []
            for name, mark in new.items():
                self._number += 1
                object_name = self._kept.object_name(name, self._host, self._owner, self._number)
                sending.append(pool.submit(self._upload, name, mark, before.get(name), object_name))
            try:
                fresh = {file.name: file for file in (each.result() for each in sending)}
            except FileNotFoundError:
                fresh = {}
        changed = any(self._watch.mark(name) != mark for name, mark in unit.files.items())
        if changed or not fresh:
            for file in fresh.values():
                if file.stored_as and file != before.get(file.name):
                    self._kept.store.delete(file.stored_as)
            return None
        return fresh

    def _upload(
        self, name: str, mark: FileState, before: SyncedFile | None, object_name: str
    ) -> SyncedFile:
        if mark.link:
            return SyncedFile(
                name=name, size_bytes=0, checksum="", mtime_ns=time.time_ns(), stored_as="",
                link=mark.link,
            )  # fmt: skip
        path = self._folder / name
        checksum = file_checksum(path)
        same = before is not None and (before.checksum, before.size_bytes) == (
            checksum, mark.size_bytes,
        )  # fmt: skip
        if before is not None and same:  # touched, or written anew with the same bytes
            object_name = before.stored_as
        else:
            self._kept.store.put(object_name, path)
        return SyncedFile(
            name=name, size_bytes=mark.size_bytes, checksum=checksum, mtime_ns=mark.mtime_ns,
            stored_as=object_name,
        )  # fmt: skip

    def _not_yet_removed(
        self, before: Mapping[str, SyncedFile], units: Mapping[str, FileGroup], wait_s: float
    ) -> dict[str, SyncedFile]:
        """Return what the script has removed, while something may be about to replace it."""
        now_s = self._clock()
        gone = {name for name in before if group_of(name) not in units}
        self._gone_s = {name: self._gone_s.get(name, now_s) for name in gone}
        if wait_s and any(not unit.is_complete for unit in units.values()):
            wait_s = max(wait_s, _REMOVALS_WAIT_LONGEST_S)
        return {
            name: before[name] for name, since_s in self._gone_s.items() if now_s - since_s < wait_s
        }

    def _publish(self, files: Mapping[str, SyncedFile]) -> None:
        newest = SyncManifest(
            host=self._host, generation=self._manifests[-1].generation + 1, owner=self._owner,
            saved_s=time.time(), files=dict(files),
        )  # fmt: skip
        # After a lost answer it may be one that this process had published before.
        self._manifests.append(self._kept.publish(newest))
        self._synced_states = {
            name: mark for name, mark in self._synced_states.items() if name in files
        }
        self._files = {name: file for name, file in self._files.items() if name in files}
        self._kept.prune(self._manifests, self._manifests[-1])
        self._manifests = self._manifests[-2:]


def _must_wait(unit: FileGroup, units: Iterable[FileGroup]) -> bool:
    """Whether something that was written before a unit, or with it, is still settling."""
    return any(
        other.is_settling and other.changed_s <= unit.changed_s
        for other in units
        if other is not unit
    )


def sync_until(
    keeping: FolderSync, is_over: Callable[[float], bool], look_every_s: float,
    told: Callable[[str], object],
) -> None:  # fmt: skip
    """Pass after pass until `is_over`, which waits so long; what fails is told and tried again.

    Raises:
        CheckpointError: Somebody else keeps this host's files by now.
    """
    failing = False
    wait_s = look_every_s
    while not is_over(wait_s):
        begun_s = time.monotonic()
        try:
            done = keeping.one_pass()
        except CheckpointError:
            raise
        except OSError as error:  # a StorageError is one
            wait_s = min(60.0, max(wait_s * 2, 1.0))
            if not failing:
                told(f"{error} It is tried again until it succeeds.")
            failing = True
        else:
            if failing:
                told("checkpoints are kept again")
            # A folder of very many files is looked at less often, for a tenth of a core.
            took_s = 0.0 if done.uploaded else time.monotonic() - begun_s
            failing, wait_s = False, min(_MAX_PASS_INTERVAL_S, max(look_every_s, 9 * took_s))
