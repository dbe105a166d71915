"""The rule for what is data: images and tars; hidden and system files are none, wherever they lie.

One rule for packing and indexing, for class folders, patterns and tars' members, on disks and in
buckets. What is ignored is counted, with examples.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from headrace.core.errors import DatasetError
from headrace.data.image_files import IMAGE_EXTENSIONS
from headrace.data.shards.members import extension_of
from headrace.data.storage import ObjectInfo, join_url

_SYSTEM_NAMES = frozenset(
    {
        "__macosx",
        "__pycache__",
        "network trash folder",
        "temporary items",
        "thevolumesettingsfolder",
        "icon\r",  # macOS
        "$recycle.bin",
        "desktop.ini",
        "ehthumbs.db",
        "ehthumbs_vista.db",
        "system volume information",  # Windows
        "thumbs.db",
        "@eadir",
        "@recently-snapshot",
        "@recycle",
        "@sharebin",
        "@tmp",
        "@transcode",  # NAS
        "#recycle",
        "#snapshot",
        "~snapshot",
        "lost+found",
    }
)
"""Names, in lower case, of what systems put beside files; see also `is_system_name`."""

_NUMBERED_NAMES = re.compile(r"@gmt-.*|found\.[0-9]{3}", re.DOTALL)
"""Snapshots of Samba's, and what Windows' chkdsk leaves."""

_TARS = (".tar",)
_COMPRESSED_TARS = (
    ".tar.gz",
    ".tgz",
    ".tar.zst",
    ".tzst",
    ".tar.bz2",
    ".tbz",
    ".tbz2",
    ".tar.xz",
    ".txz",
    ".tar.lz4",
    ".tar.lzma",
    ".tar.z",
)


def is_system_name(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or a system's own."""
    if name.startswith("."):  # .git, .ipynb_checkpoints, .DS_Store, ._x.jpg
        return name not in {"", ".", ".."}
    lower = name.lower()
    return lower in _SYSTEM_NAMES or _NUMBERED_NAMES.fullmatch(lower) is not None


def is_system_path(path: str, named: str = "") -> bool:
    """Return whether a part of a path is hidden, or a system's own.

    Args:
        path: Below the folder that the user named; that folder itself may be hidden.
        named: A pattern: what it names itself, as in ".cache/*.jpg", is not hidden.
    """
    found = [part for part in path.split("/") if is_system_name(part)]
    if not (found and named):
        return bool(found)
    asked = [part for part in named.split("/") if is_system_name(part)]
    return not all(any(fnmatchcase(part, each) for each in asked) for part in found)


def is_image(path: str) -> bool:
    """Return whether a file is an image by its extension, in any case."""
    return extension_of(path) in IMAGE_EXTENSIONS


def is_tar(path: str) -> bool:
    """Return whether a file is a tar by its name."""
    return path.lower().endswith(_TARS)


def is_compressed_tar(path: str) -> bool:
    """Return whether a file is a compressed tar by its name."""
    return path.lower().endswith(_COMPRESSED_TARS)


def may_hold_images(info: ObjectInfo) -> bool:
    """Return whether an entry that cannot be read may be data: an image, or a folder of them."""
    is_anything = info.is_folder is not False or not extension_of(info.path)
    return is_anything or is_image(info.path)


_EXAMPLES = 5
_SHOWN = 1024  # characters


@dataclass(slots=True)
class IgnoredFiles:
    """The files that belong to no sample: how many, the first few, and in which folders."""

    num_files: int = 0
    examples: list[str] = field(default_factory=list)
    num_system: int = 0  # of these the hidden ones, and systems' own
    system_examples: list[str] = field(default_factory=list)
    folders: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The folders at the top that are not hidden themselves: how many, and the first.

    Of one that has nothing in it that is 0, and an empty folder.
    """

    def add(self, path: str, *, system: bool) -> None:
        """Add a file; `system`: it is hidden, or a system's own."""
        self._count(1, [path], int(system), [path] if system else [])
        folder, slash, _ = path.partition("/")
        if slash and not is_system_name(folder):
            count, first = self.folders.get(folder, (0, ""))
            self.folders[folder] = count + 1, first if count else path

    def add_empty_folder(self, path: str) -> None:
        """Add a folder that has nothing in it."""
        folder = path.partition("/")[0]
        if not is_system_name(folder):
            self.folders.setdefault(folder, (0, path))

    def add_all(self, other: IgnoredFiles, prefix: str) -> None:
        """Add others, whose paths are below `prefix`."""
        examples, system_examples = (
            [f"{prefix}{path}" for path in paths]
            for paths in (other.examples, other.system_examples)
        )
        self._count(other.num_files, examples, other.num_system, system_examples)

    def described(self) -> dict[str, Any]:
        """Return the fields of a `DatasetSource` about them."""
        return {
            "num_ignored": self.num_files,
            "ignored": tuple(self.examples),
            "num_system": self.num_system,
            "system": tuple(self.system_examples),
        }

    def _count(
        self, num_files: int, examples: list[str], num_system: int, system_examples: list[str]
    ) -> None:
        self.num_files += num_files
        self.num_system += num_system
        for known, more in ((self.examples, examples), (self.system_examples, system_examples)):
            room = max(0, _EXAMPLES - len(known))
            # They are printed, and written to the manifest: a name may be long, or not UTF-8.
            known += [path[:_SHOWN].encode("utf-8", "replace").decode() for path in more[:room]]


MOST_PICTURES = 10
"""Most pictures beside a tar, or a Parquet file, that are previews and no data."""


class TarsAndImages:
    """The tars and images of a listing: which of them are the data."""

    def __init__(self) -> None:
        self.num_tars = self.num_compressed = self.num_images = 0
        self._tar = ""
        self._archives: dict[str, int] = {}  # how many are in each folder
        self._image_folders: dict[str, tuple[int, str]] = {}  # number of images, and the first

    def add(self, path: str) -> None:
        """Add a file that is not hidden."""
        folder = path.rpartition("/")[0]
        if is_tar(path) or is_compressed_tar(path):
            self.num_tars += is_tar(path)
            self.num_compressed += not is_tar(path)
            self._tar = self._tar or path
            self._archives[folder] = self._archives.get(folder, 0) + 1
        elif is_image(path):
            self.num_images += 1
            count, first = self._image_folders.get(folder, (0, path))
            self._image_folders[folder] = count + 1, first

    @property
    def num_archives(self) -> int:
        """The number of tars, compressed or not."""
        return self.num_tars + self.num_compressed

    def apart(self) -> tuple[int, str]:
        """Return how many images are no previews of tars, and the first of them.

        Some pictures in the folder of a tar are; images in folders of their own are data.
        """
        places = [
            (count, first)
            for folder, (count, first) in self._image_folders.items()
            if count > MOST_PICTURES * self._archives.get(folder, 0)
        ]
        return sum(count for count, _ in places), places[0][1] if places else ""

    def tars_are_data(self) -> bool | None:
        """Return whether the tars are the data; None where that may as well be the images.

        They are where no more images than there are tars lie apart from them: previews, a logo.
        """
        return True if self.apart()[0] <= self.num_archives else None

    def refuse_tars(self, url: str, tables: Sequence[str] = (), options: str = "") -> None:
        """Raise DatasetError where the tars are the data, and not what lies beside them.

        `tables` are beside them, as img2dataset writes what it knows of the samples. `options` are
        those of the command that indexes the tars.
        """
        if not (self.num_archives and self.tars_are_data()):
            return
        found, instead = self.described(), ""
        if tables:
            found += f", beside {len(tables)} tables (such as {tables[0]})"
            instead = f" To pack the rows of a table, name it, such as {join_url(url, tables[0])}."
        if self.num_tars:
            raise DatasetError(
                f"{url} holds {found}: the tars are shards already. Index them where they are: "
                f"`headrace data index {url}{options}`; to pack images, move the tars away."
                f"{instead}"
            )
        raise DatasetError(
            f"{url} holds {found}. Samples are read by their place in the file, which compression "
            "hides: decompress the tars (images in them are compressed already), then index them."
            f"{instead}"
        )

    def described(self) -> str:
        """Return what was found, for messages: "3 tar files (a.tar) and 12 images"."""
        kind = "tar files" if self.num_tars else "compressed tar files"
        count = self.num_tars or self.num_compressed
        images = f"{self.num_images} images" if self.num_images else "no images"
        return f"{count} {kind} (such as {self._tar}) and {images}"
