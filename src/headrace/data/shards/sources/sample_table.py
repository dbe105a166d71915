"""The samples of a source as columns, before any of their bytes are read."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.core.arrow_arrays import large_strings
from headrace.core.errors import DatasetError, NotFoundError
from headrace.data.image_files import IMAGE_EXTENSIONS, masks_among
from headrace.data.shards.data_files import IgnoredFiles, is_image, is_system_path, is_tar
from headrace.data.shards.manifest import DatasetSource
from headrace.data.shards.members import PathPattern, extension_of, key_of, path_of_url
from headrace.data.shards.reports import BadFile
from headrace.data.storage import ObjectInfo, Store, parse_url, safe_url

_CHUNK = 65_536
_REPORT_EVERY = 1000


class StringColumn:
    """Strings appended one by one, stored as Arrow in chunks of 65,536."""

    def __init__(self) -> None:
        self._tail: list[str] = []
        self._chunks: list[pa.LargeStringArray] = []

    def append(self, text: str) -> None:
        """Append a string."""
        self._tail.append(text)
        if len(self._tail) == _CHUNK:
            self._flush()

    def array(self) -> pa.LargeStringArray:
        """Return all strings."""
        self._flush()
        return pa.concat_arrays(self._chunks)

    def _flush(self) -> None:
        # Names that are not UTF-8 would become ambiguous once they are written.
        self._chunks.append(large_strings(self._tail))
        self._tail = []


class SourceListing:
    """The files of a source as they are listed: counts, and a hash of their state.

    Of a local file the state is its size and its time. Its entity tag names its inode, too, and
    network file systems number those anew with each mount: an interrupted packing has to go on.
    """

    def __init__(self, url: str) -> None:
        self.num_files = self.size_bytes = 0
        self.ignored = IgnoredFiles()
        self._url = url
        self._has_tags = parse_url(url).kind != "local"
        self._hash = hashlib.sha256()

    def add(self, info: ObjectInfo, uses: int = 1) -> None:
        """Add a file, which is several files of samples where it has several uses."""
        self.num_files += uses
        self.size_bytes += uses * info.size_bytes
        tag = info.etag if self._has_tags else ""
        state = tag or f"@{info.modified_s}"
        self._hash.update(f"{info.path}\0{info.size_bytes}\0{state}\n".encode())

    def source(self, kind: str) -> DatasetSource:
        """Return the source's description for the manifest."""
        return DatasetSource(
            kind=kind,
            url=self._url,
            num_files=self.num_files,
            size_bytes=self.size_bytes,
            listing=self._hash.hexdigest(),
            **self.ignored.described(),
        )


ListedCallback = Callable[[int], None]
"""Called with the number of files listed so far, every 1000 files."""


def list_files(
    store: Store,
    on_listed: ListedCallback,
    ignored: IgnoredFiles,
    folder: str = "",
    patterns: Sequence[str] = ("",),
) -> Iterator[ObjectInfo]:
    """Yield a source's files, or those in a folder of it, and what cannot be read among them.

    Hidden files and systems' own are ignored, except those that one of `patterns` names itself;
    so are folders with nothing in them. In a bucket one may be an empty object, which comes as a
    file: `shown_folder` tells them apart.
    DatasetError: a name is not UTF-8.
    """
    for count, info in enumerate(_without_markers(store.list_entries(folder), ignored), start=1):
        if count % _REPORT_EVERY == 0:
            on_listed(count)
        if info.is_folder and not info.unreadable:
            ignored.add_empty_folder(info.path)
            continue
        if all(is_system_path(info.path, pattern) for pattern in patterns):
            ignored.add(info.path, system=True)
            continue
        try:
            info.path.encode()
        except UnicodeEncodeError:
            may_be_data = is_image(info.path) or is_tar(info.path) or info.unreadable
            if not may_be_data and not any(map(partial(_names, path=info.path), patterns)):
                ignored.add(info.path, system=False)
                continue
            raise DatasetError(
                f"{store.url}: the name of {info.path!r} is not UTF-8. Rename it."
            ) from None
        yield info


def _names(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a path; "", which stands for all images, does not."""
    return bool(pattern) and PathPattern.parse(pattern).match(path) is not None


def shown_folder(store: Store, path: str) -> str | None:
    """Return the folder that an empty object stands for; None: it is a file, as DONE may be.

    Consoles write "dog/" for one. Its slash is lost as it is listed, but a request for "dog" does
    not find it. Older tools of Hadoop's write "dog_$folder$".
    """
    if path.endswith(_HADOOP_MARKER):
        return path.removesuffix(_HADOOP_MARKER)
    try:
        store.head(path)
    except NotFoundError:
        return path
    return None


_HADOOP_MARKER = "_$folder$"


def _without_markers(infos: Iterator[ObjectInfo], ignored: IgnoredFiles) -> Iterator[ObjectInfo]:
    """Leave out empty objects with the name of a folder, which tools put into buckets.

    Such an object comes before those in its folder, and few names come between: they wait.
    """
    waiting: deque[ObjectInfo] = deque()
    for info in infos:
        while waiting and info.path.startswith(f"{waiting[0].path}/"):
            ignored.add(waiting.popleft().path, system=False)
        waiting.append(info)
        while waiting and not (
            waiting[0].size_bytes == 0 and info.path < f"{waiting[0].path}{_AFTER_SLASH}"
        ):
            yield waiting.popleft()
    yield from waiting


_AFTER_SLASH = chr(ord("/") + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a sample."""

    extension: str  # of the future member
    path: str  # below the source's URL, or a URL of its own
    size_bytes: int  # -1 where it is not known before it is read
    is_mask: bool  # its values are labels: it is never smoothed


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSample:
    """One sample."""

    key: str  # its name, without an extension
    files: tuple[SourceFile, ...]
    values: tuple[tuple[str, bytes], ...]  # members whose content is known: "cls", "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileColumn:
    """One file of each of n samples."""

    paths: pa.LargeStringArray  # [n]
    sizes: NDArray[np.int64]  # [n], in bytes, -1 where unknown
    templates: tuple[str, ...] = ()  # patterns that give the paths from the keys; may be empty
    template_ids: NDArray[np.uint16] | None = None  # [n], the number of each path's pattern

    def take(self, rows: NDArray[np.int64]) -> Self:
        """Return these rows."""
        ids = self.template_ids
        return replace(
            self,
            paths=self.paths.take(rows),
            sizes=self.sizes[rows],
            template_ids=None if ids is None else ids[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTable:
    """All n samples of a source."""

    url: str  # that relative paths are below
    stems: pa.LargeStringArray  # [n]: the stems of the keys, unique
    images: FileColumn
    masks: FileColumn | None = None
    mask_names: frozenset[str] = frozenset()  # extensions that no image's member is named by
    labels: NDArray[np.int32] | None = None  # [n], class numbers
    classes: tuple[str, ...] = ()  # names by number; empty where the labels are numbers
    notes: pa.LargeStringArray | None = None  # [n], JSON objects
    bad: tuple[BadFile, ...] = ()  # files that cannot become samples, as the listing shows
    source: DatasetSource  # for the manifest

    def __len__(self) -> int:
        return len(self.stems)

    def take(self, rows: NDArray[np.int64]) -> Self:
        """Return these rows."""
        return replace(
            self,
            stems=self.stems.take(rows),
            images=self.images.take(rows),
            masks=None if self.masks is None else self.masks.take(rows),
            labels=None if self.labels is None else self.labels[rows],
            notes=None if self.notes is None else self.notes.take(rows),
        )

    def sorted_by_stem(self) -> Self:
        """Return the rows in the order of their stems (by code point)."""
        return self.take(pc.array_sort_indices(self.stems).to_numpy().astype(np.int64))

    def known_bytes(self) -> NDArray[np.int64]:
        """Return int64[n], the bytes of each sample's files; -1 where one is not known."""
        sizes = self.images.sizes
        if self.masks is not None:
            either = (sizes < 0) | (self.masks.sizes < 0)
            sizes = np.where(either, -1, sizes + self.masks.sizes)
        return sizes


def samples_of(table: SampleTable) -> list[SourceSample]:
    """Return the rows of a (small) table one by one, with their members' names."""
    samples = []
    images = _files(table.images, is_mask=False)
    masks: Sequence[SourceFile | None] = (
        [None] * len(table) if table.masks is None else _files(table.masks, is_mask=True)
    )
    labels = None if table.labels is None else table.labels.tolist()
    notes = None if table.notes is None else texts(table.notes)
    for row, stem in enumerate(texts(table.stems)):
        image, mask = images[row], masks[row]
        if mask is not None:
            image, mask = _with_distinct_extensions(image, mask, table.mask_names)
        values = []
        if labels is not None:
            values.append(("cls", str(labels[row]).encode()))
        if notes is not None:
            values.append(("json", notes[row].encode()))
        samples.append(
            SourceSample(
                key=key_of(stem),
                files=(image,) if mask is None else (image, mask),
                values=tuple(values),
            )
        )
    return samples


def names_of_masks(images: FileColumn, masks: FileColumn) -> frozenset[str]:
    """Return the extensions by which masks of a source are named, beside whatever image."""
    pairs = set(zip(_extensions(images), _extensions(masks), strict=True))
    return frozenset(mask for image, mask in pairs if mask and _mask_name(image, mask) == mask)


def _with_distinct_extensions(
    image: SourceFile, mask: SourceFile, mask_names: frozenset[str]
) -> tuple[SourceFile, SourceFile]:
    """Return an image and its mask with extensions by which readers know which is which."""
    named = _mask_name(image.extension, mask.extension)
    if image.extension == mask.extension or image.extension in mask_names:
        # Both are PNG, say, or another sample's mask is. The mask keeps the plain name: a member's
        # name means one thing in all samples.
        image = replace(image, extension=f"image.{image.extension}")
    return image, replace(mask, extension=named)


def _mask_name(image: str, mask: str) -> str:
    """Return the name of a mask's member beside an image, by the extensions of their files."""
    if mask != image and mask in IMAGE_EXTENSIONS - masks_among((image, mask)):
        return f"mask.{mask}"  # a PNG's mask as TIFF, say
    return mask


def texts(strings: pa.LargeStringArray) -> list[str]:
    """Return an array without nulls as a list of strings."""
    return [str(text) for text in strings.to_pylist()]


def _files(column: FileColumn, *, is_mask: bool) -> list[SourceFile]:
    named = zip(_extensions(column), texts(column.paths), column.sizes.tolist(), strict=True)
    return [
        SourceFile(extension=extension, path=path, size_bytes=size, is_mask=is_mask)
        for extension, path, size in named
    ]


def _extensions(column: FileColumn) -> list[str]:
    return [extension_of(path_of_url(path)) for path in texts(column.paths)]


def refuse_shared_stems(table: SampleTable) -> None:
    """Raise DatasetError where two samples of a table sorted by stem share a stem."""
    stems = table.stems
    same = pc.equal(stems.slice(1), stems.slice(0, max(len(stems) - 1, 0)))
    rows = np.flatnonzero(same.to_numpy(zero_copy_only=False))
    if len(rows) == 0:
        return
    paths = table.images.paths
    examples = [
        " and ".join(safe_url(str(paths[place].as_py())) for place in (int(row), int(row) + 1))
        for row in rows[:10]
    ]
    more = f"\n  and {len(rows) - 10} more" if len(rows) > 10 else ""
    other = ", or name the samples in a column 'key'" if table.source.kind == "table" else ""
    raise DatasetError(
        f"{table.url}: two files with one key, {len(rows)} times:\n"
        + "\n".join(f"  {example}" for example in examples)
        + f"{more}\nA sample is named by its file's path without the extension. Rename or remove "
        f"one of each{other}."
    )


SAME_LETTERS = (
    "differ in their Unicode form alone (é as one character, or as e with an accent, as macOS "
    "writes it)"
)
"""What a message says of two names that look the same."""


_BLANKS = "\u200b\ufeff"
"""Characters without width that `str.strip` leaves."""


def _refuse_same_letters(names: Sequence[str], url: str) -> None:
    """Raise DatasetError where two classes look the same: blanks around, or Unicode forms."""
    first: dict[str, str] = {}
    for name in names:
        letters = normalize("NFC", name)
        other = first.setdefault(letters.strip().strip(_BLANKS).strip(), name)
        if other != name:
            what = SAME_LETTERS if normalize("NFC", other) == letters else _SAME_BUT_BLANKS
            raise DatasetError(
                f"{url}: the classes {other!r} and {name!r} {what}. They would be two classes: "
                "give them one name."
            )


_SAME_BUT_BLANKS = "differ in blanks before or after the name alone"


def number_classes(
    names: Sequence[str], known: Sequence[str], url: str
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return all classes in order, and the number of each.

    `known` are all classes, by number; empty to take the `names` that occur, sorted. DatasetError:
    a class occurs that is not known, or two that occur look the same.
    """
    if not known:
        _refuse_same_letters(names, url)
    classes = tuple(known) or tuple(sorted(set(names)))
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = sorted(set(names) - set(numbers))
    if unknown:
        shown = ", ".join(repr(name) for name in unknown[:10])
        more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        forms = {normalize("NFC", name) for name in classes}
        same = [name for name in unknown if normalize("NFC", name) in forms]
        why = f"; {same[0]!r} and a class given {SAME_LETTERS}" if same else ""
        raise DatasetError(
            f"{url}: unknown class {shown}{more}: not among the {len(classes)} classes given "
            f"({', '.join(classes[:3])}, ...){why}. Correct the names, or add them to the list."
        )
    return classes, numbers
