"""One bit that flips in a file which says where data is, and what: an error, or nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.errors import HeadraceError
from headrace.core.json_checksum import fields_checksum, take_checksum
from headrace.data.shards.manifest import (
    DatasetManifest,
    DatasetSource,
    MemberExtension,
    ShardEntry,
    fingerprint_of,
)
from headrace.jobs.sync.remote_copy import SyncedFile, SyncManifest
from headrace.train.checkpoint_commit import Commit, SavedFile

_SHARDS = (
    ShardEntry(
        name="000000.tar", size_bytes=512, num_samples=3, digest="ab", index_start=8, index_bytes=9
    ),
)
_MANIFEST = DatasetManifest(
    fingerprint=fingerprint_of("tar", _SHARDS), layout="tar", num_samples=3, num_members=6,
    size_bytes=512, extensions=(MemberExtension(name="jpg", kind="range"),),
    classes=("chat", "größe", "\udcff"), index_bytes=99, index_crc32c=7,
    source=DatasetSource(
        kind="images", url="/data", num_files=3, size_bytes=500, num_ignored=1, ignored=("\udcff",)
    ),
    options={"quality": 0.1 + 0.2, "decoded": True}, shards=_SHARDS,
)  # fmt: skip
_COMMIT = Commit(
    step=7, save="0123456789ab", world_size=2, saved_s=1.5,
    files=(SavedFile(name=".metadata", size_bytes=3, crc32c=5),),
    loader=({"position": 96, 3: float("inf")},), extra=[1, None],
)  # fmt: skip
_SYNCED = SyncManifest(
    host="host", generation=3, owner="a", saved_s=2.25,
    files={"1.pt": SyncedFile(name="1.pt", size_bytes=1, checksum="0", mtime_ns=5, stored_as="f")},
)  # fmt: skip
_FILES = {
    "manifest.json": (_MANIFEST.to_json(), DatasetManifest.from_json),
    "commit.json": (_COMMIT.to_json(), Commit.from_json),
    "a manifest of a kept folder": (_SYNCED.to_json(), SyncManifest.from_json),
}


@pytest.mark.parametrize(("data", "read"), _FILES.values(), ids=_FILES)
def test_no_flipped_bit_is_read_as_something_else(
    data: bytes, read: Callable[[bytes, str], Any]
) -> None:
    whole = read(data, "s3://bucket")
    refused = 0
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            try:
                found = read(bytes(damaged), "s3://bucket")
            except HeadraceError:
                refused += 1
                continue
            assert found == whole, (data[:place][-20:], place, bit)
    assert refused > 7 * len(data)


def test_the_checksum_is_that_of_what_is_read_in_any_order() -> None:
    fields = {"b": (1, 2.5, None), "a": {"x": "é"}}
    checksum = fields_checksum(fields)
    assert (
        checksum == "f14f05d0192ba90f272061630c9672f9"
    )  # another one would make all stored files look damaged
    read = {"a": {"x": "é"}, "checksum": checksum, "b": [1, 2.5, None]}
    take_checksum(read)
    assert read == {"a": {"x": "é"}, "b": [1, 2.5, None]}
    take_checksum({"a": 1})  # of an earlier version
    with pytest.raises(ValueError, match="checksum differs"):
        take_checksum({"a": 1, "checksum": checksum})
