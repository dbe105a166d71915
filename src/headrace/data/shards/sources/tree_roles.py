"""The roles that names of folders and files say: a split, images, masks; trees of none but classes.

Names by which a tree of class folders, or a set of tars, is refused as something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import DatasetError
from headrace.data.image_files import IMAGE_EXTENSIONS
from headrace.data.shards.members import stem_of
from headrace.data.storage import ObjectInfo, join_url

_SPLITS = {
    "train": "train", "training": "train", "trn": "train", "test": "test", "testing": "test",
    "tst": "test", "val": "val", "valid": "val", "validation": "val", "dev": "val", "eval": "val",
}  # fmt: skip
"""Names of splits, with the usual name of each."""

_MASKS = {
    *("annotation", "annotations", "groundtruth", "gt", "label", "labels", "mask", "masks", "seg"),
    *("segmentation", "segmentations", "segmentationclass", "segmentationobject"),
}
_PARTS = {*_MASKS, "image", "images", "img", "imgs", "jpegimages"}
_OTHERS = {"data", "dataset", "set", "split"}

_WORD = re.compile(r"[a-z]+")
_JOINED = re.compile(rf"({'|'.join(_SPLITS)})(set|data|dataset|images?|imgs?|masks?|labels?)")


def _words(name: str) -> list[str]:
    """Return the words of a name: train and images of Train_images2017, and of trainimages."""
    words: list[str] = []
    for word in _WORD.findall(name.lower()):
        joined = _JOINED.fullmatch(word)
        words += joined.groups() if joined else [word]
    return words


def _splits_of(names: Iterable[str]) -> set[str]:
    """Return the splits that names say which say nothing else."""
    known = _SPLITS.keys() | _PARTS | _OTHERS
    said = [words for words in map(_words, names) if words and known.issuperset(words)]
    return {_SPLITS[word] for words in said for word in words if word in _SPLITS}


def _are_images_and_masks(names: Sequence[str]) -> bool:
    """Return whether of folders one says that it holds masks, and one images or a split."""
    known = _SPLITS.keys() | _PARTS | _OTHERS
    said = [set(words) for words in map(_words, names) if words and known.issuperset(words)]
    has_masks = any(words & _MASKS for words in said)
    return has_masks and any(words - _MASKS - _OTHERS and not words & _MASKS for words in said)


def refuse_wrong_level(names: Sequence[str], url: str) -> None:
    """Raise DatasetError where would-be class folders are splits, or images and masks."""
    lower = {name.lower() for name in names}
    problem = f"{url}: the folders {_shown(names)} would become classes"
    anyway = "If they are classes, name them in a file and give it with --classes-from."
    if len(_splits_of(names)) > 1 or (len(lower) > 1 and lower <= _SPLITS.keys()):
        first = next(name for name in sorted(names) if _splits_of([name]))
        raise DatasetError(
            f"{problem}, but they look like splits. Pack each by itself, to a folder of its own: "
            f"`--split {first}`. {anyway}"
        )
    if _are_images_and_masks(names) or (len(lower) > 1 and lower <= _PARTS):
        raise DatasetError(
            f"{problem}, but they look like images and their masks or labels. Give --image-glob "
            f"and --mask-glob, such as '{min(names)}/**/*.jpg'. {anyway}"
        )


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(sorted(names)[:10]) + more


class LabelFiles:
    """The files near the top of a tree that may say what images are of, and are no tables."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def add(self, info: ObjectInfo) -> None:
        """Add a file that is no image."""
        stem, _, ending = info.path.rpartition("/")[2].lower().rpartition(".")
        may_hold_labels = ending in _LABEL_ENDINGS and not _NO_LABELS.search(stem)
        is_near = info.path.count("/") < 2 and len(self.paths) < _MOST_FOUND
        if may_hold_labels and is_near and info.size_bytes:
            self.paths.append(info.path)


_LABEL_ENDINGS = frozenset({"json", "mat", "npy", "pkl", "txt", "xls", "xlsx", "xml"})
_NO_LABELS = re.compile(r"read.?me|licen[cs]e|copying|copyright|citation|manifest|requirements")


def refuse_labels_elsewhere(
    only: str, tables: Iterable[str], others: Iterable[str], url: str
) -> None:
    """Raise DatasetError where the only class is a folder of images, and files may have others.

    These are tables, or `others`: lists of another form, or a file an image.
    """
    words = _words(only)
    if not words or not (_SPLITS.keys() | _PARTS | _OTHERS | IMAGE_EXTENSIONS).issuperset(words):
        return
    for paths in (tables, others):
        beside = [path for path in paths if path.count("/") == 0 or path.startswith(f"{only}/")]
        if beside:
            how = f"pack that table, {join_url(url, beside[0])}, for its labels"
            if paths is others:
                how = "write them as a table of paths and labels, and pack that"
            raise DatasetError(
                f"{url}: {only} would be the only class, and its classes may be in {beside[0]}: "
                f"{how}, or {join_url(url, only)} for the images without classes. If it is the "
                "class, name it in a file and give it with --classes-from."
            )


def is_of_split(path: str, split: str) -> bool:
    """Return whether a path says that it is of a split, as val/0.tar and a-val-0.tar do."""
    return split in path.split("/")[:-1] or split in re.split(r"[^A-Za-z]+", path)


def refuse_mixed_splits(paths: Sequence[str], url: str) -> None:
    """Raise DatasetError where the names of tars, or their folders, say several splits."""
    first: dict[str, tuple[str, str]] = {}
    for path in paths:
        words = re.split(r"[^A-Za-z]+", path)
        found = {_SPLITS[word.lower()]: word for word in words if word.lower() in _SPLITS}
        if len(found) == 1:
            split, word = found.popitem()
            first.setdefault(split, (word, path))
    if len(first) > 1:
        words = sorted(word for word, _ in first.values())
        shown = " and ".join(path for _, path in first.values())
        raise DatasetError(
            f"{url}: the tars are of several splits, such as {shown}, and would become one "
            f"dataset. Index each by itself, to a folder of its own: `--split {words[0]} --to DST`."
        )


_MASK_ENDINGS = re.compile(
    r"(.+?)([ _.-](?:masks?|seg|segmentation|gt|groundtruth|trimap))", re.IGNORECASE | re.DOTALL
)


class MasksAmongImages:
    """Images that are named as masks of others beside them: a.png and a_mask.png."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, str]] = {}  # the image's stem: the mask's path, ending

    def add(self, path: str) -> None:
        """Add an image."""
        match = _MASK_ENDINGS.fullmatch(stem_of(path))
        if match is not None and len(self._found) < _MOST_FOUND:
            self._found.setdefault(match[1], (path, match[2]))

    def refuse(self, stems: pa.LargeStringArray, url: str) -> None:
        """Raise DatasetError where images with these stems have masks beside them."""
        if not self._found:
            return
        wanted = pa.array(self._found, pa.large_string())
        has_image = pc.is_in(wanted, value_set=stems).to_pylist()
        masks = [mask for mask, is_there in zip(self._found, has_image, strict=True) if is_there]
        if masks:
            path, ending = self._found[masks[0]]
            extension = path[len(stem_of(path)) :]
            raise DatasetError(
                f"{url}: {len(masks)} images are named as the masks of others beside them, such as "
                f"{path}, and would become samples of their own. For images with masks give "
                f"--image-glob '**/*.jpg' --mask-glob '**/*{ending}{extension}' (with the images' "
                "own extension); for images alone, move the masks away. If they are images of "
                "their own in class folders, name the classes in a file and give it with "
                "--classes-from."
            )


_MOST_FOUND = 10_000  # that are kept in mind, where there are very many
