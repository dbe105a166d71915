"""Sources of images and masks in two trees, matched by the wildcards of two patterns."""

from __future__ import annotations

import numpy as np

from headrace.core.arrow_arrays import large_strings
from headrace.core.errors import DatasetError, UsageError
from headrace.data.shards.members import PathPattern
from headrace.data.shards.sources.sample_table import (
    FileColumn,
    ListedCallback,
    SampleTable,
    SourceListing,
    list_files,
)
from headrace.data.storage import Store

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
    listing = SourceListing()
    for folder in _folders(images.glob.folder, masks.glob.folder):
        for info in list_files(store, on_listed, folder):
            uses = sum(side.add(info.path, info.size_bytes) for side in (images, masks))
            if uses:
                listing.add(info, uses)
            else:
                listing.ignore(info.path)
    stems = _shared_stems(store.url, images, masks)
    return SampleTable(
        url=store.url,
        stems=large_strings(stems),
        images=images.column(stems),
        masks=masks.column(stems),
        source=listing.source("pairs", store.url),
    )


class _PatternMatches:
    """The files that match one pattern, by stem.

    A pattern that ends in ".*" accepts any extension, which is then not part of the stem.
    """

    def __init__(self, pattern: str) -> None:
        self.any_extension = pattern.endswith(".*")
        self.pattern = pattern
        self.glob = PathPattern.parse(pattern.removesuffix(".*"))
        self.files: dict[str, tuple[str, int, int]] = {}  # path, size in bytes, template
        self.duplicates: list[tuple[str, str]] = []
        self.templates: dict[str, int] = {}

    def add(self, path: str, size_bytes: int) -> bool:
        """Add a path if it matches; return whether it does."""
        trunk, extension = path, ""
        if self.any_extension:
            trunk, dot, last = path.rpartition(".")
            extension = f"{dot}{last}"
        stem = self.glob.match(trunk)
        if stem is None or (self.any_extension and not extension):
            return False
        if stem in self.files:
            self.duplicates.append((self.files[stem][0], path))
        template = self.templates.setdefault(f"{self.glob.pattern}{extension}", len(self.templates))
        self.files[stem] = path, size_bytes, template
        return True

    def column(self, stems: list[str]) -> FileColumn:
        paths, sizes, templates = zip(*(self.files[stem] for stem in stems), strict=True)
        return FileColumn(
            paths=large_strings(paths),
            sizes=np.array(sizes, dtype=np.int64),
            templates=tuple(self.templates),
            template_ids=np.array(templates, dtype=np.uint16),
        )


def _shared_stems(url: str, images: _PatternMatches, masks: _PatternMatches) -> list[str]:
    for side in (images, masks):
        if not side.files:
            raise DatasetError(
                f"{url} holds no file that matches {side.pattern!r}, or does not exist. Patterns "
                "are relative to it; '*' stands for part of a name, '**' for several folders."
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


def _folders(image_folder: str, mask_folder: str) -> list[str]:
    """Return the folders to list so that every match is listed once."""
    first, second = sorted((image_folder, mask_folder))
    if first in {"", second} or second.startswith(f"{first}/"):
        return [first]
    return [first, second]
