"""A ring buffer in a memory-mapped file: one process writes records, the collector reads them.

The file outlives a killed writer, so its last records are not lost. A writer never waits: if the
ring is full, a record is dropped and counted.

The collector stores its position and the texts it has read in the same transaction as the rows, and
only then frees the space for the writer (`release`). So each record is stored exactly once,
whenever the collector is killed.

Layout, little-endian: a header of 64 bytes, then `capacity` bytes of frames.

    0   8s  magic "HDRCRNG1"; the last character is the version
    8   q   capacity, bytes
    16  q   written, bytes so far (changed by the writer alone)
    24  q   read, bytes so far (changed by the collector alone)
    32  q   dropped records
    40  q   closed: 1 once the writer has closed it
    48  q   process id of the writer
    56  q   creation, nanoseconds since boot: distinguishes rings of one name and reused pids

A frame is a head (length in bytes without it, u32; kind, u16; 2 bytes unused) and its content,
padded to 8 bytes. Kind 0 is padding at the ring's end, kind 65535 a text: its number (q) and UTF-8,
kind 65534 says that earlier texts are not used again. Others are the numbers of `schema.TABLES`.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.core.errors import RecordsError
from headrace.records.layout import FILE_MODE
from headrace.records.schema import TABLES_BY_NUMBER, Table

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def since_boot_ns() -> int:
    """Return the time since the host's boot, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def is_running(pid: int, at_ns: int) -> bool:
    """Return whether the process that had this pid at a time since boot still runs.

    A zombie does not. True if the kernel cannot say for the moment, so that callers try again.
    """
    try:
        # The process's name may be cut within a character.
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:  # such as too many open files
        return True
    fields = stat.rpartition(")")[2].split()  # the name may contain any character, so from its end
    started_ns = int(fields[19]) * (1_000_000_000 // _TICKS_PER_S)
    return fields[0] not in "ZX" and started_ns <= at_ns  # else the pid was reused


MAGIC = b"HDRCRNG1"
HEADER_BYTES = 64
CAPACITY_BYTES = 1 << 20
SUFFIX = ".ring"

_HEAD = struct.Struct("<IHH")
_NUMBER = struct.Struct("<q")
_UNKNOWN = _NUMBER.pack(-1)  # also no text, and no number as a float
_PADDING, _FORGET, _TEXT = 0, 0xFFFE, 0xFFFF
# Indexes of the header's 8-byte numbers. It is accessed through a memoryview, which writes 8 bytes
# at once; struct.pack_into sets them to zero first, visible to other processes.
_CAPACITY, _WRITTEN, _READ, _DROPPED, _CLOSED, _PID, _MADE = range(1, 8)
_LONGEST_TEXT_BYTES = 16_384
_ALL_TEXTS_BYTES = 4 << 20  # limit of the texts that a reader holds
_FRAMES = {number: (table.frame, table.text_indexes) for number, table in TABLES_BY_NUMBER.items()}


class UnfinishedRing(RecordsError):  # noqa: N818  # a state that passes
    """A ring whose header is not written yet, or whose writer died before that."""


class RingWriter:
    """The writing end, for any thread, and for signal handlers amid another write.

    A forked child makes its own ring. The file must not exist; `capacity` is the size of the
    frames' area in bytes, a multiple of 8. OSError: it cannot be made, or the disk has no room.
    """

    def __init__(self, path: Path, capacity: int = CAPACITY_BYTES) -> None:
        self._capacity = capacity
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            # Allocate its blocks now: on a full disk a write to the map would kill the process.
            os.posix_fallocate(descriptor, 0, HEADER_BYTES + capacity)
            self._map = mmap.mmap(descriptor, HEADER_BYTES + capacity)
        except BaseException:  # also of signal handlers
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        self._header = memoryview(self._map)[:HEADER_BYTES].cast("q")
        self._header[_CAPACITY] = capacity
        self._header[_PID] = self._pid = os.getpid()
        self._header[_MADE] = since_boot_ns()
        self._map[: len(MAGIC)] = MAGIC  # last, so that no reader sees a half-written header
        self._written = 0
        self.dropped = 0  # records
        # The number of each text, by its hash: the texts would be megabytes. Of as many as fit the
        # limit, two have the same hash of 64 bits less than once in 10^10 runs.
        self._texts: dict[int, int] = {}
        self._next_text = 0
        self._text_bytes = 0
        self._lock = threading.RLock()
        self._writing = False
        self._postponed: deque[tuple[Table, tuple[Any, ...]]] = deque()

    def write(self, table: Table, *values: float | str) -> bool:
        """Write one row, the values of the table's fields; return False if there is no room."""
        with self._lock:
            if self._writing:  # called by a signal handler or the garbage collector amid a write
                self._postponed.append((table, values))
                return True
            self._writing = True
            try:
                is_written = self._put(table, values)
                while self._postponed:
                    self._put(*self._postponed.popleft())
            finally:
                self._writing = False
            return is_written

    def close(self) -> None:
        """Mark the ring as complete; without effect in a forked child."""
        if os.getpid() == self._pid:
            self._header[_CLOSED] = 1

    def _put(self, table: Table, values: tuple[Any, ...]) -> bool:
        frame, text_indexes = _FRAMES[table.number]
        if self._text_bytes > _ALL_TEXTS_BYTES and self._write(_FORGET, b""):
            self._texts.clear()
            self._text_bytes = 0
        if text_indexes:
            packed = list(values)
            for index in text_indexes:
                packed[index] = self._text(values[index])
            values = tuple(packed)
        return self._write(table.number, frame.pack(*values))

    def _text(self, text: str) -> int:
        """Return the number of a text, writing a new one to the ring; -1 without room for it."""
        key = hash(text)
        number = self._texts.get(key)
        if number is None:
            number = self._next_text
            self._next_text += 1
            content = text.encode(errors="replace")[:_LONGEST_TEXT_BYTES]
            if not self._write(_TEXT, _NUMBER.pack(number) + content):
                return -1
            self._texts[key] = number
            self._text_bytes += len(content) + 64  # Python's overhead of a short text
        return number

    def _write(self, kind: int, content: bytes) -> bool:
        size = _HEAD.size + _round_up(len(content))
        position = self._written % self._capacity
        to_end = self._capacity - position
        needed = size if size <= to_end else to_end + size
        if self._written + needed - self._header[_READ] > self._capacity:
            self.dropped += 1
            self._header[_DROPPED] = self.dropped
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
    """The reading end, also after the writer's death; without `changing` never to be released.

    UnfinishedRing: it is being made; try again later. RecordsError: the file is no ring, or of
    another version.
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
        self.pid = self._header[_PID]  # the writer's
        self.made_ns = self._header[_MADE]  # since the host's boot
        self.position = self._header[_READ]  # bytes since the ring's creation
        self.new_texts: dict[int, str] = {}  # since `release`, by their numbers
        self.forgotten = False  # whether the writer has dropped its older texts since `release`
        self.usable = True  # False once the header is damaged: nothing more can be read
        self._texts = {-1: ""}

    def seek(self, position: int, texts: Mapping[int, str]) -> None:
        """Continue at a stored position, with the texts before it by their numbers."""
        self.position = position
        self._texts = {-1: "", **texts}

    @property
    def dropped(self) -> int:
        """How many records were dropped."""
        return self._header[_DROPPED]

    @property
    def ended(self) -> bool:
        """Whether the writer has closed the ring or is dead, so that it is complete."""
        return bool(self._header[_CLOSED]) or not is_running(self.pid, self.made_ns)

    @property
    def released(self) -> int:
        """Bytes before which the writer may overwrite frames."""
        return self._header[_READ]

    def rows(self) -> Iterator[tuple[Table, tuple[Any, ...]]]:
        """Yield the rows not read yet; RecordsError: a frame is broken, and all are skipped."""
        written = self._header[_WRITTEN]
        self._check(written)
        while self.position < written:
            position_in_ring = self.position % self._capacity
            at = HEADER_BYTES + position_in_ring
            length, kind, _ = _HEAD.unpack_from(self._map, at)
            size = _HEAD.size + _round_up(length)
            content = self._map[at + _HEAD.size : at + _HEAD.size + length]
            try:
                if size > min(written - self.position, self._capacity - position_in_ring):
                    raise struct.error  # noqa: TRY301  # handled as a frame of a wrong length
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
        """Free the space of the read rows for the writer, once they are stored."""
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
            cut = self._path.stat().st_size < size  # a read beyond the end kills this process
        except OSError:
            cut = False  # removed: the map is still complete
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
        if table is None:  # padding, or a table of a newer version
            return None
        frame, text_indexes = _FRAMES[kind]
        # A writer of an older version lacks newer columns.
        missing = (frame.size - len(content)) // _NUMBER.size
        values = frame.unpack(content + _UNKNOWN * missing)
        if not text_indexes:
            return table, values
        row: list[Any] = list(values)
        for index in text_indexes:
            row[index] = self._texts.get(values[index], "")
        return table, tuple(row)


def _why_no_ring(magic: bytes) -> str:
    if magic[:-1] == MAGIC[:-1] and magic > MAGIC:
        return "a newer version of Headrace wrote it; read it with that version."
    return "this is no ring of records."


def _round_up(length: int) -> int:
    return -(-length // 8) * 8
