"""Headers of tars, written and read, whole and damaged."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from headrace.data.shards.reports import Fault
from headrace.data.shards.tar import (
    TarHeaderError,
    TarReader,
    TarWriter,
    read_header,
    write_header,
)
from headrace.data.shards.tar_index import index_tar
from headrace.data.storage import open_store
from headrace.data.storage.store import RangeStream


def walk(folder: Path, data: bytes) -> tuple[list[str], list[Fault]]:
    (folder / "x.tar").write_bytes(data)
    faults: list[Fault] = []
    stream = RangeStream(open_store(str(folder)), "x.tar", len(data))
    return [member.name for member in TarReader(stream, "x.tar", faults)], faults


def tar_of(members: list[tuple[str, bytes]]) -> bytes:
    writer = TarWriter()
    samples = [
        (name.rpartition(".")[0], [(name.rpartition(".")[2], data)]) for name, data in members
    ]
    return b"".join(writer.pieces(samples))


def tar_with(*infos: tarfile.TarInfo, form: int = tarfile.PAX_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=form) as tar:
        for info in infos:
            tar.addfile(info, io.BytesIO(bytes(info.size)) if info.isreg() else None)
    return sink.getvalue()


def member(name: str, *, kind: bytes = tarfile.REGTYPE, size: int = 3) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size if kind == tarfile.REGTYPE else 0
    info.linkname = "/etc/passwd" if kind in {tarfile.SYMTYPE, tarfile.LNKTYPE} else ""
    return info


def test_gnu_tar_reads_what_is_written(tmp_path):
    names = [
        "cat/x.jpg",
        "long/" + "n" * 200 + ".jpg",
        "ä/ö.jpg",
        "f" * 90 + "/" + "g" * 90 + ".jpg",
    ]
    (tmp_path / "x.tar").write_bytes(tar_of([(name, b"content") for name in names]))
    listing = subprocess.run(
        ["tar", "--quoting-style=literal", "-tf", tmp_path / "x.tar"],
        check=True, capture_output=True, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert listing.stdout.decode().splitlines() == names
    assert listing.stderr == b""


def test_a_header_holds_nothing_but_content():
    with tarfile.open(fileobj=io.BytesIO(tar_of([("a/x.jpg", b"abc")]))) as tar:
        info = tar.getmembers()[0]
    assert (info.mtime, info.uid, info.gid, info.mode, info.uname) == (0, 0, 0, 0o644, "")


def test_sizes_beyond_eleven_octal_digits_travel_as_pax():
    header = write_header("x.bin", 8**11)
    assert len(header) == 3 * 512
    assert b"size=8589934592\n" in header


def test_a_damaged_header_is_no_header():
    block = bytearray(write_header("x.jpg", 3))
    block[0] ^= 1
    with pytest.raises(TarHeaderError, match="checksum"):
        read_header(bytes(block))


def test_gnu_and_pax_long_names_are_read(tmp_path):
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        name = "d/" * 40 + "n" * 90 + ".jpg"
        names, faults = walk(tmp_path, tar_with(member(name), member("b.jpg"), form=form))
        assert (names, faults) == ([name, "b.jpg"], [])


def test_folders_are_passed_over(tmp_path):
    tar = tar_with(member("d", kind=tarfile.DIRTYPE), member("d/x.jpg"))
    assert walk(tmp_path, tar) == (["d/x.jpg"], [])


@pytest.mark.parametrize("cut", [512 * 2, 512 * 2 + 100, 512 + 2, 512 * 4])
def test_a_tar_cut_anywhere_is_reported(tmp_path, cut):
    whole = tar_of([("a.jpg", b"abc"), ("b.jpg", b"def")])
    names, faults = walk(tmp_path, whole[:cut])
    assert [fault.kind for fault in faults] == ["cut"]
    assert len(names) <= 2


def test_an_empty_file_is_a_cut_tar(tmp_path):
    assert [fault.kind for fault in walk(tmp_path, b"")[1]] == ["cut"]


def test_a_damaged_header_in_the_middle_is_reported(tmp_path):
    whole = bytearray(tar_of([("a.jpg", b"abc"), ("b.jpg", b"def")]))
    whole[1024] ^= 1
    names, faults = walk(tmp_path, bytes(whole))
    assert names == ["a.jpg"]
    assert [fault.kind for fault in faults] == ["header"]
    assert "byte 1024" in faults[0].message


def test_members_behind_the_end_mark_are_reported(tmp_path):
    joined = tar_of([("a.jpg", b"abc")]) + tar_of([("b.jpg", b"def")])
    names, faults = walk(tmp_path, joined)
    assert names == ["a.jpg"]
    assert [fault.kind for fault in faults] == ["trailing"]


@pytest.mark.parametrize(
    ("info", "kind", "word"),
    [
        (member("x.jpg", kind=tarfile.SYMTYPE), "type", "symbolic link"),
        (member("x.jpg", kind=tarfile.LNKTYPE), "type", "hard link"),
        (member("x.jpg", kind=tarfile.FIFOTYPE), "type", "named pipe"),
        (member("x.jpg", kind=tarfile.CHRTYPE), "type", "device"),
        (member("../x.jpg"), "name", "'..'"),
        (member("/x.jpg"), "name", "absolute"),
        (member("x.pyd"), "name", ".pyd"),
        (member("x.pkl"), "name", ".pkl"),
        (member("x.pth"), "name", ".pth"),
    ],
)
def test_refused_members_are_named_and_the_walk_goes_on(tmp_path, info, kind, word):
    names, faults = walk(tmp_path, tar_with(info, member("good.jpg")))
    assert names == ["good.jpg"]
    assert [fault.kind for fault in faults] == [kind]
    assert word in faults[0].message
    assert info.name in faults[0].message


def index(folder: Path, tar: bytes) -> tuple[list[str], list[str]]:
    (folder / "x.tar").write_bytes(tar)
    found = index_tar(open_store(str(folder)), "x.tar", len(tar))
    return [key for key, _ in found.rows.items()], [fault.kind for fault in found.faults]


def test_samples_are_neighbours_of_one_key(tmp_path):
    tar = tar_with(member("a.jpg"), member("a.cls"), member("README"), member("b.jpg"))
    assert index(tmp_path, tar) == (["a", "b"], [])


def test_members_apart_and_twice_are_faults(tmp_path):
    assert index(tmp_path, tar_with(member("a.jpg"), member("b.jpg"), member("a.cls")))[1] == [
        "order"
    ]
    assert index(tmp_path, tar_with(member("a.jpg"), member("a.JPG")))[1] == ["duplicate"]
    assert index(tmp_path, tar_with(member("README")))[1] == ["missing"]
