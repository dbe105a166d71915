"""Groups of files that belong to one checkpoint, and the test whether they are complete.

A file in the folder itself stands alone. A folder whose name speaks of a step or an epoch is one
checkpoint with all that it holds; of other folders, the files of each belong together. The folder
is scanned again and again, not watched by inotify: that knows no network disks, needs a watch for
each folder with a race for each new one, and does not say what is still open. A scan costs one call
a file.

A file is complete once nobody has it open for writing and its own format does not say that its end
is missing: `torch.save` writes a zip archive, whose directory comes last; a safetensors file gives
its length at its beginning. The kernel grants a read lease on a file only while nobody has it open,
or mapped, for writing; where the file system knows no leases, or the file is another user's, /proc
is looked through.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.core.files import is_temporary
from headrace.jobs.sync.manifest import is_outside_folder

_ZIP = b"PK\x03\x04"
_LONGEST_HEADER = 100_000_000  # safetensors' own limit


def is_truncated(path: Path) -> bool:
    """Tell whether a file is surely not whole; one of a format that is not known may be.

    Raises:
        OSError: It cannot be read.
    """
    if path.suffix == ".safetensors":
        return _is_truncated_safetensors(path)
    with path.open("rb") as file:
        begins = file.read(len(_ZIP))
    return begins == _ZIP and not zipfile.is_zipfile(path)


def _is_truncated_safetensors(path: Path) -> bool:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            return True
        try:
            header = json.loads(file.read(length))
            ends = [
                int(told["data_offsets"][1])
                for name, told in header.items()
                if name != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return False  # another format by the same name
    return size < 8 + length + max(ends, default=0)


_WRITING = os.O_WRONLY | os.O_RDWR


def is_being_written(path: Path) -> bool:
    """Tell whether a process of this machine has a file open for writing.

    The process that asks must ignore SIGIO: whoever opens the file at this very moment has it sent.

    Raises:
        OSError: The file is gone, or may not be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return True
        return _is_open_by_any_process(os.fstat(descriptor))
    else:
        return False
    finally:
        os.close(descriptor)


def _is_open_by_any_process(file: os.stat_result) -> bool:
    own = str(os.getpid())
    for process in os.listdir("/proc"):  # noqa: PTH208  (thousands of them)
        if not process.isdigit() or process == own:
            continue
        with suppress(OSError):  # it has ended, or is another user's
            for number in os.listdir(f"/proc/{process}/fd"):  # noqa: PTH208
                if _writes_to(process, number, file):
                    return True
    return False


def _writes_to(process: str, number: str, file: os.stat_result) -> bool:
    with suppress(OSError):
        there = os.stat(f"/proc/{process}/fd/{number}")  # noqa: PTH116
        if (there.st_dev, there.st_ino) == (file.st_dev, file.st_ino):
            told = Path(f"/proc/{process}/fdinfo/{number}").read_text()
            flags = next(line.split()[1] for line in told.splitlines() if line.startswith("flags"))
            return bool(int(flags, 8) & _WRITING)
    return False


SETTLING_S = 1.0
"""For so long a file must have been closed and unchanged."""
SETTLING_FOLDER_S = 5.0
"""Likewise all files of a folder, where none of them is known to be written last."""
_STEP_FOLDER = re.compile(
    r"(^|[-_=.])(checkpoint|ckpt|step|epoch|iter|iteration|global_?step)[-_=]?\d|^\d+$",
    re.IGNORECASE,
)
_CHECKPOINTER_FOLDER = re.compile(r"(^|/)step-\d{12}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
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
class FileGroup:
    """Files that belong together.

    Attributes:
        files: Their marks, by the files' names.
        changed_s: When they were last seen to change, by the clock.
        is_complete: Whether they may be kept as they are.
        is_settling: Whether they changed so lately that they may be complete soon.
    """

    files: dict[str, FileState]
    changed_s: float
    is_complete: bool = False
    is_settling: bool = True


class FolderScan:
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
        self._file_groups: dict[str, FileGroup] = {}

    def look(self, *, at_the_end: bool = False) -> dict[str, FileGroup]:
        """Return what there is, by the units' names.

        Args:
            at_the_end: Nobody writes any more: what is closed is complete.
        """
        now_s = self._clock()
        found: dict[str, dict[str, FileState]] = {}
        for name, mark in self._files():
            found.setdefault(group_of(name), {})[name] = mark
        units: dict[str, FileGroup] = {}
        for key, files in found.items():
            before = self._file_groups.get(key)
            same = before is not None and before.files == files
            units[key] = before if same and before else FileGroup(files=files, changed_s=now_s)
        self._file_groups = units
        for key, unit in units.items():
            self._judge(key, unit, now_s, at_the_end=at_the_end)
        return units

    def mark(self, name: str) -> FileState | None:
        """Return a file's mark as it is now; None: it is gone."""
        try:
            return _file_state(self._folder / name)
        except OSError:
            return None

    def _judge(self, key: str, unit: FileGroup, now_s: float, *, at_the_end: bool) -> None:
        if unit.is_complete:
            return
        last = _has_final_file(key, unit)
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

    def _is_open(self, name: str, mark: FileState) -> bool:
        return not mark.link and is_being_written(self._folder / name)

    def _is_short(self, name: str, unit: FileGroup) -> bool:
        if unit.files[name].link or not is_truncated(self._folder / name):
            return False
        self._warn_of_file(name, "its end is missing, so it is not kept until it is written anew")
        return True

    def _files(self) -> Iterator[tuple[str, FileState]]:
        for name, path in _walk(self._folder, ""):
            try:
                name.encode()
                mark = _file_state(path)
            except UnicodeEncodeError:
                self._warn_of_file(ascii(name), "no store takes such a name, so it is not kept")
                continue
            except OSError:  # gone meanwhile
                continue
            if mark is None:
                self._warn_of_file(name, "it is neither file nor folder, so it is not kept")
            elif mark.link and is_outside_folder(name, mark.link):
                self._warn_of_file(name, "this link leads out of the folder, so it is not kept")
            else:
                yield name, mark

    def _warn_of_file(self, name: str, why: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._tell(f"{self._folder / name}: {why}")


def group_of(name: str) -> str:
    """Return what a file belongs to: a folder, or the file itself."""
    folders = name.split("/")[:-1]
    for depth, folder in enumerate(folders, start=1):
        if _STEP_FOLDER.search(folder):
            return "/".join(folders[:depth])
    return "/".join(folders) or name


def _has_final_file(key: str, unit: FileGroup) -> bool | None:
    """Tell whether the file is there that is written last; None: none is known."""
    if _CHECKPOINTER_FOLDER.search(key):
        return f"{key}/commit.json" in unit.files
    spread = {name.rpartition("/")[0] for name in unit.files if name.endswith(".distcp")}
    if spread:  # torch.distributed.checkpoint
        # On hosts but the first it never comes.
        return all(f"{folder}/.metadata".lstrip("/") in unit.files for folder in spread) or None
    return None


def _file_state(path: Path) -> FileState | None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return FileState(size_bytes=0, mtime_ns=0, inode=status.st_ino, link=str(path.readlink()))
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileState(size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)


def _walk(folder: Path, below: str) -> Iterator[tuple[str, Path]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            name = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(folder / entry.name, name)
            elif not is_temporary(entry.name):
                yield name, folder / entry.name
