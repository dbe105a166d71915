"""Tars of any members, read back by us, by tarfile and by webdataset."""

from __future__ import annotations

import io
import tarfile
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from headrace.data.shards.members import PathPattern, checksum, key_of, split_name
from headrace.data.shards.tar import TarWriter
from headrace.data.shards.tar_index import index_tar
from headrace.data.storage import open_store

STEMS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=60
).filter(lambda text: text not in {".", ".."})
PATHS = st.lists(STEMS, min_size=1, max_size=4).map("/".join)
MEMBERS = st.dictionaries(
    st.sampled_from(["jpg", "cls", "json", "mask.png"]), st.binary(max_size=1500), min_size=1
)
SAMPLES = st.dictionaries(PATHS.map(key_of), MEMBERS, max_size=8)


def write(samples: dict[str, dict[str, bytes]]) -> tuple[bytes, TarWriter]:
    writer = TarWriter()
    members = [(key, list(content.items())) for key, content in samples.items()]
    return b"".join(writer.pieces(members)), writer


@given(SAMPLES)
def test_what_is_written_reads_back_with_pythons_tarfile(samples):
    tar, writer = write(samples)
    with tarfile.open(fileobj=io.BytesIO(tar)) as reader:
        read = {info.name: reader.extractfile(info).read() for info in reader}
    assert read == {
        f"{key}.{extension}": data
        for key, content in samples.items()
        for extension, data in content.items()
    }
    assert writer.size_bytes == len(tar)


@settings(deadline=None)  # each writes a file
@given(SAMPLES)
def test_the_index_of_the_writer_is_that_of_the_reader_and_fits_the_bytes(samples):
    tar, writer = write(samples)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.tar").write_bytes(tar)
        found = index_tar(open_store(folder), "x.tar", len(tar), samples.__contains__)
    assert [fault.kind for fault in found.faults] == ([] if samples else ["missing"])
    assert list(found.rows.items()) == list(writer.rows.items())
    for key, places in writer.rows.items():
        for extension, (offset, size_bytes, crc32c) in places.items():
            data = tar[offset : offset + size_bytes]
            assert data == samples[key][extension]
            assert checksum(data) == crc32c


@given(st.lists(PATHS, unique=True, max_size=6))
def test_different_stems_have_different_keys(stems):
    assert len({key_of(stem) for stem in stems}) == len(stems)


@given(PATHS, st.sampled_from(["jpg", "mask.png"]))
def test_webdataset_finds_the_key_and_the_extension_that_were_written(stem, extension):
    key = key_of(stem)
    assert split_name(f"{key}.{extension}") == (key, extension)
    assert base_plus_ext(f"{key}.{extension}") == (key, extension)


@given(
    st.lists(st.sampled_from(["*", "**", "a/", "_x", "b(c)"]), min_size=1, max_size=6),
    st.data(),
)
def test_a_pattern_takes_apart_what_it_puts_together(pieces, data):
    wildcards = [piece for piece in pieces if piece.startswith("*")]
    neighbours = any(a[0] == b[0] == "*" for a, b in pairwise(pieces))
    if not wildcards or wildcards.count("**") > 1 or neighbours:
        return
    glob = PathPattern.parse("".join(pieces))
    parts = st.text("abx_c", min_size=1, max_size=4)
    path = "".join(data.draw(parts) if piece[0] == "*" else piece for piece in pieces)
    stem = glob.match(path)
    assert stem is not None
    assert glob.expand(stem) == path
