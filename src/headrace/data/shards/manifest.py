"""The manifest of a dataset, manifest.json.

It is written last, so that a dataset exists completely or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self, get_args

from headrace.core.errors import DatasetError
from headrace.core.json_checksum import CHECKSUM, fields_checksum, take_checksum
from headrace.core.lazy import small_sha256
from headrace.data.shards.index_rows import MemberKind
from headrace.data.shards.reports import BadFile

MANIFEST_NAME = "manifest.json"
INDEX_NAME = "index.arrow"
FORMAT = "headrace-dataset"
VERSION = 1
DECODED = "decoded"  # an option: packing decoded every member once

_WRITTEN_IF_ANY = frozenset({"num_oriented", "num_system", "system"})
"""Fields that manifests of earlier versions lack, which stay the same where there are none."""

Layout = Literal["tar", "objects"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One record batch of the index: a shard, or a group of loose objects."""

    name: str  # the shard's path; "" for a group of loose objects
    size_bytes: int  # for a group the sum of its objects' sizes
    num_samples: int
    digest: str  # of the rows
    index_start: int  # of the batch's message in index.arrow
    index_bytes: int  # the message's length


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberExtension:
    """One kind of member."""

    name: str  # "jpg", "cls", "mask.png"
    kind: MemberKind  # how the index stores it; see `index_rows`
    templates: tuple[str, ...] = ()  # of loose objects: their paths, whose wildcards the key fills


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """The source that a dataset was made of."""

    kind: str  # "class folders", "images", "pairs", "table", "tars"
    url: str
    num_files: int
    size_bytes: int  # 0 where it was not known beforehand
    num_ignored: int = 0  # files that belong to no sample, such as a README
    ignored: tuple[str, ...] = ()  # the first few of them
    num_system: int = 0  # of these the hidden ones and systems' own; see `data_files`
    system: tuple[str, ...] = ()  # the first few of them
    listing: str = ""  # a hash of paths, sizes and versions as listed, or of the table


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """The description of a dataset."""

    fingerprint: str  # a hash of names, sizes and checksums of all members
    layout: Layout  # whether members are in tars or are objects of their own
    num_samples: int
    num_members: int
    size_bytes: int  # of all shards or loose objects
    extensions: tuple[MemberExtension, ...]
    classes: tuple[str, ...] = ()  # names by number, where members "cls" hold class numbers
    data_url: str = ""  # what paths of shards and objects are relative to; see `data_folder`
    index_bytes: int
    index_crc32c: int
    source: DatasetSource
    options: Mapping[str, Any] = field(default_factory=dict)  # those that affect the bytes
    num_recoded: int = 0  # files that were changed while packing
    num_oriented: int = 0  # images with an EXIF orientation, whose pixels stay as they are stored
    bad: tuple[BadFile, ...] = ()  # files that were left out
    shards: tuple[ShardEntry, ...]  # in the order of the index

    @property
    def decoded(self) -> bool:
        """Whether packing decoded every file: then a matching checksum means that it decodes."""
        return bool(self.options.get(DECODED))

    @property
    def data_folder(self) -> str | None:
        """The data's folder, relative to the dataset's own; "" for that; None: `data_url` is whole.

        A dataset whose data lie within its folder can be copied with them.
        """
        is_whole = "://" in self.data_url or self.data_url.startswith("/")
        return None if is_whole else self.data_url

    def to_json(self) -> bytes:
        """Return the manifest as JSON, one line a shard."""
        entries = asdict(self)
        for part in (entries, entries["source"]):
            for name in _WRITTEN_IF_ANY & part.keys():
                if not part[name]:
                    del part[name]
        shards = ",\n  ".join(map(json.dumps, entries.pop("shards")))
        head = {"format": FORMAT, "version": VERSION, **entries}
        text = json.dumps(head, indent=1, ensure_ascii=False)
        whole = f'{text[:-2]},\n "shards": [\n  {shards}\n ]\n}}\n'
        data = whole.encode("utf-8", "backslashreplace")  # a folder's name may not be UTF-8
        checksum = fields_checksum(json.loads(data))  # as it is read
        end = f',\n "{CHECKSUM}": "{checksum}"\n}}\n'
        return data.removesuffix(b"\n}\n") + end.encode()

    @classmethod
    def from_json(cls, data: bytes | memoryview, url: str, *, checked: bool = False) -> Self:
        """Parse a manifest; raises DatasetError, naming `url`, if it is damaged or too new.

        `checked` says that another process has parsed and checked these same bytes.
        """
        where = f"{url}/{MANIFEST_NAME}"
        try:
            entries = json.loads(bytes(data))
            kind, version = entries["format"], entries["version"]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise DatasetError(f"{where} is no dataset's manifest ({error!r}).") from None
        if kind != FORMAT or version != VERSION:
            raise DatasetError(
                f"{where} is {kind!r} version {version!r}; this Headrace reads {FORMAT!r} version "
                f"{VERSION}. Install a newer Headrace, or pack the dataset again."
            )
        try:
            if not checked:
                take_checksum(entries)
            for name in ("format", "version", CHECKSUM):
                entries.pop(name, None)
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
    state = small_sha256()
    state.update(json.dumps([content, rows]).encode())
    return state.hexdigest()[:32]


def _typed(content: dict[str, Any]) -> dict[str, Any]:
    extensions = [
        MemberExtension(**(each | {"templates": _texts(each["templates"])}))
        for each in content["extensions"]
    ]
    source = content["source"]
    return content | {
        "extensions": tuple(extensions),
        "classes": _texts(content["classes"]),
        "source": DatasetSource(
            **source | {name: _texts(source.get(name, [])) for name in ("ignored", "system")},
        ),
        "bad": tuple(BadFile(**bad) for bad in content["bad"]),
        "shards": tuple(ShardEntry(**shard) for shard in content["shards"]),
    }


def _texts(content: Any) -> tuple[str, ...]:
    """Return a list of texts as a tuple; raises TypeError for all else, a text included."""
    if type(content) is not list or not all(type(each) is str for each in content):
        raise TypeError(f"{content!r} in place of a list of texts")
    return tuple(content)


_FIELD_TYPES = {"int": int, "str": str, "Mapping[str, Any]": dict}


def _check_fields(entry: Any) -> None:
    """Raise TypeError where a number, a text or a mapping of an entry is something else."""
    for each in fields(entry):
        wanted = _FIELD_TYPES.get(str(each.type))
        value = getattr(entry, each.name)
        if wanted is not None and type(value) is not wanted:
            raise TypeError(f"{each.name} is {value!r}")


def _check_manifest(manifest: DatasetManifest) -> None:
    for entry in (manifest, manifest.source, *manifest.extensions, *manifest.bad, *manifest.shards):
        _check_fields(entry)
    if manifest.layout not in get_args(Layout):
        raise ValueError(f"layout {manifest.layout!r}")
    if {".", ".."}.intersection((manifest.data_folder or "").split("/")):
        raise ValueError(f"data_url {manifest.data_url!r}")
    if any(extension.kind not in get_args(MemberKind) for extension in manifest.extensions):
        raise ValueError("an extension of an unknown kind")
    if sum(shard.num_samples for shard in manifest.shards) != manifest.num_samples:
        raise ValueError("the shards' samples do not add up")
    if fingerprint_of(manifest.layout, manifest.shards) != manifest.fingerprint:
        raise ValueError("its fingerprint is not that of its shards")
