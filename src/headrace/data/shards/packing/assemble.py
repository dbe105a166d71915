"""From the records of finished shards to index and manifest."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.core.errors import DatasetError
from headrace.data.shards.faults import BadFile
from headrace.data.shards.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    Extension,
    Layout,
    Manifest,
    ShardEntry,
    Source,
    fingerprint_of,
)
from headrace.data.shards.packing.part import Part
from headrace.data.shards.packing.part_spool import local_disk
from headrace.data.shards.rows.columns import Kinds, MemberKind
from headrace.data.shards.rows.file import IndexFile, write_index
from headrace.data.storage import Store

Parts = Callable[[], Iterator[Part]]
"""Yields all parts in order; called twice, so that their rows need not stay in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What all parts come to, without their rows.

    Attributes:
        entries: One for each part that has samples; places in the index are not known yet.
        kinds: The extensions of all parts, sorted.
        num_members: Files in all.
        num_recoded: Of these, changed while packing.
        bad: Files left out.
    """

    entries: tuple[ShardEntry, ...]
    kinds: Kinds
    num_members: int
    num_recoded: int
    bad: tuple[BadFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the manifest says beside the parts.

    Attributes:
        layout: Tars or loose objects.
        source: What the dataset was made of.
        classes: Class names by number.
        options: How it was packed.
        data_url: Where shards lie, if not beside the index.
        templates: For loose objects: extension -> patterns of paths.
    """

    layout: Layout
    source: Source
    classes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    data_url: str = ""
    templates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def summarise(parts: Iterable[Part]) -> Summary:
    """Return what parts come to."""
    entries: list[ShardEntry] = []
    kinds: dict[str, MemberKind] = {}
    bad: list[BadFile] = []
    num_members = num_recoded = 0
    for part in parts:
        bad.extend(part.bad)
        if part.batch.num_rows == 0:
            continue
        kinds.update(part.kinds)
        num_members += part.num_members
        num_recoded += part.recoded
        entries.append(
            ShardEntry(
                name=part.name,
                size_bytes=part.size_bytes,
                num_samples=part.batch.num_rows,
                digest=part.digest,
                index_start=0,
                index_bytes=0,
            )
        )
    return Summary(
        entries=tuple(entries),
        kinds=dict(sorted(kinds.items())),
        num_members=num_members,
        num_recoded=num_recoded,
        bad=tuple(bad),
    )


def assemble(store: Store, summary: Summary, parts: Parts, about: About) -> Manifest:
    """Write the index, then the manifest, which makes the dataset exist.

    Raises:
        DatasetError: No sample is left.
        StorageError: The destination fails.
    """
    if not summary.entries:
        raise DatasetError(
            f"{about.source.url}: no sample is left, all {len(summary.bad)} were left out as bad."
        )
    fingerprint = fingerprint_of(about.layout, summary.entries)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        path = Path(folder) / INDEX_NAME
        index = _write(path, summary, parts, fingerprint)
        store.put(INDEX_NAME, path)
    manifest = Manifest(
        fingerprint=fingerprint,
        layout=about.layout,
        num_samples=sum(entry.num_samples for entry in summary.entries),
        num_members=summary.num_members,
        size_bytes=sum(entry.size_bytes for entry in summary.entries),
        extensions=tuple(
            Extension(name=name, kind=kind, templates=about.templates.get(name, ()))
            for name, kind in summary.kinds.items()
        ),
        classes=about.classes,
        data_url=about.data_url,
        index_bytes=index.size_bytes,
        index_crc32c=index.crc32c,
        source=about.source,
        options=about.options,
        num_recoded=summary.num_recoded,
        bad=summary.bad,
        shards=tuple(
            replace(entry, index_start=start, index_bytes=length)
            for entry, (start, length) in zip(summary.entries, index.spans, strict=True)
        ),
    )
    store.put(MANIFEST_NAME, manifest.to_json())
    return manifest


def _write(path: Path, summary: Summary, parts: Parts, fingerprint: str) -> IndexFile:
    batches = (part.batch for part in parts() if part.batch.num_rows)
    with local_disk(path):
        return write_index(path, batches, summary.kinds, fingerprint)
