"""The kinds of sources: class folders, pairs of image and mask, tables; the choice among them.

Class folders are root/class/.../x.jpg. Images and masks lie in two trees, and the wildcards of two
patterns match them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import normalize

import numpy as np

from headrace.core.arrow_arrays import large_strings
from headrace.core.errors import DatasetError, NotFoundError, StorageError, UsageError
from headrace.data.image_files import IMAGE_EXTENSIONS
from headrace.data.shards.data_files import (
    MOST_PICTURES,
    IgnoredFiles,
    TarsAndImages,
    is_image,
    is_system_name,
    is_system_path,
    is_tar,
    may_hold_images,
)
from headrace.data.shards.members import PathPattern, stem_of
from headrace.data.shards.reports import BadFile
from headrace.data.shards.shard_index import read_manifest
from headrace.data.shards.sources.sample_table import (
    SAME_LETTERS,
    FileColumn,
    ListedCallback,
    SampleTable,
    SourceListing,
    StringColumn,
    list_files,
    names_of_masks,
    number_classes,
    refuse_shared_stems,
    shown_folder,
    texts,
)
from headrace.data.shards.sources.table_files import TABLE_SUFFIXES, utf8_bytes
from headrace.data.shards.sources.tables import list_table, list_tables
from headrace.data.shards.sources.tree_roles import (
    LabelFiles,
    MasksAmongImages,
    is_of_split,
    refuse_labels_elsewhere,
    refuse_wrong_level,
)
from headrace.data.storage import ObjectInfo, Store, join_url, open_store, safe_url, split_url


def list_class_folders(
    store: Store, on_listed: ListedCallback, known_classes: Sequence[str] = ()
) -> SampleTable:
    """List a tree of class folders; images outside of folders make a dataset without classes.

    A folder that has Parquet files, and no images but a few pictures beside them, is the table that
    they make together; not where tars lie there, which are then the data.
    `known_classes` are names by number; empty to number the folders in sorted order. DatasetError:
    no image, tars in their place, images both in and beside class folders, an unknown class, or two
    files with one key.
    """
    listing = _Listing(store.url)
    hidden = [name for name in known_classes if is_system_name(name)]  # classes all the same
    for info in list_files(store, on_listed, listing.files.ignored, patterns=("", *hidden)):
        listing.add(info)
    listing.found.refuse_tars(store.url, [*listing.tables])
    if listing.tables_are_data():
        return list_tables(
            store, [*listing.tables], known_classes, listing.files.ignored, listing.bad
        )
    listing.check(store.url)
    if not known_classes:
        refuse_wrong_level(listing.classes, store.url)
        listing.refuse_only_class(store.url)
        listing.refuse_folders_without_images(store)
        listing.masks.refuse(listing.stems.array(), store.url)
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
        source=listing.files.source("class folders" if classes else "images"),
        bad=tuple(listing.bad),
    ).sorted_by_stem()
    refuse_shared_stems(table)
    return table


def refuse_file(url: str) -> None:
    """Raise DatasetError where there is a file at a URL that should be a folder."""
    try:
        folder, name = split_url(url)
        open_store(folder).head(name)
    except (StorageError, UsageError):  # nothing is there, or it is a bucket
        return
    if is_tar(name):
        raise DatasetError(
            f"{safe_url(url)} is one tar. Name the folder that it lies in, of which all tars "
            f"become the shards: `headrace data index {safe_url(folder)}`."
        )
    raise DatasetError(
        f"{safe_url(url)} is a file of none of the kinds that are read: name a folder, or a table "
        f"that ends in {', '.join(TABLE_SUFFIXES)}. Unpack an archive first."
    )


_IMAGE_KINDS = ", ".join(sorted(IMAGE_EXTENSIONS))


_MOST_INNER = 10_000  # folders that are kept in mind, where there are very many


class _Listing:
    """The files of the tree, as they are listed."""

    def __init__(self, url: str) -> None:
        self.stems = StringColumn()
        self.paths = StringColumn()
        self.sizes: array[int] = array("q")
        self.templates: dict[str, int] = {}
        self.template_ids: array[int] = array("H")
        self.classes: list[str] = []  # in the order of the listing
        self.files = SourceListing(url)
        self.tables: dict[str, int] = {}  # with their sizes in bytes
        self.bad: list[BadFile] = []
        self.masks = MasksAmongImages()
        self.lists = LabelFiles()
        self._class_ids: array[int] = array("i")
        self._class_numbers: dict[str, int] = {}
        self._loose: list[str] = []
        self._empty: list[str] = []  # files without a byte, beside the class folders
        self._inner: set[str] = set()  # folders within the class folders; "" for their own images
        self.found = TarsAndImages()

    def add(self, info: ObjectInfo) -> None:
        path = info.path
        is_table = path.lower().endswith(TABLE_SUFFIXES)
        if info.unreadable and (may_hold_images(info) or is_table):
            self.bad.append(BadFile(file=path, reason=info.unreadable))
            if "/" in path or info.is_folder:
                self._class_of(f"{path}/")
            return
        self.found.add(path)
        if is_table:
            self.tables[path] = info.size_bytes
            return
        if not is_image(path):
            self.files.ignored.add(path, system=False)
            self.lists.add(info)
            if not (info.size_bytes or info.unreadable or "/" in path):
                self._empty.append(path)
            return
        stem = stem_of(path)
        template = f"**{path[len(stem) :]}"
        self.masks.add(path)
        self.stems.append(stem)
        self.paths.append(path)
        self.sizes.append(info.size_bytes)
        self.template_ids.append(self.templates.setdefault(template, len(self.templates)))
        self._class_ids.append(self._class_of(path))
        self.files.add(info)

    def tables_are_data(self) -> bool:
        """Return whether the tables are the data; the images, or else the tables, are ignored.

        Parquet files are, where the images beside them are few and small: previews, a logo.
        """
        parquet = [size for path, size in self.tables.items() if path.lower().endswith(".parquet")]
        are_data = len(self.sizes) <= MOST_PICTURES * len(parquet) and sum(self.sizes) <= sum(
            parquet
        )
        if not self.sizes:
            return bool(self.tables)
        if are_data:
            self.tables = {path: 0 for path in self.tables if path.lower().endswith(".parquet")}
        for path in texts(self.paths.array()) if are_data else self.tables:
            self.files.ignored.add(path, system=False)
        return are_data

    def check(self, url: str) -> None:
        if not self.sizes:
            if not self.files.ignored.num_files and not self.bad:
                refuse_file(url)
            raise DatasetError(
                f"{url} holds no images{self._others_there()}. Expected "
                "folder/class/image.jpg; for images with masks give --image-glob and --mask-glob."
            )
        if self.classes and self._loose:
            raise DatasetError(
                f"{url}: {len(self._loose)} images lie beside the class folders, such as "
                f"{self._loose[0]}, so their class is unknown. Move them into a class folder, or "
                "pack the class folders alone."
            )

    def _others_there(self) -> str:
        ignored = self.files.ignored
        if not ignored.num_files and not self.bad:
            return ", or does not exist"
        found = []
        others = ignored.num_files - ignored.num_system
        examples = [path for path in ignored.examples if path not in ignored.system_examples]
        if others:
            found.append(f"{others} other files ({', '.join(examples) or ignored.examples[0]})")
        if ignored.num_system:
            found.append(
                f"{ignored.num_system} hidden or system files, which are ignored "
                f"({', '.join(ignored.system_examples)})"
            )
        found += [f"{len(self.bad)} unreadable files ({self.bad[0]})"] if self.bad else []
        return f"; it holds {' and '.join(found)}. Images are {_IMAGE_KINDS}"

    def refuse_only_class(self, url: str) -> None:
        """Raise DatasetError where the only class folder has folders that may be the classes."""
        if len(self.classes) == 1 and self._inner == {""}:
            refuse_labels_elsewhere(self.classes[0], self.tables, self.lists.paths, url)
        if len(self.classes) == 1 and "" not in self._inner and len(self._inner) > 1:
            only, inner = self.classes[0], sorted(self._inner)
            more = ", ..." if len(inner) > 3 else ""
            raise DatasetError(
                f"{url}: {only} would be the only class, and its images lie in the folders "
                f"{', '.join(inner[:3])}{more}. If those are the classes, name "
                f"{join_url(url, only)}; if not, name the class in a file and give it with "
                "--classes-from."
            )

    def refuse_folders_without_images(self, store: Store) -> None:
        """Raise DatasetError where a folder beside class folders would vanish from the classes."""
        for path in self._empty if self.classes else ():
            if folder := shown_folder(store, path):
                self.files.ignored.add_empty_folder(folder)
        ignored = self.files.ignored.folders
        empty = sorted(ignored.keys() - set(self.classes))
        if not (self.classes and empty):
            return
        places = [(name, *ignored[name]) for name in empty]
        lines = [
            f"  {name}: {count} files, such as {first}" if count else f"  {name}: empty"
            for name, count, first in places[:10]
        ]
        more = [f"  and {len(places) - 10} more"] if len(places) > 10 else []
        raise DatasetError(
            f"{store.url}: {len(empty)} of the folders hold no images, so that they would be "
            "missing among the classes and number the others differently:\n"
            + "\n".join([*lines, *more])
            + f"\nImages are {_IMAGE_KINDS}; hidden and system files are none. Convert those "
            "files, move the folders away, or name the classes in a file and give it with "
            "--classes-from."
        )

    def labels(self, numbers: dict[str, int]) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
        if not self.classes:
            return None
        order = np.array([numbers[name] for name in self.classes], dtype=np.int32)
        return order[np.array(self._class_ids, dtype=np.int64)]

    def _class_of(self, path: str) -> int:
        name, slash, inner = path.partition("/")
        if not slash:
            self._loose.append(path)
            return -1
        if len(self._inner) <= _MOST_INNER:
            self._inner.add(inner.rpartition("/")[0].partition("/")[0])
        number = self._class_numbers.setdefault(name, len(self.classes))
        if number == len(self.classes):
            self.classes.append(name)
        return number


CITYSCAPES_FOLDERS = ("leftImg8bit", "gtFine")


def cityscapes_globs(split: str | None) -> tuple[str, str]:
    """Return image and mask patterns of Cityscapes' layout, of one split or of all."""
    image, mask = CITYSCAPES_FOLDERS
    where = f"{split or '*'}/*/*"
    return f"{image}/{where}_leftImg8bit.*", f"{mask}/{where}_gtFine_labelIds.png"


def list_pairs(
    store: Store, on_listed: ListedCallback, image_glob: str, mask_glob: str
) -> SampleTable:
    """List images with their masks, by patterns such as "images/*.jpg" and "masks/*.png".

    UsageError: an invalid pattern, or the two differ in their wildcards. DatasetError: no file, or
    images without masks or the other way round: which, how many.
    """
    images, masks = _PatternMatches(image_glob), _PatternMatches(mask_glob)
    if images.glob.wildcards != masks.glob.wildcards:
        raise UsageError(
            f"--image-glob {image_glob!r} has the wildcards {' '.join(images.glob.wildcards)} and "
            f"--mask-glob {mask_glob!r} {' '.join(masks.glob.wildcards)}. Both need the same ones: "
            "what they stand for is what an image and its mask share."
        )
    listing = SourceListing(store.url)
    bad: list[BadFile] = []
    unreadable_folders: list[str] = []
    # Of "*.tif" and "*_mask.tif" the longer one has what both match.
    narrow, wide = sorted((images, masks), key=lambda side: -side.glob.num_characters)
    is_shared = narrow.glob.num_characters == wide.glob.num_characters
    for folder in _folders(images.glob.folder, masks.glob.folder):
        patterns = (image_glob, mask_glob)
        for info in list_files(store, on_listed, listing.ignored, folder, patterns):
            uses = int(narrow.add(info))
            if is_shared or not uses:
                uses += wide.add(info)
            if info.unreadable and (uses or may_hold_images(info)):
                bad.append(BadFile(file=info.path, reason=info.unreadable))
                if info.is_folder is not False:
                    unreadable_folders.append(info.path)
            elif uses:
                listing.add(info, uses)
            else:
                listing.ignored.add(info.path, system=False)
    stems = _shared_stems(store.url, images, masks, listing.ignored, unreadable_folders)
    columns = images.column(stems), masks.column(stems)
    return SampleTable(
        url=store.url,
        stems=large_strings(stems),
        images=columns[0],
        masks=columns[1],
        mask_names=names_of_masks(*columns),
        source=listing.source("pairs"),
        bad=tuple(bad),
    )


class _PatternMatches:
    """The files that match one pattern, by stem.

    A pattern that ends in ".*" accepts any extension, which is then not part of the stem. One that
    ends in the extension of an image accepts it in upper and lower case.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        trunk, _, last = pattern.rpartition(".")
        is_apart = "*" in trunk and (last == "*" or is_image(f"x.{last}"))
        self.glob = PathPattern.parse(trunk if is_apart else pattern)
        self.extension = f".{last.lower()}" if is_apart else ""
        self.files: dict[str, tuple[str, int, int]] = {}  # path, size in bytes, template
        self.unreadable: set[str] = set()
        self.duplicates: list[tuple[str, str]] = []
        self.templates: dict[str, int] = {}

    def add(self, info: ObjectInfo) -> bool:
        """Add a file if it matches; return whether it does."""
        path = info.path
        trunk, extension = path, ""
        if self.extension:
            trunk, dot, last = path.rpartition(".")
            extension = f"{dot}{last}"
        stem = self.glob.match(trunk)
        if stem is None or not self._accepts(extension):
            return False
        if is_system_path(path, self.pattern):  # the other pattern names it
            return False
        if info.unreadable:
            self.unreadable.add(stem)
            return True
        if stem in self.files:
            self.duplicates.append((self.files[stem][0], path))
        template = self.templates.setdefault(f"{self.glob.pattern}{extension}", len(self.templates))
        self.files[stem] = path, info.size_bytes, template
        return True

    def may_lie_in(self, stem: str, folders: Sequence[str]) -> bool:
        """Return whether the file of a stem would lie in one of some folders."""
        path = self.glob.expand(stem)
        return any(path.startswith(f"{folder}/") for folder in folders)

    def _accepts(self, extension: str) -> bool:
        if self.extension == ".*":
            return bool(extension)
        return extension.lower() == self.extension

    def column(self, stems: list[str]) -> FileColumn:
        paths, sizes, templates = zip(*(self.files[stem] for stem in stems), strict=True)
        return FileColumn(
            paths=large_strings(paths),
            sizes=np.array(sizes, dtype=np.int64),
            templates=tuple(self.templates),
            template_ids=np.array(templates, dtype=np.uint16),
        )


def _lost_stems(
    images: _PatternMatches, masks: _PatternMatches, unreadable_folders: Sequence[str]
) -> set[str]:
    """Return the stems of which a file cannot be read, or would lie where nothing can be."""
    lost = images.unreadable | masks.unreadable
    for side, other in ((images, masks), (masks, images)) if unreadable_folders else ():
        alone = other.files.keys() - side.files.keys()
        lost |= {stem for stem in alone if side.may_lie_in(stem, unreadable_folders)}
    return lost


def _shared_stems(
    url: str,
    images: _PatternMatches,
    masks: _PatternMatches,
    ignored: IgnoredFiles,
    unreadable_folders: Sequence[str],
) -> list[str]:
    for stem in _lost_stems(images, masks, unreadable_folders):  # the whole pair is left out
        images.files.pop(stem, None)
        masks.files.pop(stem, None)
    for side in (images, masks):
        if not side.files:
            why = ""
            if side.unreadable:
                why = f" but {len(side.unreadable)} that cannot be read"
            elif unreadable_folders:
                why = f" but in what cannot be read, such as {unreadable_folders[0]}"
            elif ignored.num_system:
                examples = ", ".join(ignored.system_examples)
                why = f" ({ignored.num_system} hidden or system files are ignored: {examples})"
            raise DatasetError(
                f"{url} holds no file that matches {side.pattern!r}{why}, or does not exist. "
                "Patterns are relative to it; '*' stands for part of a name, '**' for several "
                "folders, and all else for itself, as '?', brackets and braces do."
            )
        if side.duplicates:
            first, second = side.duplicates[0]
            raise DatasetError(
                f"{url}: two files with one key, {len(side.duplicates)} times, such as {first} and "
                f"{second}. Rename or remove one of each."
            )
    without_mask = sorted(images.files.keys() - masks.files.keys())
    without_image = sorted(masks.files.keys() - images.files.keys())
    if without_mask or without_image:
        lines = [
            *_mismatches("images without a mask", images, without_mask),
            *_mismatches("masks without an image", masks, without_image),
            *_same_letters(without_mask, without_image),
        ]
        raise DatasetError(
            f"{url}: {len(images.files)} images and {len(masks.files)} masks do not pair up.\n"
            + "\n".join(lines)
            + "\nAdd what is missing, remove what is too much, or correct the patterns."
        )
    return sorted(images.files)


def _mismatches(what: str, side: _PatternMatches, stems: list[str]) -> list[str]:
    if not stems:
        return []
    lines = [f"  {len(stems)} {what}:"]
    lines.extend(f"    {side.files[stem][0]}" for stem in stems[:10])
    if len(stems) > 10:
        lines.append(f"    and {len(stems) - 10} more")
    return lines


def _same_letters(some: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return a line of a message where names differ in their Unicode form alone."""
    same = {normalize("NFC", name) for name in some} & {normalize("NFC", name) for name in others}
    return [f"  {len(same)} of these names {SAME_LETTERS}."] if same else []


def _folders(image_folder: str, mask_folder: str) -> list[str]:
    """Return the folders to list so that every match is listed once."""
    first, second = sorted((image_folder, mask_folder))
    if first in {"", second} or second.startswith(f"{first}/"):
        return [first]
    return [first, second]


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


def pair_globs(store: Store, options: SourceOptions) -> tuple[str, str] | None:
    """Return the patterns of images and masks, given or Cityscapes'; None: these are no pairs."""
    if options.image_glob is not None and options.mask_glob is not None:
        return options.image_glob, options.mask_glob
    if all(next(store.list_entries(folder), None) is not None for folder in CITYSCAPES_FOLDERS):
        return cityscapes_globs(options.split)
    return None


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
        try:
            return list_table(url, options.classes)
        except NotFoundError:
            if not _holds_anything(open_store(url)):
                raise
            # A folder, as Spark names those in which it writes a table.
    store = open_store(url)
    globs = pair_globs(store, options)
    if globs is not None:
        _refuse_classes(options.classes)
        return list_pairs(store, on_listed, *globs)
    if options.split is not None:
        of_split = open_store(join_url(url, options.split))
        if not _holds_anything(of_split):
            table = _list_parts(store, on_listed, options.split, options.classes)
            if table is not None:
                return table
        store = of_split
    return list_class_folders(store, on_listed, options.classes)


def _holds_anything(store: Store) -> bool:
    """Return whether there is a file, or what cannot be read, which counts as bad later."""
    return any(info.unreadable or not info.is_folder for info in store.list_entries())


def _list_parts(
    store: Store, on_listed: ListedCallback, split: str, known_classes: Sequence[str]
) -> SampleTable | None:
    """List the rows of the Parquet files of a split; None: there are none."""
    parts, ignored, found = [], IgnoredFiles(), TarsAndImages()
    for info in list_files(store, on_listed, ignored):
        if _is_part(info.path, split):
            parts.append(info)
        else:
            ignored.add(info.path, system=False)
            if is_of_split(info.path, split):
                found.add(info.path)
    if not parts:
        return None
    found.refuse_tars(store.url, [info.path for info in parts], f" --split {split}")
    bad = [BadFile(file=info.path, reason=info.unreadable) for info in parts if info.unreadable]
    readable = [info.path for info in parts if not info.unreadable]
    if not readable:
        raise DatasetError(f"{store.url}: no table of the split can be read. {bad[0]}")
    return list_tables(store, readable, known_classes, ignored, bad)


def _is_part(path: str, split: str) -> bool:
    """Return whether a path is a Parquet file of a split: data/train-00000-of-00002.parquet."""
    name = path.rpartition("/")[2]
    return name.lower().endswith(".parquet") and re.split(r"[-.]", name)[0] == split


def _refuse_classes(classes: Sequence[str]) -> None:
    if classes:
        raise UsageError("--classes-from goes with class folders and tables; masks have no names.")


def read_classes(url: str) -> tuple[str, ...]:
    """Return the class names of a dataset or of a text file, one a line; raises DatasetError."""
    where = safe_url(url)
    if where.endswith(".txt"):
        folder, name = split_url(url)
        lines = utf8_bytes(bytes(open_store(folder).get(name)), where).decode().splitlines()
        classes = tuple(line.strip() for line in lines if line.strip())
    else:
        store = open_store(url)
        classes = read_manifest(store)[0].classes
    if not classes:
        raise DatasetError(f"{where} names no classes.")
    if len(set(classes)) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise DatasetError(f"{where} names the class {twice!r} twice.")
    return classes
