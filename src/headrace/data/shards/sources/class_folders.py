"""Sources of images whose first folder is the class (root/class/.../x.jpg), or of images alone."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from headrace.core.errors import DatasetError
from headrace.data.shards.members import extension_of, stem_of
from headrace.data.shards.sources.sample_table import (
    IMAGE_EXTENSIONS,
    FileColumn,
    ListedCallback,
    SampleTable,
    SourceListing,
    StringColumn,
    list_files,
    number_classes,
    refuse_shared_stems,
)
from headrace.data.storage import ObjectInfo, Store


def list_class_folders(
    store: Store, on_listed: ListedCallback, known_classes: Sequence[str] = ()
) -> SampleTable:
    """List a tree of class folders; images outside of folders make a dataset without classes.

    `known_classes` are names by number; empty to number the folders in sorted order. DatasetError:
    no image, images both in and beside class folders, an unknown class, or two files with one key.
    """
    listing = _Listing()
    for info in list_files(store, on_listed):
        listing.add(info)
    listing.check(store.url)
    if not known_classes:
        _refuse_wrong_level(listing.classes, store.url)
    classes, numbers = number_classes(listing.classes, known_classes, store.url)
    table = SampleTable(
        url=store.url,
        stems=listing.stems.array(),
        images=FileColumn(
            paths=listing.paths.array(),
            sizes=np.array(listing.sizes, dtype=np.int64),
            templates=tuple(listing.templates),
            template_ids=np.array(listing.template_ids, dtype=np.uint16),
        ),
        labels=listing.labels(numbers),
        classes=classes,
        source=listing.files.source("class folders" if classes else "images", store.url),
    ).sorted_by_stem()
    refuse_shared_stems(table)
    return table


_SPLITS = {"dev", "eval", "test", "testing", "train", "training", "val", "valid", "validation"}
_PARTS = {"annotations", "gt", "images", "imgs", "labels", "masks", "segmentations"}


def _refuse_wrong_level(names: Sequence[str], url: str) -> None:
    """Raise DatasetError where would-be class folders are splits, or images and masks."""
    lower = {name.lower() for name in names}
    problem = f"{url}: the folders {', '.join(sorted(names))} would become classes"
    anyway = "If they are classes, name them in a file and give it with --classes-from."
    if len(lower) > 1 and lower <= _SPLITS:
        raise DatasetError(
            f"{problem}, but they look like splits. Pack each by itself, to a folder of its own: "
            f"`--split {min(names)}`. {anyway}"
        )
    if len(lower) > 1 and lower <= _PARTS:
        raise DatasetError(
            f"{problem}, but they look like images and their masks or labels. Give --image-glob "
            f"and --mask-glob, such as '{min(names)}/**/*.jpg'. {anyway}"
        )


class _Listing:
    """The files of the tree, as they are listed."""

    def __init__(self) -> None:
        self.stems = StringColumn()
        self.paths = StringColumn()
        self.sizes: array[int] = array("q")
        self.templates: dict[str, int] = {}
        self.template_ids: array[int] = array("H")
        self.classes: list[str] = []  # in the order of the listing
        self.files = SourceListing()
        self._class_ids: array[int] = array("i")
        self._class_numbers: dict[str, int] = {}
        self._loose: list[str] = []
        self._tars = self._compressed_tars = 0

    def add(self, info: ObjectInfo) -> None:
        path = info.path
        if extension_of(path) not in IMAGE_EXTENSIONS or path.rpartition("/")[2].startswith("."):
            self.files.ignore(path)
            self._tars += path.endswith(".tar")
            self._compressed_tars += path.endswith((".tar.gz", ".tgz", ".tar.zst", ".tar.bz2"))
            return
        stem = stem_of(path)
        template = f"**{path[len(stem) :]}"
        self.stems.append(stem)
        self.paths.append(path)
        self.sizes.append(info.size_bytes)
        self.template_ids.append(self.templates.setdefault(template, len(self.templates)))
        self._class_ids.append(self._class_of(path))
        self.files.add(info)

    def check(self, url: str) -> None:
        if not self.sizes and self._tars:
            raise DatasetError(
                f"{url} holds {self._tars} tar files and no images: those are shards already. "
                f"Index them where they are: `headrace data index {url}`."
            )
        if not self.sizes and self._compressed_tars:
            raise DatasetError(
                f"{url} holds {self._compressed_tars} compressed tar files and no images. Samples "
                "are read by their place in the file, which compression hides: decompress the "
                "tars (images in them are compressed already), then index them."
            )
        if not self.sizes:
            examples = ", ".join(self.files.ignored)
            others = f"; it holds {self.files.num_ignored} other files ({examples})"
            raise DatasetError(
                f"{url} holds no images{others if examples else ', or does not exist'}. Expected "
                "folder/class/image.jpg; for images with masks give --image-glob and --mask-glob."
            )
        if self.classes and self._loose:
            raise DatasetError(
                f"{url}: {len(self._loose)} images lie beside the class folders, such as "
                f"{self._loose[0]}, so their class is unknown. Move them into a class folder, or "
                "pack the class folders alone."
            )

    def labels(self, numbers: dict[str, int]) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
        if not self.classes:
            return None
        order = np.array([numbers[name] for name in self.classes], dtype=np.int32)
        return order[np.array(self._class_ids, dtype=np.int64)]

    def _class_of(self, path: str) -> int:
        name, slash, _ = path.partition("/")
        if not slash:
            self._loose.append(path)
            return -1
        number = self._class_numbers.setdefault(name, len(self.classes))
        if number == len(self.classes):
            self.classes.append(name)
        return number
