"""The groups of files that belong to one checkpoint, and the test whether they are complete.

A folder named after a step or an epoch is one checkpoint with all its contents. Elsewhere, at the
top as in other folders, only the parts of a split checkpoint belong together, see `group_of`; any
other file stands alone. The folder is scanned repeatedly, not watched with inotify: inotify does
not work on network file systems, needs a watch for each folder with a race for each new one, and
does not report files that are still open. A scan costs one system call per file.

A file is complete once no process has it open for writing and its format shows no missing end:
`torch.save` writes a zip archive, whose directory comes last; a safetensors file states its length
at its beginning. The kernel grants a read lease on a file only while no process has it open, or
mapped, for writing; where the file system has no leases, or the file belongs to another user, the
descriptors in /proc are searched.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import BinaryIO

from headrace.core.files import is_temporary, open_regular_file
from headrace.jobs.sync.remote_copy import is_outside_folder

_ZIP = b"PK\x03\x04"
_SPLIT_PART = re.compile(
    r"^x(aa+|00+)$|[._-]aa+$|\.(zip|tar|pth?|ckpt|bin|npz|safetensors)\.00+1?$|\.z01$"
    r"|(^|[._-])part[-_.]?(aa+|0*[01])(\.(zip|tar))?$"
)
"""Names of the first part of an archive that was split, whose end is in another."""
_LONGEST_HEADER = 100_000_000  # the limit of safetensors itself


def is_truncated(path: Path, name: str = "") -> bool:
    """Whether a file is known to be incomplete; False for unknown formats.

    The parts of an archive that was split, by their names, are whole as they are. `name` is that of
    a link to it. Raises OSError (it cannot be read).
    """
    called = PurePath(name or path)
    with open(open_regular_file(path), "rb") as file:  # noqa: PTH123 - a descriptor
        if called.suffix == ".safetensors":
            return _is_truncated_safetensors(file)
        if _SPLIT_PART.search(called.name):
            return False
        return file.read(len(_ZIP)) == _ZIP and not zipfile.is_zipfile(file)


def _is_truncated_safetensors(file: BinaryIO) -> bool:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _LONGEST_HEADER):
        return True
    try:
        header = json.loads(file.read(length))
        ends = [
            int(tensor["data_offsets"][1])
            for name, tensor in header.items()
            if name != "__metadata__"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return False  # another format by the same name
    return size < 8 + length + max(ends, default=0)


_WRITING = os.O_WRONLY | os.O_RDWR


def is_being_written(path: Path) -> bool:
    """Whether a process of this machine has a file open for writing.

    The caller must ignore SIGIO, which the kernel sends if the file is opened meanwhile.

    Raises OSError (the file is gone, or may not be read).
    """
    descriptor = open_regular_file(path)
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
        with suppress(OSError):  # it has ended, or belongs to another user
            for number in os.listdir(f"/proc/{process}/fd"):  # noqa: PTH208
                if _writes_to(process, number, file):
                    return True
    return False


def _writes_to(process: str, number: str, file: os.stat_result) -> bool:
    with suppress(OSError):
        opened = os.stat(f"/proc/{process}/fd/{number}")  # noqa: PTH116
        if (opened.st_dev, opened.st_ino) == (file.st_dev, file.st_ino):
            info = Path(f"/proc/{process}/fdinfo/{number}").read_text()
            flags = next(line.split()[1] for line in info.splitlines() if line.startswith("flags"))
            return bool(int(flags, 8) & _WRITING)
    return False


BEING_WRITTEN = "a process has it open for writing"
CUT_SHORT = "its end is missing"
SETTLING_S = 1.0
"""How long a file must have been closed and unchanged, in seconds."""
SETTLING_FOLDER_S = 5.0
"""The same for all files of a group in which no known file is written last."""
_CHECKPOINT_FOLDER = re.compile(
    r"(^|[-_=.])(checkpoint|ckpt|step|epoch|iter|iteration|global_?step)[-_=]?\d|^\d+$|\w\.ckpt$",
    re.IGNORECASE,
)
_RANK_PARTS = {
    "*.distcp": re.compile(r"^\.metadata$|\.distcp$"),  # torch.distributed.checkpoint
    "*_states.pt": re.compile(  # DeepSpeed
        r"(mp_rank_\d+_|^layer_\d+-model_\d+-)(model|optim)_states\.pt$"
    ),
}
_SHARD = re.compile(r"-\d{5}-of-\d{5}(\.\w+)?$|(\.\w+)\.index\.json$")  # Hugging Face
_CHECKPOINTER_FOLDER = re.compile(r"(^|/)step-([0-9]{12}|[1-9][0-9]{12,})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """The properties of a file that change when its content does."""

    size_bytes: int
    mtime_ns: int
    inode: int  # another file may have been renamed to its name
    device: int = 0  # of the file system that holds it
    # Of the last change, of content or anything else: programs that copy files set the mtime.
    ctime_ns: int = 0
    link: str = ""  # the target of a link; "": it is a file


@dataclass(slots=True, kw_only=True)
class FileGroup:
    """Files that belong together."""

    files: dict[str, FileState]
    changed_s: float  # when they were last seen to change, by the scan's clock
    is_complete: bool = False  # they may be uploaded as they are
    is_settling: bool = True  # they changed so recently that they may be complete soon
    is_unreadable: bool = False  # the file system does not tell what is there
    # Why they cannot be uploaded now, by file; what may change by itself, such as settling, is none
    problems: dict[str, str] = field(default_factory=dict)


class FolderScan:
    """A repeated scan of a folder.

    `report` is called once per file that is never synced, with the reason. `seen_as` has other
    paths of the folder, as the script may have them.
    """

    def __init__(
        self,
        folder: Path,
        report: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
        seen_as: Sequence[str] = (),
    ) -> None:
        self._folder, self._report, self._clock = folder, report, clock
        self._roots = list(dict.fromkeys((str(folder), os.path.realpath(folder), *seen_as)))
        self._reported: set[tuple[str, str]] = set()
        self._file_groups: dict[str, FileGroup] = {}
        self.unreadable: dict[str, str] = {}
        """Files and folders that the last scan could not look at, with the reason."""
        self.unstorable: dict[str, str] = {}
        """Files that no store can hold under their names, as the last scan saw them."""

    def look(self, *, at_the_end: bool = False) -> dict[str, FileGroup]:
        """Return the present file groups, by name; at the end, what is closed is complete.

        Raises OSError (the folder itself cannot be read).
        """
        now_s = self._clock()
        found: dict[str, dict[str, FileState]] = {}
        unreadable: set[str] = set()
        for name, state in self._files():
            files = found.setdefault(group_of(name), {})
            if state is None:
                unreadable.add(group_of(name))
            else:
                files[name] = state
        groups: dict[str, FileGroup] = {}
        for key, files in found.items():
            before = self._file_groups.get(key)
            if before is None or before.files != files:
                before = FileGroup(files=files, changed_s=now_s)
            if key in unreadable:
                before = FileGroup(
                    files=files, changed_s=now_s, is_settling=False, is_unreadable=True
                )
            groups[key] = before
        self._file_groups = groups
        for key, group in groups.items():
            self._update_group(key, group, now_s, at_the_end=at_the_end)
        return groups

    def mark(self, name: str) -> FileState | None:
        """Return a file's present state; None: it is gone. Raises OSError (it is not known)."""
        try:
            return self._state(name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _state(self, name: str) -> FileState | None:
        """Return a file's state; an absolute link to what is in the folder counts as relative.

        Where the folder is restored, it may lie elsewhere.
        """
        state = file_state(self._folder / name)
        if state is None or not os.path.isabs(state.link):  # noqa: PTH117 - a text
            return state
        above, last = os.path.split(state.link)
        for target in (state.link, os.path.join(os.path.realpath(above), last)):  # noqa: PTH118
            for root in self._roots:
                inside = os.path.relpath(target, root)
                if inside.split("/", 1)[0] not in {"..", "."}:
                    link = os.path.relpath(inside, os.path.dirname(name) or ".")  # noqa: PTH120
                    return replace(state, link=link)
        return state

    def hides(self, name: str) -> bool:
        """Whether a file may be there although the last scan did not see it."""
        return any(name == unseen or name.startswith(f"{unseen}/") for unseen in self.unreadable)

    def _update_group(self, key: str, group: FileGroup, now_s: float, *, at_the_end: bool) -> None:
        if group.is_complete or group.is_unreadable:
            return
        last = _has_final_file(key, group)
        quiet_s = now_s - group.changed_s
        settles_s = SETTLING_S if last or key in group.files else SETTLING_FOLDER_S
        group.is_settling = quiet_s < settles_s and not at_the_end
        group.problems = {}
        if group.is_settling or last is False:
            return
        for name, state in group.files.items():
            if not state.link:
                self._examine(name, group)
        if any(problem == BEING_WRITTEN for problem in group.problems.values()):
            group.changed_s = now_s  # it must also stay closed for the whole settling time
        group.is_complete = not group.problems and not group.is_settling

    def _examine(self, name: str, group: FileGroup) -> None:
        """Note why a file cannot be uploaded now; other groups do not wait for it then."""
        path = self._folder / name
        try:
            if is_being_written(path):
                group.problems[name] = BEING_WRITTEN
            elif is_truncated(path):
                group.problems[name] = CUT_SHORT
                self._warn_of_file(name, f"{CUT_SHORT}, so it is not kept until it is written anew")
        except (FileNotFoundError, NotADirectoryError):  # the next scan finds out
            group.is_settling = True
        except OSError as error:
            group.problems[name] = self.note_unreadable(name, error)

    def note_unreadable(self, name: str, error: OSError) -> str:
        """Report a file that cannot be read, once; return the problem."""
        problem = f"cannot be read: {error.strerror or error}"
        self._warn_of_file(name, f"{problem}; it is kept once it can be")
        return problem

    def _files(self) -> Iterator[tuple[str, FileState | None]]:
        """Yield each file's name and state; None: the file system does not tell it."""
        self.unreadable, self.unstorable = {}, {}
        for name, path in self._walk():
            if path is None:
                yield name, None
                continue
            try:
                state = self._state(name)
                name.encode()
            except UnicodeEncodeError:
                if state is not None:
                    self.unstorable[ascii(name)] = "has a name that no store takes"
                self._warn_of_file(ascii(name), "no store takes such a name, so it is not kept")
                continue
            except (FileNotFoundError, NotADirectoryError):  # gone meanwhile
                continue
            except OSError as error:
                if error.errno != errno.EINVAL:  # else it is no link any more
                    self._note_unseen(name, error)
                    yield name, None
                continue
            if state is None:
                self._warn_of_file(name, "it is neither file nor folder, so it is not kept")
            elif state.link and is_outside_folder(name, state.link):
                self._warn_of_file(name, "this link leads out of the folder, so it is not kept")
            else:
                yield name, state

    def _walk(self) -> Iterator[tuple[str, Path | None]]:
        """Yield names and paths, folder by folder; None for a folder that cannot be listed.

        No recursion, as folders may be deep.
        """
        folders = [""]
        while folders:
            below = folders.pop()
            try:
                with os.scandir(self._folder / below) as found:
                    entries = sorted(found, key=lambda each: each.name)
                for entry in entries:
                    name = f"{below}/{entry.name}" if below else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(name)
                    elif not is_temporary(entry.name):
                        yield name, self._folder / name
            except OSError as error:
                if not below:
                    raise
                if isinstance(error, FileNotFoundError | NotADirectoryError):  # gone meanwhile
                    continue
                self._note_unseen(below, error)
                yield f"{below}/", None

    def _note_unseen(self, name: str, error: OSError) -> None:
        """Note a file or folder of which the file system does not tell whether it is there."""
        reason = error.strerror or str(error)
        self.unreadable[name] = f"cannot be looked at: {reason}"
        self._warn_of_file(name, f"{reason}; what was kept of it stays, until it can be read")

    def _warn_of_file(self, name: str, why: str) -> None:
        if (name, why) not in self._reported:
            self._reported.add((name, why))
            self._report(f"{self._folder / name}: {why}")


def ready_groups(groups: Mapping[str, FileGroup]) -> set[str]:
    """Return the complete groups that were written before all those that are still settling."""
    settling_s = [group.changed_s for group in groups.values() if group.is_settling]
    before_s = min(settling_s, default=float("inf"))
    return {
        key for key, group in groups.items() if group.is_complete and group.changed_s < before_s
    }


def group_of(name: str) -> str:
    """Return the name of a file's group: a folder, a pattern, or the file itself.

    By the file's name alone, as what is beside it changes. A folder is one checkpoint, with all
    that it holds, if its name has a step or ends in .ckpt. Elsewhere the parts into which a format
    splits a checkpoint are a group: in one folder, the files of torch.distributed.checkpoint, those
    of DeepSpeed's ranks, and numbered shards with their index. Any other file stands alone: logs
    and checkpoints that share a folder do not wait for each other.
    """
    *folders, file = name.split("/")
    for depth, folder in enumerate(folders, start=1):
        if _CHECKPOINT_FOLDER.search(folder):
            return "/".join(folders[:depth])
    return "/".join([*folders, _pattern_of(file)])


def _pattern_of(file: str) -> str:
    """Return a pattern for the parts of which a file is one; of any other file its name."""
    for pattern, part in _RANK_PARTS.items():
        if part.search(file):
            return pattern
    shard = _SHARD.search(file)
    return f"{file[: shard.start()]}*{shard[1] or shard[2] or ''}" if shard else file


def _has_final_file(key: str, group: FileGroup) -> bool | None:
    """Whether the group has the file that is written last; None: no such file is known."""
    if _CHECKPOINTER_FOLDER.search(key):
        return f"{key}/commit.json" in group.files
    folders = {name.rpartition("/")[0] for name in group.files if name.endswith(".distcp")}
    if folders:  # torch.distributed.checkpoint
        # Only the first host has it.
        return all(f"{folder}/.metadata".lstrip("/") in group.files for folder in folders) or None
    return None


def file_state(path: Path) -> FileState | None:
    """Return the state of a file or link; None for anything else. Raises OSError."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return FileState(
            size_bytes=0, mtime_ns=0, inode=status.st_ino, device=status.st_dev,
            link=str(path.readlink()),
        )  # fmt: skip
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileState(
        size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino,
        device=status.st_dev, ctime_ns=status.st_ctime_ns,
    )  # fmt: skip
