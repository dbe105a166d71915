"""Tar files: headers, a reader that names every fault, a streaming writer, and their samples.

POSIX ustar and pax, plus GNU's long names for reading. Adjacent members with one key are a sample,
as in WebDataset. Nothing is extracted. Python's tarfile would stop silently at a tar that was cut
at a header, and skip damage elsewhere.

Source: IEEE Std 1003.1-2017, pax, "ustar Interchange Format" and "pax Header Block"; GNU tar's
manual, "Basic Tar Format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

import google_crc32c

from headrace.core.errors import BadSampleError
from headrace.data.shards.index_rows import LARGEST_MEMBER_BYTES, MemberKind
from headrace.data.shards.index_writer import IndexRowBuilder
from headrace.data.shards.members import checksum, refusal, split_name
from headrace.data.shards.reports import Fault, FaultKind
from headrace.data.storage import RangeStream, Store

BLOCK_BYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)

# name, mode, uid, gid, size, mtime, checksum, type, link name, magic, version, user, group,
# device major and minor, prefix
_FIELDS = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")
_CHECKSUM = slice(148, 156)
_OCTAL_LIMIT = 8**11  # sizes from 8 GiB on do not fit the eleven octal digits

REGULAR_TYPES = frozenset({b"0", b"\0", b"7"})
"""Types of ordinary files; "7" is a contiguous file, which is read like one."""

OTHER_TYPES = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a character device",
    b"4": "a block device", b"6": "a named pipe", b"S": "a sparse file",
}  # fmt: skip
"""Types that are refused, by name."""


class TarHeaderError(ValueError):
    """A block of 512 bytes is not a valid tar header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TarHeader:
    """A tar header."""

    name: str  # the member's path as written in the header
    size_bytes: int  # of the content, without padding
    kind: bytes  # the type flag


def padding(size_bytes: int) -> int:
    """Return the number of zero bytes that fill the last block of a member."""
    return -size_bytes % BLOCK_BYTES


def write_header(name: str, size_bytes: int) -> bytes:
    """Return the header blocks of a regular file: the same bytes for the same arguments.

    Owner and time are zero and the mode is 0644, so that shards depend on content alone. A name
    that ustar cannot store (over 100 bytes with no place to split it, or beyond ASCII), or a size
    of 8 GiB or more, gets a pax header before it.
    """
    parts = _split_for_ustar(name)
    records = {}
    if parts is None:
        records["path"] = name
        # For readers without pax: a readable name.
        parts = "", name.encode("ascii", "replace").decode()[-100:]
    if size_bytes >= _OCTAL_LIMIT:
        records["size"] = str(size_bytes)
    pax = b""
    if records:
        body = b"".join(_pax_record(keyword, value) for keyword, value in records.items())
        pax = _header("", "././@PaxHeader", len(body), b"x") + body + bytes(padding(len(body)))
    return pax + _header(*parts, min(size_bytes, _OCTAL_LIMIT - 1), b"0")


def read_header(block: bytes) -> TarHeader:
    """Parse one header; raises TarHeaderError where the checksum or a number is wrong."""
    (
        name, _, _, _, size, _, written_sum, kind, _, magic, _, _, _, _, _, prefix
    ) = _FIELDS.unpack(block)  # fmt: skip
    if not _is_sum(_number(written_sum, "checksum"), block):
        raise TarHeaderError("the header's checksum is wrong")
    text = _text(name)
    if magic == b"ustar\0" and prefix[:1] != b"\0":  # GNU's magic has no prefix field
        text = f"{_text(prefix)}/{text}"
    return TarHeader(name=text, size_bytes=_number(size, "size"), kind=kind)


def read_pax(body: bytes) -> dict[str, str]:
    """Return the keywords of a pax header's body; raises TarHeaderError for a malformed record."""
    records = {}
    while body:
        length_text, space, _ = body.partition(b" ")
        if not (space and length_text.isdigit() and 0 < int(length_text) <= len(body)):
            raise TarHeaderError("a pax record is malformed")
        record, body = body[: int(length_text)], body[int(length_text) :]
        keyword, equals, value = record[len(length_text) + 1 : -1].partition(b"=")
        if not equals or record[-1:] != b"\n":
            raise TarHeaderError("a pax record is malformed")
        records[keyword.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
    return records


def _header(prefix: str, name: str, size_bytes: int, kind: bytes) -> bytes:
    block = bytearray(
        _FIELDS.pack(
            name.encode(), b"0000644\0", b"0000000\0", b"0000000\0", b"%011o\0" % size_bytes,
            b"00000000000\0", b" " * 8, kind, b"", b"ustar\0", b"00", b"", b"",
            b"0000000\0", b"0000000\0", prefix.encode(),
        )
    )  # fmt: skip
    block[_CHECKSUM] = b"%06o\0 " % sum(block)
    return bytes(block)


def _split_for_ustar(name: str) -> tuple[str, str] | None:
    """Return prefix (up to 155 bytes) and name (up to 100), or None where ustar has no room."""
    if not name.isascii() or not name:
        return None
    if len(name) <= 100:
        return "", name
    cut = name.find("/", len(name) - 101)
    if 0 < cut <= 155 and cut < len(name) - 1:
        return name[:cut], name[cut + 1 :]
    return None


def _pax_record(keyword: str, value: str) -> bytes:
    rest = b" " + keyword.encode() + b"=" + value.encode("utf-8", "surrogateescape") + b"\n"
    length = len(rest) + len(str(len(rest)))  # the length counts its own digits
    if len(str(length)) + len(rest) != length:
        length += 1
    return str(length).encode() + rest


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _number(field: bytes, what: str) -> int:
    if field[0] & 0x80:  # GNU: a binary number, for sizes beyond eleven octal digits
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    digits = field.partition(b"\0")[0].strip() or b"0"
    try:
        return int(digits, 8)
    except ValueError:
        raise TarHeaderError(f"the header's {what} is no number") from None


def _is_sum(written_sum: int, block: bytes) -> bool:
    # The checksum counts its own field as spaces. Some old tars summed signed bytes.
    rest = block[: _CHECKSUM.start] + block[_CHECKSUM.stop :]
    unsigned = sum(rest) + 8 * 32
    if written_sum == unsigned:
        return True
    return written_sum == unsigned - 256 * sum(byte > 127 for byte in rest)


_CHUNK_BYTES = 2**20
_LONGEST_NAME_BYTES = 2**20  # of a pax header or GNU long name: a damaged size must not fill memory


@dataclass(frozen=True, slots=True, kw_only=True)
class TarMember:
    """One regular file of a tar."""

    name: str  # its path in the tar
    offset: int  # of its content in the tar
    size_bytes: int  # of its content
    crc32c: int  # CRC-32C of its content


class TarReader:
    """Iterates over a tar's members. Damage ends the iteration; a refused member does not."""

    def __init__(self, stream: RangeStream, path: str, faults: list[Fault]) -> None:
        self._stream = stream
        self._path = path
        self._faults = faults
        self._pax: dict[str, str] = {}  # of the member that follows
        self._members = 0

    def __iter__(self) -> Iterator[TarMember]:
        try:
            while (header := self._next_header()) is not None:
                member = self._read(header)
                if member is not None:
                    yield member
        except TarHeaderError as error:
            start = self._stream.position - BLOCK_BYTES
            self._fault("header", f"{error} at byte {start}, after {self._members} members")
        except _CutError as error:
            self._fault("cut", str(error))
        finally:
            self._stream.close()

    def _next_header(self) -> TarHeader | None:
        block = self._stream.read(BLOCK_BYTES)
        if not block:
            raise _CutError(
                f"the tar ends after {self._members} members without its end mark: it was cut, at "
                "a member's boundary"
            )
        if len(block) < BLOCK_BYTES:
            raise _CutError(f"the tar ends within the header that follows {self._members} members")
        if any(block):
            return read_header(block)
        self._check_end()
        return None

    def _check_end(self) -> None:
        end = self._stream.position
        while chunk := self._stream.read(_CHUNK_BYTES):
            if chunk.count(0) != len(chunk):
                self._fault(
                    "trailing",
                    f"{self._stream.size_bytes - end} bytes follow the end mark at byte {end}: "
                    "tars were joined, or something was appended. Readers would miss it",
                )
                return

    def _read(self, header: TarHeader) -> TarMember | None:
        if header.kind in {b"x", b"L"}:
            self._read_extension(header)
            return None
        if header.kind in {b"g", b"K"}:  # global pax, long link target: of no file's content
            self._skip("a header", header.size_bytes)
            return None
        name = self._pax.get("path", header.name)
        size_bytes = self._size(header)
        self._pax = {}
        if header.kind == b"5":  # a folder
            self._skip(name, size_bytes)
            return None
        self._members += 1
        if header.kind not in REGULAR_TYPES:
            kind = OTHER_TYPES.get(header.kind, f"a member of the unknown type {header.kind!r}")
            self._fault("type", f"{name!r} is {kind}; only files are read")
            self._skip(name, 0 if header.kind in OTHER_TYPES else size_bytes)
            return None
        reason = refusal(name)
        if reason is not None:
            self._fault("name", f"member {name!r} is refused: {reason}")
            self._skip(name, size_bytes)
            return None
        return self._read_file(name, size_bytes)

    def _read_extension(self, header: TarHeader) -> None:
        if header.size_bytes > _LONGEST_NAME_BYTES:
            raise TarHeaderError(f"a name of {header.size_bytes} bytes")
        body = self._stream.read(header.size_bytes)
        if len(body) < header.size_bytes:
            raise _CutError("the tar ends within a member's name")
        self._stream.read(padding(header.size_bytes))
        if header.kind == b"x":
            self._pax |= read_pax(body)
        else:
            self._pax["path"] = body.partition(b"\0")[0].decode("utf-8", "surrogateescape")

    def _size(self, header: TarHeader) -> int:
        size = self._pax.get("size", "")
        return int(size) if size.isascii() and size.isdigit() else header.size_bytes

    def _read_file(self, name: str, size_bytes: int) -> TarMember:
        offset = self._stream.position
        self._check_room(name, size_bytes)
        checksum, left = 0, size_bytes
        while left:
            chunk = self._stream.read(min(left, _CHUNK_BYTES))
            checksum = google_crc32c.extend(checksum, chunk)
            left -= len(chunk)
        self._stream.read(padding(size_bytes))
        return TarMember(name=name, offset=offset, size_bytes=size_bytes, crc32c=checksum)

    def _skip(self, name: str, size_bytes: int) -> None:
        self._check_room(name, size_bytes)
        left = size_bytes + padding(size_bytes)
        while left > 0 and (chunk := self._stream.read(min(left, _CHUNK_BYTES))):
            left -= len(chunk)

    def _check_room(self, name: str, size_bytes: int) -> None:
        if size_bytes > self._stream.left:
            raise _CutError(
                f"the tar ends within {name!r}: {self._stream.left} of its {size_bytes} bytes are "
                "there"
            )

    def _fault(self, kind: FaultKind, message: str) -> None:
        self._faults.append(Fault(kind, self._path, f"{message}."))


class _CutError(Exception):
    """The tar ends too early."""


class TarWriter:
    """Turns samples into the bytes of a tar and the rows of its index, in one pass."""

    def __init__(self) -> None:
        self.rows = IndexRowBuilder()
        self.size_bytes = 0

    def pieces(self, samples: Iterable[tuple[str, Sequence[tuple[str, bytes]]]]) -> Iterator[bytes]:
        """Yield the tar of samples (key, members by extension), one piece each and the end mark."""
        for key, members in samples:
            yield self._sample(key, members)
        self.size_bytes += len(END_OF_ARCHIVE)
        yield END_OF_ARCHIVE

    def _sample(self, key: str, members: Sequence[tuple[str, bytes]]) -> bytes:
        pieces: list[bytes] = []
        places: dict[str, tuple[MemberKind, Sequence[int]]] = {}
        position = self.size_bytes
        for extension, data in members:
            header = write_header(f"{key}.{extension}", len(data))
            offset = position + len(header)
            places[extension] = "range", (offset, len(data), checksum(data))
            fill = bytes(padding(len(data)))
            pieces += header, data, fill
            position = offset + len(data) + len(fill)
        self.rows.add(key, places)
        self.size_bytes = position
        return b"".join(pieces)


def check_size(data: bytes) -> None:
    """Raise BadSampleError where a member is too large for the index."""
    if len(data) > LARGEST_MEMBER_BYTES:
        raise BadSampleError(
            f"{len(data)} bytes; members of a shard have at most {LARGEST_MEMBER_BYTES} (4 GiB)."
        )


@dataclass(slots=True, kw_only=True)
class TarIndex:
    """The result of reading one tar."""

    path: str
    size_bytes: int
    rows: IndexRowBuilder = field(default_factory=IndexRowBuilder)  # its samples
    faults: list[Fault] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # members that belong to no sample


def index_tar(store: Store, path: str, size_bytes: int) -> TarIndex:
    """Read a whole tar and return its samples and faults; raises StorageError if it cannot."""
    found = TarIndex(path=path, size_bytes=size_bytes)
    reader = TarReader(RangeStream(store, path, size_bytes), path, found.faults)
    seen: set[str] = set()
    for key, named in groupby(_named_members(reader, found.ignored), key=itemgetter(0)):
        if key in seen:
            message = (
                f"members of sample {key!r} do not lie side by side, so readers would see parts of "
                "it. Sort the tar by name."
            )
            found.faults.append(Fault("order", path, message))
        seen.add(key)
        members: dict[str, tuple[MemberKind, tuple[int, int, int]]] = {}
        for _, extension, member in named:
            name, size = member.name, member.size_bytes
            if extension in members:
                found.faults.append(Fault("duplicate", path, f"two files with one key, {name!r}."))
            elif size > LARGEST_MEMBER_BYTES:
                message = f"{name!r} has {size} bytes, 4 GiB at most."
                found.faults.append(Fault("size", path, message))
            else:
                members[extension] = "range", (member.offset, size, member.crc32c)
        if members:
            found.rows.add(key, members)
    if not found.rows and not found.faults:
        found.faults.append(Fault("missing", path, "the tar holds no sample."))
    return found


def _named_members(
    members: Iterable[TarMember], ignored: list[str]
) -> Iterator[tuple[str, str, TarMember]]:
    """Yield members with their key and extension; add the names of those of no sample."""
    for member in members:
        name = split_name(member.name)
        if name is None:
            ignored.append(member.name)
        else:
            yield *name, member
