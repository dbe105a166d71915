"""A folder at which a platform mounts storage and nothing is mounted here: what is lost there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.data.channels.listing import first_names
from headrace.data.channels.mount.mount_program import is_mounted


class UnmountedFolder:
    """The files that a job leaves in a folder where it would find storage on its platform.

    They are on the host's own disk and end with it. Files that were there before, as they were, are
    not the job's; nor is anything in a folder that the system mounts there.

    Args:
        root: The folder, which need not exist: a script that root runs can make it.
        own: Folders that may lie in it because the user put them there, such as that of the run.
        host: The name of this host.
        remedy: A sentence that says where a script is to write.
    """

    def __init__(self, root: Path, own: Sequence[Path], *, host: str, remedy: str) -> None:
        self._root = root.resolve()
        self._own = {str(each.resolve()) for each in own}
        self._host = host
        self._remedy = remedy
        self._before = self._files()

    def loss(self) -> str | None:
        """Return which files are new or have changed, and what to do; None: none are."""
        files = self._files()
        lost = sorted(path for path in files if files[path] != self._before.get(path))
        if not lost:
            return None
        count = "1 file was" if len(lost) == 1 else f"{len(lost):,} files were"
        return (
            f"{self._host}: {count} written below {self._root}, where nothing is mounted: "
            f"{first_names(lost)}. On the platform they would be in a bucket; here they are no "
            f"output of the job, and lost with this host. {self._remedy}"
        )

    def _files(self) -> dict[str, tuple[int, int, int]]:
        """Return all files by path, with what changes as they are written."""
        root = str(self._root)
        found: dict[str, tuple[int, int, int]] = {}
        if self._is_elsewhere(root):
            return found
        for folder, subfolders, names in os.walk(root):
            is_root = folder == root  # below a bucket's own folder nobody mounts
            subfolders[:] = [
                name
                for name in subfolders
                if not self._is_elsewhere(f"{folder}/{name}", may_be_mount=is_root)
            ]
            for name in names:
                with suppress(OSError):  # it was removed meanwhile
                    status = os.lstat(f"{folder}/{name}")
                    found[f"{folder}/{name}"] = (
                        status.st_mtime_ns, status.st_size, status.st_ino,
                    )  # fmt: skip
        return found

    def _is_elsewhere(self, folder: str, *, may_be_mount: bool = True) -> bool:
        return folder in self._own or (may_be_mount and is_mounted(Path(folder)))
