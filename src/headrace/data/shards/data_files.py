"""The rule for what is data: images and tars; hidden and system files are none, wherever they lie.

One rule for packing and indexing, for class folders, patterns and tars' members, on disks and in
buckets. What is ignored is counted, with examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from headrace.data.image_files import IMAGE_EXTENSIONS
from headrace.data.shards.members import extension_of

_SYSTEM_NAMES = frozenset(
    {
        "__macosx",
        "__pycache__",
        "network trash folder",
        "temporary items",
        "icon\r",  # macOS
        "$recycle.bin",
        "desktop.ini",
        "ehthumbs.db",
        "ehthumbs_vista.db",
        "recycler",  # Windows
        "system volume information",
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

_TARS = (".tar",)
_COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")


def is_system_name(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or a system's own."""
    if name.startswith("."):  # .git, .ipynb_checkpoints, .DS_Store, ._x.jpg
        return name not in {"", ".", ".."}
    lower = name.lower()
    return lower in _SYSTEM_NAMES or lower.startswith("@gmt-")  # a snapshot of Samba's


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
    """The folders at the top that are not hidden themselves: how many, and the first."""

    def add(self, path: str, *, system: bool) -> None:
        """Add a file; `system`: it is hidden, or a system's own."""
        self._count(1, [path], int(system), [path] if system else [])
        folder, slash, _ = path.partition("/")
        if slash and not is_system_name(folder):
            count, first = self.folders.get(folder, (0, path))
            self.folders[folder] = count + 1, first

    def add_all(self, other: IgnoredFiles, prefix: str) -> None:
        """Add others, whose paths are below `prefix`."""
        examples, system_examples = (
            [f"{prefix}{path}" for path in paths]
            for paths in (other.examples, other.system_examples)
        )
        self._count(other.num_files, examples, other.num_system, system_examples)

    def _count(
        self, num_files: int, examples: list[str], num_system: int, system_examples: list[str]
    ) -> None:
        self.num_files += num_files
        self.num_system += num_system
        for known, more in ((self.examples, examples), (self.system_examples, system_examples)):
            room = max(0, _EXAMPLES - len(known))
            # They are printed, and written to the manifest: a name may be long, or not UTF-8.
            known += [path[:_SHOWN].encode("utf-8", "replace").decode() for path in more[:room]]


class TarsAndImages:
    """The tars and images of a listing: which of them are the data."""

    def __init__(self) -> None:
        self.num_tars = self.num_compressed = self.num_images = 0
        self._tar = ""
        self._folders_with_tars: set[str] = set()
        self._image_folders: dict[str, tuple[int, str]] = {}  # number of images, and the first

    def add(self, path: str) -> None:
        """Add a file that is not hidden."""
        folder = path.rpartition("/")[0]
        if path.lower().endswith((*_TARS, *_COMPRESSED_TARS)):
            self.num_tars += is_tar(path)
            self.num_compressed += not is_tar(path)
            self._tar = self._tar or path
            self._folders_with_tars.add(folder)
        elif is_image(path):
            self.num_images += 1
            count, first = self._image_folders.get(folder, (0, path))
            self._image_folders[folder] = count + 1, first

    @property
    def num_archives(self) -> int:
        """The number of tars, compressed or not."""
        return self.num_tars + self.num_compressed

    def apart(self) -> tuple[int, str]:
        """Return how many images lie in folders without a tar, and the first of them.

        A picture in the folder of tars is a preview of them; images in folders of their own are
        data.
        """
        places = [
            place
            for folder, place in self._image_folders.items()
            if folder not in self._folders_with_tars
        ]
        return sum(count for count, _ in places), places[0][1] if places else ""

    def tars_are_data(self) -> bool | None:
        """Return whether the tars are the data; None where that may as well be the images.

        They are where no more images lie in other folders than there are tars: previews, a logo.
        """
        return True if self.apart()[0] <= self.num_archives else None

    def described(self) -> str:
        """Return what was found, for messages: "3 tar files (a.tar) and 12 images"."""
        kind = "tar files" if self.num_tars else "compressed tar files"
        count = self.num_tars or self.num_compressed
        images = f"{self.num_images} images" if self.num_images else "no images"
        return f"{count} {kind} (such as {self._tar}) and {images}"
