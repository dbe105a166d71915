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
from contextlib import suppress
from dataclasses import dataclass

import google_crc32c

from headrace.core.errors import BadSampleError
from headrace.data.image_files import (
    ImageSides,
    read_orientation,
)
from headrace.data.shards.data_files import is_image
from headrace.data.shards.index_rows import LARGEST_MEMBER_BYTES, MemberKind
from headrace.data.shards.index_writer import IndexRowBuilder
from headrace.data.shards.members import checksum, refusal, split_name
from headrace.data.shards.reports import Fault, FaultKind
from headrace.data.storage import RangeStream

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

_EXTENSIONS = frozenset({b"x", b"g", b"L", b"K"})  # pax, global pax, long name, long link target
_SPARSE = b"S"
# GNU tar's manual, "Basic Tar Format": isextended of oldgnu_header and of sparse_header.
_SPARSE_CONTINUED, _SPARSE_BLOCK_CONTINUED = 482, 504


class TarHeaderError(ValueError):
    """A block of 512 bytes is not a valid tar header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TarHeader:
    """A tar header."""

    name: str  # the member's path as written in the header
    size_bytes: int  # of the content, without padding
    kind: bytes  # the type flag
    continued: bool = False  # of a sparse file in GNU's old format: blocks of its map follow


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
    return TarHeader(
        name=text,
        size_bytes=_number(size, "size"),
        kind=kind,
        continued=kind == _SPARSE and block[_SPARSE_CONTINUED] != 0,
    )


def read_pax(body: bytes) -> dict[str, str]:
    """Return the keywords of a pax header's body; raises TarHeaderError for a malformed record."""
    records = {}
    position = 0
    while position < len(body):
        space = body.find(b" ", position, position + _MOST_DIGITS)
        digits = body[position : max(space, position)]
        end = position + int(digits) if digits.isdigit() else 0
        if not space + 1 < end <= len(body) or body[end - 1 : end] != b"\n":
            raise TarHeaderError("a pax record is malformed")
        keyword, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise TarHeaderError("a pax record is malformed")
        position = end
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
        if field[0] & 0x40:  # in two's complement
            raise TarHeaderError(f"the header's {what} is negative")
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    digits = field.partition(b"\0")[0].strip() or b"0"
    if digits.strip(b"01234567"):
        is_negative = digits.startswith(b"-")
        raise TarHeaderError(f"the header's {what} is {'negative' if is_negative else 'no number'}")
    return int(digits, 8)


def _is_sum(written_sum: int, block: bytes) -> bool:
    # The checksum counts its own field as spaces. Some old tars summed signed bytes.
    rest = block[: _CHECKSUM.start] + block[_CHECKSUM.stop :]
    unsigned = sum(rest) + 8 * 32
    if written_sum == unsigned:
        return True
    return written_sum == unsigned - 256 * sum(byte > 127 for byte in rest)


_CHUNK_BYTES = 2**20
_JPEG = b"\xff\xd8"  # it begins so, and has its metadata in the first mebibyte
_LARGE_IMAGE_BYTES = 64 * 2**20  # above that metadata at its end, as in a WebP, are not looked for
# Of all pax headers and GNU long names of a member: a damaged size must not fill the memory.
_LONGEST_NAMES_BYTES = 2**20
_MOST_DIGITS = 20  # of a number in a pax header: 64 bits have 19
_MOST_FAULTS = 1000  # of one tar; their messages stay in memory
_SHOWN_CHARACTERS = 200  # of a name in a message
_SET_GLOBALLY = ("path", "size", "linkpath", "GNU.sparse.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TarMember:
    """One regular file of a tar."""

    name: str  # its path in the tar
    offset: int  # of its content in the tar
    size_bytes: int  # of its content
    crc32c: int  # CRC-32C of its content
    sides: ImageSides | None = None  # of an image
    oriented: bool = False  # an image with an EXIF orientation, where one is looked for


class TarReader:
    """Iterates over a tar's members. Damage ends the iteration; a refused member does not."""

    def __init__(self, stream: RangeStream, path: str, faults: list[Fault]) -> None:
        self._stream = stream
        self._path = path
        self._faults = faults
        self._pax: dict[str, str] = {}  # of the member that follows
        self._names_bytes = 0  # of its pax headers and long names
        self._members = 0
        self.left_out: set[str] = set()  # keys of samples that a refused or cut member belongs to

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
        if len(self._faults) >= _MOST_FAULTS:
            what = f"{len(self._faults)} faults up to byte {self._stream.position}"
            self._fault("unreadable", f"{what}: the rest of the tar was not read")
            return None
        is_first = self._stream.position == 0
        block = self._stream.read(BLOCK_BYTES)
        how = _compression(block) if is_first else ""
        if how:
            self._fault(
                "header",
                f"it is compressed by {how}, and samples are read by their place in the file, "
                "which compression hides: decompress it",
            )
            return None
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
        if header.kind in _EXTENSIONS:
            self._read_extension(header)
            return None
        name = self._pax.get("path", header.name)
        size_bytes = self._size(header)
        is_sparse = any(keyword.startswith("GNU.sparse.") for keyword in self._pax)
        name = self._pax.get("GNU.sparse.name", name)
        self._pax, self._names_bytes = {}, 0
        if header.kind == b"5":  # a folder
            self._skip(name, size_bytes)
            return None
        self._members += 1
        if header.kind not in REGULAR_TYPES or is_sparse:
            kind = _SPARSE if is_sparse else header.kind
            what = OTHER_TYPES.get(kind, f"a member of the unknown type {kind!r}")
            self._refuse("type", name, f"{shown_name(name)} is {what}; only files are read")
            self._skip_map(header)
            self._skip(name, 0 if kind in OTHER_TYPES and kind != _SPARSE else size_bytes)
            return None
        reason = _name_refusal(name)
        if reason is not None:
            self._refuse("name", name, f"member {shown_name(name)} is refused: {reason}")
            self._skip(name, size_bytes)
            return None
        return self._read_file(name, size_bytes)

    def _skip_map(self, header: TarHeader) -> None:
        """Skip the blocks that continue the map of a sparse file in GNU's old format."""
        continued = header.continued
        while continued:
            block = self._stream.read(BLOCK_BYTES)
            if len(block) < BLOCK_BYTES:
                raise _CutError("the tar ends within the map of a sparse file")
            continued = block[_SPARSE_BLOCK_CONTINUED] != 0

    def _read_extension(self, header: TarHeader) -> None:
        self._names_bytes += header.size_bytes
        if self._names_bytes > _LONGEST_NAMES_BYTES:
            raise TarHeaderError(
                f"a name, or pax headers, of {self._names_bytes} bytes and more before one member, "
                f"{_LONGEST_NAMES_BYTES} at most"
            )
        body = self._stream.read(header.size_bytes)
        if len(body) < header.size_bytes:
            raise _CutError("the tar ends within a member's name")
        self._stream.read(padding(header.size_bytes))
        if header.kind == b"x":
            self._pax |= read_pax(body)
        elif header.kind == b"g":
            wrong = [each for each in read_pax(body) if each.startswith(_SET_GLOBALLY)]
            if wrong:
                raise TarHeaderError(f"a global pax header sets {wrong[0]!r} for all members")
        elif header.kind == b"L":
            self._pax["path"] = body.partition(b"\0")[0].decode("utf-8", "surrogateescape")

    def _size(self, header: TarHeader) -> int:
        size = self._pax.get("size")
        if size is None:
            return header.size_bytes
        if len(size) >= _MOST_DIGITS:
            raise TarHeaderError(f"a pax header with a size of {len(size)} digits")
        if not (size.isascii() and size.isdigit()):
            raise TarHeaderError(f"a pax header with the size {size!r}, which is no size")
        if header.size_bytes not in {0, int(size)} and int(size) < _OCTAL_LIMIT:
            # Readers would disagree about where the next member begins.
            raise TarHeaderError(f"sizes of {header.size_bytes} and, in a pax header, of {size}")
        return int(size)

    def _read_file(self, name: str, size_bytes: int) -> TarMember:
        offset = self._stream.position
        self._check_room(name, size_bytes)
        checksum, left = 0, size_bytes
        metadata: list[bytes] = []  # the parts of an image that may hold them
        while left:
            chunk = self._stream.read(min(left, _CHUNK_BYTES))
            is_first, is_jpeg = left == size_bytes, bool(metadata) and metadata[0][:2] == _JPEG
            if is_image(name) and (is_first or not (is_jpeg or size_bytes > _LARGE_IMAGE_BYTES)):
                metadata.append(chunk)
            checksum = google_crc32c.extend(checksum, chunk)
            left -= len(chunk)
        self._stream.read(padding(size_bytes))
        beginning = b"".join(metadata)
        sides = ImageSides.read(beginning) if metadata else None
        return TarMember(
            name=name,
            offset=offset,
            size_bytes=size_bytes,
            crc32c=checksum,
            sides=sides,
            oriented=bool(metadata) and _is_oriented(sides, beginning),
        )

    def _skip(self, name: str, size_bytes: int) -> None:
        self._check_room(name, size_bytes)
        left = size_bytes + padding(size_bytes)
        while left > 0 and (chunk := self._stream.read(min(left, _CHUNK_BYTES))):
            left -= len(chunk)

    def _check_room(self, name: str, size_bytes: int) -> None:
        if size_bytes > self._stream.left:
            self._leave_out(name)
            raise _CutError(
                f"the tar ends within {shown_name(name)}: {self._stream.left} of its {size_bytes} "
                "bytes are there"
            )

    def _refuse(self, kind: FaultKind, name: str, message: str) -> None:
        self._leave_out(name)
        self._fault(kind, message)

    def _leave_out(self, name: str) -> None:
        parts = split_name(name)
        if parts is not None:
            self.left_out.add(parts[0])

    def _fault(self, kind: FaultKind, message: str) -> None:
        self._faults.append(Fault(kind, self._path, f"{message}."))


def _is_oriented(sides: ImageSides | None, image: bytes) -> bool:
    """Return whether an image has an EXIF orientation by which decoders do not turn it."""
    if sides is None:  # such as one of 16 bits
        return read_orientation(image) != 1
    return sides.orientation != 1 and not sides.is_tiff


_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x1f\x9d": "compress",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"]\0\0": "lzma",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
}
"""The bytes that compressed files begin with."""


def _compression(block: bytes) -> str:
    """Return what a file that begins so is compressed by; "" for a tar."""
    how = next((how for start, how in _COMPRESSIONS.items() if block.startswith(start)), "")
    if how and len(block) == BLOCK_BYTES:
        with suppress(TarHeaderError):  # the first member's name begins so
            read_header(block)
            return ""
    return how


class _CutError(Exception):
    """The tar ends too early."""


def shown_name(name: str) -> str:
    """Return a name for messages, quoted; not all of one that is very long."""
    return repr(name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}...")


def _name_refusal(name: str) -> str | None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return "a name that is not UTF-8"
    return refusal(name)


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
