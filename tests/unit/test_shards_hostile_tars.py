"""Tars made to do harm: each is a fault by name, in index and lint, at no great cost."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import TooManyBadSamplesError
from headrace.data.shards.in_place_index import index_in_place
from headrace.data.shards.lint import lint
from headrace.data.shards.tar import END_OF_ARCHIVE, padding, write_header
from headrace.data.shards.tar_index import TarIndex, index_tar
from headrace.data.storage import open_store

MIB = 2**20
SIZE = slice(124, 136)


def header(name: str, size: bytes | int, kind: bytes = b"0", **fields: bytes) -> bytes:
    """Return a header with any bytes as its size, and a right checksum."""
    block = bytearray(write_header(name, size if isinstance(size, int) else 0))
    if isinstance(size, bytes):
        block[SIZE] = size.ljust(12, b"\0")
    block[156:157] = kind
    for offset, value in fields.items():
        place = int(offset.removeprefix("at_"))
        block[place : place + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def filled(body: bytes) -> bytes:
    return body + bytes(padding(len(body)))


def pax(kind: bytes = b"x", **records: str) -> bytes:
    body = b"".join(record(f"{name.replace('__', '.')}={value}") for name, value in records.items())
    return header("pax", len(body), kind) + filled(body)


def record(text: str) -> bytes:
    data = f" {text}\n".encode()
    length = len(data) + len(str(len(data)))
    length += len(str(length)) > len(str(len(data)))
    return str(length).encode() + data


def file(name: str, body: bytes = b"abc") -> bytes:
    return header(name, len(body)) + filled(body)


A, B = file("a.jpg"), file("b.jpg")
SPARSE = {"GNU__sparse__major": "1", "GNU__sparse__minor": "0", "GNU__sparse__name": "s.jpg"}
MAP = header("s.jpg", 512, b"S", at_482=b"\1") + bytes(504) + b"\1" + bytes(7) + bytes(512)

# What follows a.jpg, then the kind of fault, its words, and the keys that are read.
HOSTILE: dict[str, tuple[bytes, str, str, list[str]]] = {
    "a pax size of 5,000 digits": (
        pax(size="9" * 5000) + B, "header", "a size of 5000 digits", ["a"],
    ),
    "a pax size of as many zeros": (
        pax(size="0" * 5000 + "3") + B, "header", "a size of 5001 digits", ["a"],
    ),
    "a negative pax size": (pax(size="-3") + B, "header", "the size '-3'", ["a"]),
    "a pax size in other digits": (pax(size="٣") + B, "header", "is no size", ["a"]),
    "a pax record of 5,000 digits": (
        header("x", 5010, b"x") + filled(b"9" * 5000 + b" size=1\n\n\n") + B,
        "header", "a pax record is malformed", ["a"],
    ),
    "a pax record that ends before it begins": (
        header("x", 9, b"x") + filled(b"1 size=1\n") + B, "header", "malformed", ["a"],
    ),
    "a negative octal size": (header("b.jpg", b"-0000000003") + B, "header", "negative", ["a"]),
    "a size of minus one, in binary": (
        header("b.jpg", b"\xff" * 12) + B, "header", "size is negative", ["a"],
    ),
    "a size with an underscore": (header("b.jpg", b"0000000_3") + B, "header", "no number", ["a"]),
    "a size with a sign": (header("b.jpg", b"+3") + B, "header", "no number", ["a"]),
    "a size beyond the file": (
        header("b.jpg", b"77777777777") + filled(b"abc"), "cut", "within 'b.jpg'", ["a"],
    ),
    "a binary size beyond all files": (
        header("b.jpg", b"\xbf" + b"\xff" * 11) + filled(b"abc"), "cut", "within 'b.jpg'", ["a"],
    ),
    "a size that reaches over the next header": (
        header("b.jpg", 700) + filled(b"abc") + B, "header", "checksum is wrong", ["a", "b"],
    ),
    "a pax size that reaches over the next header": (
        pax(size="1027") + B + B, "header", "sizes of 3 and, in a pax header, of 1027", ["a"],
    ),
    "pax headers of gigabytes": (
        header("x", 2**31, b"x") + bytes(1024), "header", "of 2147483648 bytes", ["a"],
    ),
    "many pax headers of one member": (
        b"".join(pax(**{f"k{n}": "v" * 500_000}) for n in range(3)) + B,
        "header", "before one member", ["a"],
    ),
    "a long name of gigabytes": (header("x", 2**31, b"L"), "header", "of 2147483648 bytes", ["a"]),
    "a long link target of gigabytes": (header("x", 2**31, b"K"), "header", "bytes", ["a"]),
    "a global header of gigabytes": (header("x", 2**31, b"g"), "header", "bytes", ["a"]),
    "a global size": (pax(b"g", size="1") + B, "header", "sets 'size' for all", ["a"]),
    "a global path": (pax(b"g", path="../x") + B, "header", "sets 'path' for all", ["a"]),
    "a sparse file of pax 1.0": (
        pax(**SPARSE) + file("GNUSparseFile.0/s.jpg") + B,
        "type", "'s.jpg' is a sparse file", ["a", "b"],
    ),
    "a sparse file of pax 0.1": (
        pax(GNU__sparse__size="9", GNU__sparse__map="0,3") + file("s.jpg") + B,
        "type", "'s.jpg' is a sparse file", ["a", "b"],
    ),
    "a sparse file of GNU's old format": (
        MAP + bytes(512) + B, "type", "'s.jpg' is a sparse file", ["a", "b"],
    ),
    "a sparse file whose map has no end": (
        header("s.jpg", 0, b"S", at_482=b"\1") + (bytes(504) + b"\1" + bytes(7)) * 9,
        "type", "sparse", ["a"],
    ),
    "a name that is not UTF-8": (
        header("x", 3, at_0=b"\xff\xfe.jpg") + filled(b"abc") + B, "name", "not UTF-8", ["a", "b"],
    ),
    "a name of a mebibyte that is refused": (
        header("x", MIB - 600, b"L") + filled(b"../" + b"x" * (MIB - 603)) + B,
        "name", "xxx...' is refused", ["a"],
    ),
}  # fmt: skip


def index(folder: Path, tar: bytes) -> TarIndex:
    (folder / "x.tar").write_bytes(tar)
    return index_tar(open_store(str(folder)), "x.tar", len(tar))


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_member_is_a_fault_by_name(tmp_path, what):
    members, kind, words, keys = HOSTILE[what]
    found = index(tmp_path, A + members + END_OF_ARCHIVE)
    assert found.faults[0].kind == kind
    assert words in found.faults[0].message
    assert len(found.faults[0].message) < 500
    assert [key for key, _ in found.rows.items()] == keys
    assert kind not in {"cut", "header"} or keys[-1] in found.left_out  # it may lack members


@pytest.mark.parametrize("what", HOSTILE)
def test_index_and_lint_name_it(tmp_path, what):
    members, kind, words, _ = HOSTILE[what]
    data = tmp_path / "data"
    data.mkdir()
    (data / "x.tar").write_bytes(A + B + END_OF_ARCHIVE)
    index_in_place(str(data))
    (data / "x.tar").write_bytes(A + members + END_OF_ARCHIVE)
    assert kind in {fault.kind for fault in lint(str(data)).faults}
    with pytest.raises(TooManyBadSamplesError) as caught:
        index_in_place(str(data), destination=str(tmp_path / "index"))
    assert words in str(caught.value)


def test_the_faults_and_names_of_one_tar_have_bounds(tmp_path):
    refused = index(tmp_path, file("../x.jpg", b"") * 1500 + END_OF_ARCHIVE)
    assert len(refused.faults) == 1001
    assert "1000 faults up to byte" in refused.faults[-1].message
    ignored = index(tmp_path, file("README", b"") * 1500 + B + END_OF_ARCHIVE).ignored
    assert (ignored.num_files, ignored.examples) == (1500, ["README"] * 5)


def test_a_kind_of_its_own_for_each_member_takes_no_memory(tmp_path):
    members = b"".join(file(f"{n}.x{n}", b"") for n in range(3000))
    found = index(tmp_path, members + END_OF_ARCHIVE)
    assert [fault.kind for fault in found.faults] == ["name"]
    assert "kinds of members, of which each has few" in found.faults[0].message
    assert len(found.rows) < 1500
    frames = b"".join(file(f"clip.{n}.jpg", b"1") for n in range(3000))  # one sample
    assert index(tmp_path, frames + END_OF_ARCHIVE).faults == []


def test_small_records_of_a_large_pax_header_take_no_time_and_memory(tmp_path):
    body = b"6 a=b\n" * (MIB // 30)
    tar = header("x", len(body), b"x") + filled(body) + B + END_OF_ARCHIVE
    tracemalloc.start()
    found = index(tmp_path, tar)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.faults == []
    assert peak_bytes < 8 * MIB


PIECES = st.one_of(
    st.sampled_from([A, B, END_OF_ARCHIVE, *(members for members, *_ in HOSTILE.values())]).filter(
        lambda piece: len(piece) < 20_000
    ),
    st.builds(
        header,
        st.sampled_from(["a.jpg", "a.cls", ".x/a.jpg", "x"]),
        st.binary(min_size=1, max_size=12),
        st.sampled_from([bytes([kind]) for kind in b"0x5gLKS127\0"]),
    ),
    st.builds(lambda size, path: pax(size=size, path=path), st.text("0123456789-+ e"), st.text()),
    st.binary(max_size=600),
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=5))
def test_any_bytes_end_in_samples_within_the_file_and_named_faults(tmp_path_factory, pieces):
    tar = b"".join(pieces)
    found = index(tmp_path_factory.getbasetemp(), tar)
    places = [place for _, members in found.rows.items() for place in members.values()]
    assert all(0 <= offset <= offset + size_bytes <= len(tar) for offset, size_bytes, _ in places)
    assert found.faults or found.rows
    assert all(str(fault).isprintable() for fault in found.faults)
    found.whole_rows().batch()
