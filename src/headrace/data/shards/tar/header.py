"""The 512-byte headers of tar files: POSIX ustar and pax, plus GNU's long names for reading.

Source: IEEE Std 1003.1-2017, pax, "ustar Interchange Format" and "pax Header Block"; GNU tar
manual, "Basic Tar Format".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

BLOCK_BYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)

# name, mode, uid, gid, size, mtime, checksum, type, link name, magic, version, user, group,
# device major and minor, prefix
_FIELDS = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")
_CHECKSUM = slice(148, 156)
_OCTAL_LIMIT = 8**11  # sizes from 8 GiB on do not fit the eleven octal digits

REGULAR = frozenset({b"0", b"\0", b"7"})
"""Types of ordinary files; "7" is a contiguous file, which is read like one."""

OTHER_TYPES = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a character device",
    b"4": "a block device", b"6": "a named pipe", b"S": "a sparse file",
}  # fmt: skip
"""Types that are refused, in words."""


class TarHeaderError(ValueError):
    """512 bytes are no tar header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TarHeader:
    """One header.

    Attributes:
        name: The member's path as the header spells it.
        size_bytes: How many bytes follow, before padding.
        kind: The type flag.
    """

    name: str
    size_bytes: int
    kind: bytes


def padding(size_bytes: int) -> int:
    """Return how many zero bytes fill the last block of a member."""
    return -size_bytes % BLOCK_BYTES


def write_header(name: str, size_bytes: int) -> bytes:
    """Return the header blocks of a regular file: the same bytes for the same arguments.

    Owner and time are zero and the mode is 0644, so that nothing but content tells shards apart.
    A name that ustar cannot hold (over 100 bytes with no place to split it, or beyond ASCII), or
    a size of 8 GiB or more, gets a pax header before it.
    """
    parts = _split_for_ustar(name)
    records = {}
    if parts is None:
        records["path"] = name
        # For readers without pax: something readable, which nothing else uses.
        parts = "", name.encode("ascii", "replace").decode()[-100:]
    if size_bytes >= _OCTAL_LIMIT:
        records["size"] = str(size_bytes)
    pax = b""
    if records:
        body = b"".join(_pax_record(keyword, value) for keyword, value in records.items())
        pax = _header("", "././@PaxHeader", len(body), b"x") + body + bytes(padding(len(body)))
    return pax + _header(*parts, min(size_bytes, _OCTAL_LIMIT - 1), b"0")


def read_header(block: bytes) -> TarHeader:
    """Read one header.

    Raises:
        TarHeaderError: The checksum or a number is wrong.
    """
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
    """Return the keywords of a pax header's body.

    Raises:
        TarHeaderError: A record is malformed.
    """
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
    """Return prefix (up to 155 bytes) and name (up to 100), or None where ustar cannot hold it."""
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
