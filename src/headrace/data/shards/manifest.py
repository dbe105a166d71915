"""The manifest of a dataset, manifest.json.

It is written last, so that a dataset exists completely or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self, get_args

from headrace.core.errors import DatasetError
from headrace.core.lazy import sha256
from headrace.data.shards.index_rows import MemberKind
from headrace.data.shards.reports import BadFile

MANIFEST_NAME = "manifest.json"
INDEX_NAME = "index.arrow"
FORMAT = "headrace-dataset"
VERSION = 1
DECODED = "decoded"  # an option: packing decoded every member once

Layout = Literal["tar", "objects"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One record batch of the index: a shard, or a group of loose objects.

    Attributes:
        name: The shard's path; "" for a group of loose objects.
        size_bytes: The shard's size; for a group the sum of its objects' sizes.
        num_samples: Rows of the batch.
        digest: A hash of the rows.
        index_start: Offset of the batch's message in index.arrow.
        index_bytes: The message's length.
    """

    name: str
    size_bytes: int
    num_samples: int
    digest: str
    index_start: int
    index_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberExtension:
    """One kind of member.

    Attributes:
        name: "jpg", "cls", "mask.png".
        kind: How the index stores it; see `index_rows`.
        templates: For loose objects: patterns of paths, whose wildcards the key fills.
    """

    name: str
    kind: MemberKind
    templates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """The source that a dataset was made of.

    Attributes:
        kind: "class folders", "images", "pairs", "table", "tars".
        url: Its URL.
        num_files: Its files.
        size_bytes: Their size; 0 where it was not known beforehand.
        num_ignored: Files that belong to no sample, such as a README.
        ignored: The first few of them.
        listing: A hash of paths, sizes and entity tags when they were listed, or of the table.
    """

    kind: str
    url: str
    num_files: int
    size_bytes: int
    num_ignored: int = 0
    ignored: tuple[str, ...] = ()
    listing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """The description of a dataset.

    Attributes:
        fingerprint: A hash of names, sizes and checksums of all members.
        layout: Whether members are in tars or are objects of their own.
        num_samples: Its samples.
        num_members: Their files.
        size_bytes: Bytes of all shards or loose objects.
        extensions: The kinds of members.
        classes: Class names by number, where members "cls" hold class numbers.
        data_url: The folder that shard and object paths are relative to; "" for the dataset's own.
        index_bytes: The size of index.arrow.
        index_crc32c: Its CRC-32C.
        source: What it was made of.
        options: The packing options that affect the bytes.
        num_recoded: Files that were changed while packing.
        bad: Files that were left out.
        shards: The index's record batches, in order.
    """

    fingerprint: str
    layout: Layout
    num_samples: int
    num_members: int
    size_bytes: int
    extensions: tuple[MemberExtension, ...]
    classes: tuple[str, ...] = ()
    data_url: str = ""
    index_bytes: int
    index_crc32c: int
    source: DatasetSource
    options: Mapping[str, Any] = field(default_factory=dict)
    num_recoded: int = 0
    bad: tuple[BadFile, ...] = ()
    shards: tuple[ShardEntry, ...]

    @property
    def decoded(self) -> bool:
        """Whether packing decoded every file: then a matching checksum means that it decodes."""
        return bool(self.options.get(DECODED))

    def to_json(self) -> bytes:
        """Return the manifest as JSON, one line a shard."""
        head = {"format": FORMAT, "version": VERSION} | {
            each.name: _plain(getattr(self, each.name))
            for each in fields(self)
            if each.name != "shards"
        }
        shards = ",\n  ".join(json.dumps(asdict(shard)) for shard in self.shards)
        text = json.dumps(head, indent=1, ensure_ascii=False, sort_keys=False)
        return f'{text[:-2]},\n "shards": [\n  {shards}\n ]\n}}\n'.encode("utf-8", "replace")

    @classmethod
    def from_json(cls, data: bytes | memoryview, url: str, *, checked: bool = False) -> Self:
        """Parse a manifest.

        Args:
            data: The file's bytes.
            url: The dataset, for messages.
            checked: Another process has parsed and checked these same bytes.

        Raises:
            DatasetError: It is damaged, or of a newer version; the message names `url`.
        """
        where = f"{url}/{MANIFEST_NAME}"
        try:
            entries = json.loads(bytes(data))
            kind, version = entries.pop("format"), entries.pop("version")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise DatasetError(f"{where} is no dataset's manifest ({error!r}).") from None
        if kind != FORMAT or version != VERSION:
            raise DatasetError(
                f"{where} is {kind!r} version {version!r}; this Headrace reads {FORMAT!r} version "
                f"{VERSION}. Install a newer Headrace, or pack the dataset again."
            )
        try:
            manifest = cls(**_typed(entries))
            if not checked:
                _check_manifest(manifest)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise DatasetError(
                f"{where} is damaged ({error}). Restore it, or pack the dataset again."
            ) from None
        return manifest


def fingerprint_of(layout: Layout, shards: Sequence[ShardEntry]) -> str:
    """Return the dataset's fingerprint: 32 hexadecimal digits."""
    content = [FORMAT, VERSION, layout]
    rows = [[shard.name, shard.size_bytes, shard.num_samples, shard.digest] for shard in shards]
    state = sha256()
    state.update(json.dumps([content, rows]).encode())
    return state.hexdigest()[:32]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def _typed(content: dict[str, Any]) -> dict[str, Any]:
    extensions = [
        MemberExtension(**(each | {"templates": tuple(each["templates"])}))
        for each in content["extensions"]
    ]
    source = content["source"]
    return content | {
        "extensions": tuple(extensions),
        "classes": tuple(content["classes"]),
        "source": DatasetSource(**(source | {"ignored": tuple(source["ignored"])})),
        "bad": tuple(BadFile(**bad) for bad in content["bad"]),
        "shards": tuple(ShardEntry(**shard) for shard in content["shards"]),
    }


def _check_manifest(manifest: DatasetManifest) -> None:
    if manifest.layout not in get_args(Layout):
        raise ValueError(f"layout {manifest.layout!r}")
    if any(extension.kind not in get_args(MemberKind) for extension in manifest.extensions):
        raise ValueError("an extension of an unknown kind")
    if sum(shard.num_samples for shard in manifest.shards) != manifest.num_samples:
        raise ValueError("the shards' samples do not add up")
    if fingerprint_of(manifest.layout, manifest.shards) != manifest.fingerprint:
        raise ValueError("its fingerprint is not that of its shards")
