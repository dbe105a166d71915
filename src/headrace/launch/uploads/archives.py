"""Folders of several hosts as one tar archive, the same bytes for the same files."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

_MODE, _MODE_TO_RUN = 0o644, 0o755


def merged(folders: Mapping[str, Path], told: Callable[[str], object]) -> dict[str, Path]:
    """Return the files of all hosts' folders by name; of several with one name, the newest.

    Args:
        folders: By their hosts' names.
        told: Called with what a user should know.
    """
    found: dict[str, Path] = {}
    for host, folder in sorted(folders.items()):
        for path in sorted(folder.rglob("*")):
            if path.is_dir() or not path.exists():
                continue
            name = path.relative_to(folder).as_posix()
            other = found.get(name)
            if other is not None:
                told(f"{name} was made by several hosts, {host} among them; the newest is taken")
                if other.stat().st_mtime_ns >= path.stat().st_mtime_ns:
                    continue
            found[name] = path
    return found


def write_archive(files: Mapping[str, Path], to: Path) -> None:
    """Write a gzipped tar: sorted, without times and owners; links are followed.

    Raises:
        OSError: A file cannot be read, or the disk is full.
    """
    with (
        to.open("wb") as out,
        gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0, compresslevel=1) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(files):
            with files[name].open("rb") as file:
                status = os.fstat(file.fileno())
                member = tarfile.TarInfo(name)
                member.size = status.st_size
                member.mode = _MODE_TO_RUN if status.st_mode & 0o100 else _MODE
                archive.addfile(member, file)
