"""Walk the members of a tar without extracting any: names, places and checksums.

Every fault is named: Python's tarfile would end quietly at a tar that is cut at a header, and
skip over damage elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c

from headrace.data.shards.faults import Fault, FaultKind
from headrace.data.shards.names import refusal
from headrace.data.shards.tar.header import (
    BLOCK_BYTES,
    OTHER_TYPES,
    REGULAR,
    TarHeader,
    TarHeaderError,
    padding,
    read_header,
    read_pax,
)
from headrace.data.shards.tar.range_stream import RangeStream

_CHUNK_BYTES = 2**20
_LONGEST_NAME_BYTES = 2**20  # of a pax header or GNU long name: a damaged size must not fill memory


@dataclass(frozen=True, slots=True, kw_only=True)
class TarMember:
    """One regular file of a tar.

    Attributes:
        name: Its path in the tar.
        offset: The first byte of its content in the tar.
        size_bytes: The length of its content.
        crc32c: CRC-32C of its content.
    """

    name: str
    offset: int
    size_bytes: int
    crc32c: int


class TarReader:
    """Walks one tar.

    Args:
        stream: The tar's bytes.
        path: The tar's path, for faults.
        faults: Where faults are added. Damage ends the walk; a refused member does not.
    """

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
        if header.kind not in REGULAR:
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
