"""A ring buffer in a memory-mapped file: one process writes records, the collector reads them.

The file outlives a killed writer, so what was written last is not lost. A writer never waits: with
the ring full, a record is dropped and counted.

A reader keeps its position and the texts that it has seen where it keeps the rows, in the same
transaction; only then does it give the room back to the writer (`release`). So each record is kept
once, wherever the reader is killed.

Layout, little-endian: a header of 64 bytes, then `capacity` bytes of frames.

    0   8s  magic "HDRCRNG1"; the last character is the version
    8   q   capacity, bytes
    16  q   written, bytes so far (only the writer changes it)
    24  q   read, bytes so far (only the collector changes it)
    32  q   dropped records
    40  q   closed: 1 when the writer has ended in good order
    48  q   process id of the writer
    56  q   when it was made, nanoseconds since boot: tells rings and processes of one name apart

A frame is a head (length in bytes without it, u32; kind, u16; 2 bytes unused) and its content,
padded to 8 bytes. Kind 0 is padding at the ring's end, kind 65535 a text: its number (q) and UTF-8,
kind 65534 says that earlier texts are not used again. Others are the numbers of `schema.TABLES`.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.core.errors import RecordsError
from headrace.core.process.identity import is_running, since_boot_ns
from headrace.records.schema import TABLES_BY_NUMBER, Table

MAGIC = b"HDRCRNG1"
HEADER_BYTES = 64
CAPACITY_BYTES = 1 << 20
SUFFIX = ".ring"

_HEAD = struct.Struct("<IHH")
_NUMBER = struct.Struct("<q")
_PADDING, _FORGET, _TEXT = 0, 0xFFFE, 0xFFFF
# Places in the header, counted in numbers of 8 bytes. It is written and read through a memoryview:
# that moves all 8 bytes at once, where struct.pack_into sets them to zero first, for others to see.
_CAPACITY, _WRITTEN, _READ, _DROPPED, _CLOSED, _PID, _MADE = range(1, 8)
_LONGEST_TEXT_BYTES = 16_384
_ALL_TEXTS_BYTES = 4 << 20  # what a process holds of them at most, and its reader too
_FRAMES = {number: (table.frame, table.text_places) for number, table in TABLES_BY_NUMBER.items()}


class UnfinishedRing(RecordsError):  # noqa: N818  # a state that passes
    """A ring is being made, or was when its writer died: it holds nothing yet."""


class RingWriter:
    """Writes records; any thread of the process may, and a signal handler amid another write.

    A forked child makes its own.

    Args:
        path: The file, which must not exist.
        capacity: Bytes of frames that may wait to be read; a multiple of 8.

    Raises:
        OSError: The file cannot be made, or the disk has no room for it.
    """

    def __init__(self, path: Path, capacity: int = CAPACITY_BYTES) -> None:
        self._capacity = capacity
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Its blocks are taken now: on a full disk, a write to the map would kill the process.
            os.posix_fallocate(descriptor, 0, HEADER_BYTES + capacity)
            self._map = mmap.mmap(descriptor, HEADER_BYTES + capacity)
        except BaseException:  # a signal, too, whose handler raises
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        self._header = memoryview(self._map)[:HEADER_BYTES].cast("q")
        self._header[_CAPACITY] = capacity
        self._header[_PID] = self._pid = os.getpid()
        self._header[_MADE] = since_boot_ns()
        self._map[: len(MAGIC)] = MAGIC  # last: a reader sees no half-written header
        self._written = 0
        self._dropped = 0
        self._texts: dict[str, int] = {}
        self._next_text = 0
        self._text_bytes = 0
        self._lock = threading.RLock()
        self._writing = False
        self._postponed: deque[tuple[Table, tuple[Any, ...]]] = deque()

    def write(self, table: Table, *values: float | str) -> bool:
        """Write one row; return False where it was dropped because the ring is full.

        Raises:
            struct.error: The values are not those of the table's fields.
        """
        with self._lock:
            if self._writing:  # a signal handler or the garbage collector came in between
                self._postponed.append((table, values))
                return True
            self._writing = True
            try:
                kept = self._put(table, values)
                while self._postponed:
                    self._put(*self._postponed.popleft())
            finally:
                self._writing = False
            return kept

    @property
    def dropped(self) -> int:
        """How many records found no room."""
        return self._dropped

    def close(self) -> None:
        """Say that nothing more will be written; a forked child's call says nothing."""
        if os.getpid() == self._pid:
            self._header[_CLOSED] = 1

    def _put(self, table: Table, values: tuple[Any, ...]) -> bool:
        frame, text_places = _FRAMES[table.number]
        if self._text_bytes > _ALL_TEXTS_BYTES and self._write(_FORGET, b""):
            self._texts.clear()
            self._text_bytes = 0
        if text_places:
            numbers = list(values)
            for place in text_places:
                numbers[place] = self._text(values[place])
            return self._write(table.number, frame.pack(*numbers))
        return self._write(table.number, frame.pack(*values))

    def _text(self, text: str) -> int:
        """Return the number of a text, written to the ring when it is new; -1: no room for it."""
        number = self._texts.get(text)
        if number is None:
            number = self._next_text
            self._next_text += 1
            content = text.encode(errors="replace")[:_LONGEST_TEXT_BYTES]
            if not self._write(_TEXT, _NUMBER.pack(number) + content):
                return -1
            self._texts[text] = number
            self._text_bytes += len(content) + 64  # what Python adds to a short text
        return number

    def _write(self, kind: int, content: bytes) -> bool:
        size = _HEAD.size + _round_up(len(content))
        position = self._written % self._capacity
        to_end = self._capacity - position
        needed = size if size <= to_end else to_end + size
        if self._written + needed - self._header[_READ] > self._capacity:
            self._dropped += 1
            self._header[_DROPPED] = self._dropped
            return False
        if size > to_end:
            _HEAD.pack_into(self._map, HEADER_BYTES + position, to_end - _HEAD.size, _PADDING, 0)
            position = 0
        at = HEADER_BYTES + position
        self._map[at + _HEAD.size : at + _HEAD.size + len(content)] = content
        _HEAD.pack_into(self._map, at, len(content), kind, 0)
        self._written += needed
        self._header[_WRITTEN] = self._written
        return True


class RingReader:
    """Reads what a process wrote, also after its death.

    Args:
        path: The ring.
        changing: Whether the writer may be given room, by `release`.

    Attributes:
        pid: The writer's process id.
        made_ns: When the ring was made, in nanoseconds since the host's boot.
        position: Up to where rows were read, in bytes since the ring's begin.
        new_texts: Texts met since `release`, by their numbers.
        forgotten: Whether since `release` the writer has said that older texts are done with.
        usable: False once the header makes no sense: nothing more can be read.

    Raises:
        UnfinishedRing: It is being made; look again later.
        RecordsError: The file is no ring, or of another version.
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, *, changing: bool = True) -> None:
        self._path = path
        with path.open("r+b" if changing else "rb") as file:
            magic = file.read(len(MAGIC))
            if not magic.strip(b"\0"):
                raise UnfinishedRing(f"{path}: nothing was written to it yet.")
            if magic != MAGIC:
                raise RecordsError(f"{path}: {_why_no_ring(magic)}")
            size = os.fstat(file.fileno()).st_size
            if size < HEADER_BYTES:
                raise RecordsError(f"{path} is cut short: {size} bytes.")
            access = mmap.ACCESS_WRITE if changing else mmap.ACCESS_READ
            self._map = mmap.mmap(file.fileno(), size, access=access)
        self._header = memoryview(self._map)[:HEADER_BYTES].cast("q")
        self._capacity = self._header[_CAPACITY]
        if size != HEADER_BYTES + self._capacity or self._capacity <= 0:
            self.close()
            raise RecordsError(f"{path} is cut short: {size} bytes.")
        self.pid = self._header[_PID]
        self.made_ns = self._header[_MADE]
        self.position = self._header[_READ]
        self.new_texts: dict[int, str] = {}
        self.forgotten = False
        self.usable = True
        self._texts = {-1: ""}

    def go_on(self, position: int, texts: Mapping[int, str]) -> None:
        """Read on from a place that was kept, with the texts before it, by their numbers."""
        self.position = position
        self._texts = {-1: "", **texts}

    @property
    def dropped(self) -> int:
        """How many records found no room."""
        return self._header[_DROPPED]

    @property
    def ended(self) -> bool:
        """Whether the writer has closed the ring or is dead: then what is there is all."""
        return bool(self._header[_CLOSED]) or not is_running(self.pid, self.made_ns)

    @property
    def released(self) -> int:
        """Up to where the writer may write over what was read; behind it nothing is sure."""
        return self._header[_READ]

    def rows(self) -> Iterator[tuple[Table, tuple[Any, ...]]]:
        """Yield what was written until now and not yet read.

        Raises:
            RecordsError: A frame is broken; what was written until now is given up.
        """
        written = self._header[_WRITTEN]
        self._check(written)
        while self.position < written:
            place = self.position % self._capacity
            at = HEADER_BYTES + place
            length, kind, _ = _HEAD.unpack_from(self._map, at)
            size = _HEAD.size + _round_up(length)
            content = self._map[at + _HEAD.size : at + _HEAD.size + length]
            try:
                if size > min(written - self.position, self._capacity - place):
                    raise struct.error  # noqa: TRY301  # the same end as a frame of another length
                row = self._row(kind, content)
            except struct.error:
                lost = written - self.position
                self.position = written
                raise RecordsError(
                    f"{self._path}: a broken frame; {lost} bytes of records are lost."
                ) from None
            self.position += size
            if row is not None:
                yield row

    def release(self) -> None:
        """Give the room of what was read back to the writer; call it once the rows are safe."""
        self._header[_READ] = self.position
        self.new_texts = {}
        self.forgotten = False

    def close(self) -> None:
        """Unmap the file."""
        self._header.release()
        self._map.close()

    def _check(self, written: int) -> None:
        size = HEADER_BYTES + self._capacity
        try:
            cut = self._path.stat().st_size < size  # reading what is cut off would kill us
        except OSError:
            cut = False  # removed: the map still holds all of it
        if cut or not 0 <= written - self.position <= self._capacity or self.position % 8:
            self.usable = False
            raise RecordsError(f"{self._path} is damaged; the rest of its records is lost.")

    def _row(self, kind: int, content: bytes) -> tuple[Table, tuple[Any, ...]] | None:
        if kind == _TEXT:
            (number,) = _NUMBER.unpack_from(content)
            self._texts[number] = content[_NUMBER.size :].decode(errors="replace")
            self.new_texts[number] = self._texts[number]
            return None
        if kind == _FORGET:
            self._texts = {-1: ""}
            self.new_texts = {}
            self.forgotten = True
            return None
        table = TABLES_BY_NUMBER.get(kind)
        if table is None:  # padding, or a kind of a newer version
            return None
        frame, text_places = _FRAMES[kind]
        values = frame.unpack(content)
        if not text_places:
            return table, values
        row: list[Any] = list(values)
        for place in text_places:
            row[place] = self._texts.get(values[place], "")
        return table, tuple(row)


def _why_no_ring(magic: bytes) -> str:
    if magic[:-1] == MAGIC[:-1] and magic > MAGIC:
        return "a newer version of Headrace wrote it; read it with that version."
    return "this is no ring of records."


def _round_up(length: int) -> int:
    return -(-length // 8) * 8
