"""The files of a folder by what belongs together, and which of these are complete.

A file in the kept folder itself stands alone. A folder whose name speaks of a step or an epoch is
one checkpoint with all that it holds; of other folders, the files of each belong together.

The folder is looked at again and again, not watched by inotify: that knows no network disks, needs
a watch for each folder with a race for each new one, and does not tell what is still open. A look
costs one call a file.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.data.storage.atomic import is_litter
from headrace.launch.uploads.cut_short import is_cut_short
from headrace.launch.uploads.manifest import leads_out
from headrace.launch.uploads.open_files import is_being_written

SETTLING_S = 1.0
"""For so long a file must have been closed and unchanged."""
SETTLING_FOLDER_S = 5.0
"""Likewise all files of a folder, where none of them is known to be written last."""
_OF_A_STEP = re.compile(
    r"(^|[-_=.])(checkpoint|ckpt|step|epoch|iter|iteration|global_?step)[-_=]?\d|^\d+$",
    re.IGNORECASE,
)
_OF_CHECKPOINTER = re.compile(r"(^|/)step-\d{12}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What changes when a file does.

    Attributes:
        size_bytes: Its size.
        mtime_ns: When it was last written.
        inode: Its number on its disk: another one was renamed into its place.
        link: Where a link leads; "": it is a file.
    """

    size_bytes: int
    mtime_ns: int
    inode: int
    link: str = ""


@dataclass(slots=True, kw_only=True)
class Unit:
    """Files that belong together.

    Attributes:
        files: Their marks, by the files' names.
        changed_s: When they were last seen to change, by the clock.
        is_complete: Whether they may be kept as they are.
        is_settling: Whether they changed so lately that they may be complete soon.
    """

    files: dict[str, Mark]
    changed_s: float
    is_complete: bool = False
    is_settling: bool = True


class Watch:
    """A folder that is looked at again and again.

    Args:
        folder: The folder.
        told: Called with what is never kept and why, once a file.
        clock: Gives seconds.
    """

    def __init__(
        self,
        folder: Path,
        told: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._tell = told
        self._clock = clock
        self._told: set[str] = set()
        self._units: dict[str, Unit] = {}

    def look(self, *, at_the_end: bool = False) -> dict[str, Unit]:
        """Return what there is, by the units' names.

        Args:
            at_the_end: Nobody writes any more: what is closed is complete.
        """
        now_s = self._clock()
        found: dict[str, dict[str, Mark]] = {}
        for name, mark in self._files():
            found.setdefault(unit_of(name), {})[name] = mark
        units: dict[str, Unit] = {}
        for key, files in found.items():
            before = self._units.get(key)
            same = before is not None and before.files == files
            units[key] = before if same and before else Unit(files=files, changed_s=now_s)
        self._units = units
        for key, unit in units.items():
            self._judge(key, unit, now_s, at_the_end=at_the_end)
        return units

    def mark(self, name: str) -> Mark | None:
        """Return a file's mark as it is now; None: it is gone."""
        try:
            return _mark_of(self._folder / name)
        except OSError:
            return None

    def _judge(self, key: str, unit: Unit, now_s: float, *, at_the_end: bool) -> None:
        if unit.is_complete:
            return
        last = _has_its_last(key, unit)
        quiet_s = now_s - unit.changed_s
        settles_s = SETTLING_S if last or key in unit.files else SETTLING_FOLDER_S
        unit.is_settling = quiet_s < settles_s and not at_the_end
        if unit.is_settling or last is False:
            return
        try:
            if any(self._is_open(name, mark) for name, mark in unit.files.items()):
                unit.changed_s = now_s  # closed for the whole of the settling time, too
                unit.is_settling = False  # and nobody waits for it
                return
            unit.is_complete = not any(self._is_short(name, unit) for name in unit.files)
        except OSError:  # gone meanwhile: the next look tells
            unit.is_settling = True

    def _is_open(self, name: str, mark: Mark) -> bool:
        return not mark.link and is_being_written(self._folder / name)

    def _is_short(self, name: str, unit: Unit) -> bool:
        if unit.files[name].link or not is_cut_short(self._folder / name):
            return False
        self._tell_once(name, "its end is missing, so it is not kept until it is written anew")
        return True

    def _files(self) -> Iterator[tuple[str, Mark]]:
        for name, path in _walk(self._folder, ""):
            try:
                name.encode()
                mark = _mark_of(path)
            except UnicodeEncodeError:
                self._tell_once(ascii(name), "no store takes such a name, so it is not kept")
                continue
            except OSError:  # gone meanwhile
                continue
            if mark is None:
                self._tell_once(name, "it is neither file nor folder, so it is not kept")
            elif mark.link and leads_out(name, mark.link):
                self._tell_once(name, "this link leads out of the folder, so it is not kept")
            else:
                yield name, mark

    def _tell_once(self, name: str, why: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._tell(f"{self._folder / name}: {why}")


def unit_of(name: str) -> str:
    """Return what a file belongs to: a folder, or the file itself."""
    folders = name.split("/")[:-1]
    for depth, folder in enumerate(folders, start=1):
        if _OF_A_STEP.search(folder):
            return "/".join(folders[:depth])
    return "/".join(folders) or name


def _has_its_last(key: str, unit: Unit) -> bool | None:
    """Tell whether the file is there that is written last; None: none is known."""
    if _OF_CHECKPOINTER.search(key):
        return f"{key}/commit.json" in unit.files
    spread = {name.rpartition("/")[0] for name in unit.files if name.endswith(".distcp")}
    if spread:  # torch.distributed.checkpoint
        # On hosts but the first it never comes.
        return all(f"{folder}/.metadata".lstrip("/") in unit.files for folder in spread) or None
    return None


def _mark_of(path: Path) -> Mark | None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return Mark(size_bytes=0, mtime_ns=0, inode=status.st_ino, link=str(path.readlink()))
    if not stat.S_ISREG(status.st_mode):
        return None
    return Mark(size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)


def _walk(folder: Path, below: str) -> Iterator[tuple[str, Path]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            name = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(folder / entry.name, name)
            elif not is_litter(entry.name):
                yield name, folder / entry.name
