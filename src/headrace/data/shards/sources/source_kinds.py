"""The kinds of sources: their options, the choice among them, and class names from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.errors import DatasetError, UsageError
from headrace.data.shards.manifest import DatasetManifest
from headrace.data.shards.shard_index import read_manifest_bytes
from headrace.data.shards.sources.class_folders import list_class_folders
from headrace.data.shards.sources.image_mask_pairs import (
    CITYSCAPES_FOLDERS,
    cityscapes_globs,
    list_pairs,
)
from headrace.data.shards.sources.sample_table import ListedCallback, SampleTable
from headrace.data.shards.sources.tables import TABLE_SUFFIXES, list_table
from headrace.data.storage import Store, join_url, open_store, safe_url, split_url


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """How to read a source."""

    split: str | None = None  # one of several: a folder of class folders, or of Cityscapes' trees
    image_glob: str | None = None  # for pairs: which files are images
    mask_glob: str | None = None  # for pairs: which files are masks
    classes: tuple[str, ...] = ()  # names by number; empty to number those that occur, sorted

    def __post_init__(self) -> None:
        if (self.image_glob is None) != (self.mask_glob is None):
            raise UsageError("--image-glob and --mask-glob go together: give both, or neither.")
        if self.split is not None and self.image_glob is not None:
            raise UsageError("--split goes without --image-glob: write the split into the pattern.")
        if self.split is not None and ("/" in self.split or self.split in {"", ".", ".."}):
            raise UsageError(f"--split {self.split!r} is not the name of a folder.")


def list_source(
    url: str, options: SourceOptions, on_listed: ListedCallback = lambda _: None
) -> SampleTable:
    """List the samples at `url`: a table, pairs, Cityscapes' trees, class folders or images.

    DatasetError: there is nothing to pack, or the source does not fit; see each kind. UsageError:
    the options do not fit the source.
    """
    if safe_url(url).lower().endswith(TABLE_SUFFIXES):
        if options.split or options.image_glob:
            raise UsageError(
                f"{safe_url(url)} is a table: --split and --image-glob do not apply to it. Filter "
                "its rows instead."
            )
        return list_table(url, options.classes)
    store = open_store(url)
    if options.image_glob is not None and options.mask_glob is not None:
        _refuse_classes(options.classes)
        return list_pairs(store, on_listed, options.image_glob, options.mask_glob)
    if all(has_objects(store, folder) for folder in CITYSCAPES_FOLDERS):
        _refuse_classes(options.classes)
        return list_pairs(store, on_listed, *cityscapes_globs(options.split))
    if options.split is not None:
        url = join_url(url, options.split)
        store = open_store(url)
    return list_class_folders(store, on_listed, options.classes)


def has_objects(store: Store, folder: str) -> bool:
    """Return whether a store has objects below a folder."""
    return next(store.list(folder), None) is not None


def _refuse_classes(classes: Sequence[str]) -> None:
    if classes:
        raise UsageError("--classes-from goes with class folders and tables; masks have no names.")


def read_classes(url: str) -> tuple[str, ...]:
    """Return the class names of a dataset or of a text file, one a line; raises DatasetError."""
    where = safe_url(url)
    if where.endswith(".txt"):
        folder, name = split_url(url)
        lines = bytes(open_store(folder).get(name)).decode("utf-8", "replace").splitlines()
        classes = tuple(line.strip() for line in lines if line.strip())
    else:
        store = open_store(url)
        classes = DatasetManifest.from_json(read_manifest_bytes(store), store.url).classes
    if not classes:
        raise DatasetError(f"{where} names no classes.")
    if len(set(classes)) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise DatasetError(f"{where} names the class {twice!r} twice.")
    return classes
