"""The named pipes of a channel, one an epoch, and the stream of bytes that is written to them.

They are `train_0`, `train_1` and so on, as SageMaker makes them. Whoever opens `train_0` gets the
channel's bytes up to their end, or closes it before; then `train_1` is for the next epoch (your-
algorithms-training-algo-running-container.html in docs.aws.amazon.com). Whoever opens `train_0`
again, as a script that was started anew does, begins again. A pipe has one reader; two would each
get some of the bytes, so a second one is an error.
"""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psutil

from headrace.core.errors import UsageError
from headrace.data.channels.listing import ChannelListing, check_unchanged
from headrace.data.storage import ObjectInfo, StorageConfig, open_store
from headrace.data.storage.store import Part

PIECE_BYTES = 2**23
_AHEAD_BYTES = 2**26
_AHEAD_PIECES = 64  # of 100 kB each, 30 ms away, they are 200 MB/s
_Span = tuple[ObjectInfo, int, int]


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Some bytes of an object, on their way.

    Attributes:
        url: The object's, as it may be told.
        info: The object, as it was listed.
        length: How many bytes.
        part: They.
    """

    url: str
    info: ObjectInfo
    length: int
    part: Future[Part]

    def data(self) -> memoryview:
        """Return them; raises StorageError where they cannot be had, or the object is another."""
        part = self.part.result()
        check_unchanged(self.url, self.info, part.info)
        return memoryview(part.data)


class ChannelStream:
    """All objects of a listing, one behind the other.

    Args:
        listing: The objects.
        config: How requests are made.
    """

    def __init__(self, listing: ChannelListing, config: StorageConfig) -> None:
        self._store = open_store(listing.base, config=config, client="direct")
        self._listing = listing

    def pieces(self) -> Generator[StreamPiece]:
        """Yield an epoch's bytes in order; what follows is fetched meanwhile."""
        ahead: deque[StreamPiece] = deque()
        ahead_bytes = 0
        try:
            for span in self._spans():
                while ahead and (
                    len(ahead) >= _AHEAD_PIECES or ahead_bytes + span[2] > _AHEAD_BYTES
                ):
                    ahead_bytes -= ahead[0].length
                    yield ahead.popleft()
                ahead.append(self._begun(*span))
                ahead_bytes += span[2]
            while ahead:
                yield ahead.popleft()
        finally:
            for piece in ahead:  # whoever reads has left
                piece.part.cancel()

    def _spans(self) -> Iterator[_Span]:
        for info in self._listing.objects:
            for start in range(0, info.size_bytes, PIECE_BYTES):
                yield info, start, min(PIECE_BYTES, info.size_bytes - start)

    def _begun(self, info: ObjectInfo, start: int, length: int) -> StreamPiece:
        part = self._store.submit_part(info.path, start, length)
        return StreamPiece(f"{self._store.url}/{info.path}", info, length, part)


def count_readers(descriptor: int, below_pid: int) -> int:
    """Return how many processes have opened a pipe.

    Those that another one of them has started count as that one: they inherited it.

    Args:
        descriptor: Of the pipe, in this process.
        below_pid: Whose descendants are looked at.
    """
    pipe = _identity(os.fstat(descriptor))
    parents: dict[int, int] = {}
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(below_pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                parents[process.pid] = process.ppid()
    parents.pop(os.getpid(), None)
    holding = {pid for pid in parents if _has_open(pid, pipe)}
    return sum(not _inherits(pid, parents, holding) for pid in holding)


def _inherits(pid: int, parents: dict[int, int], holding: set[int]) -> bool:
    while (pid := parents.get(pid, 0)) != 0:
        if pid in holding:
            return True
    return False


def _has_open(pid: int, pipe: tuple[int, int]) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208  (it is /proc)
    except OSError:  # it has ended, or is another user's
        return False
    for each in descriptors:
        with suppress(OSError):
            if _identity(os.stat(f"/proc/{pid}/fd/{each}")) == pipe:  # noqa: PTH116
                return True
    return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


_LOOK_EVERY_S = 0.02  # whether a pipe was opened: no call waits for that and can be stopped
_READER_EVERY_S = 0.1  # whether whoever reads is still there
_PIPE_BYTES = 2**20  # what an unprivileged process may ask for, <man 7 pipe>


class EpochPipes:
    """The pipes of one channel.

    Args:
        name: The channel's.
        folder: Where they lie; it is there.
        stream: The channel's bytes.
        readers_below: The pid of whoever started the script.

    Attributes:
        name: The channel's.
    """

    def __init__(self, name: str, folder: Path, stream: ChannelStream, readers_below: int) -> None:
        self.name = name
        self._folder = folder
        self._stream = stream
        self._readers_below = readers_below
        self._served = self._next = 0
        self._make(0)

    def serve(self) -> NoReturn:
        """Write epochs for whoever opens their pipes, as long as this process lives.

        Raises:
            StorageError: Bytes cannot be had; the reader does not see an end of the pipe.
            UsageError: A pipe has two readers.
        """
        while True:
            epoch, descriptor = self._opened()
            self._path(epoch).unlink(missing_ok=True)
            self._make(epoch)  # anew: who comes now gets no bytes that are another's
            self._make(epoch + 1)
            self._check_alone(epoch, descriptor)
            if self._write_epoch(descriptor):
                self._check_alone(epoch, descriptor)
            os.close(descriptor)  # not where it failed: that would look like the epoch's end
            if self._served > 0:
                self._path(self._served).unlink(missing_ok=True)
            self._served, self._next = epoch, epoch + 1

    def _opened(self) -> tuple[int, int]:
        """Wait until a pipe is opened; return its epoch and a descriptor to write to."""
        while True:
            opened = self._waiting()
            if len(opened) > 1 or (self._served and self._served in opened):
                raise self._shared(max(opened))
            for found in opened.items():
                return found
            time.sleep(_LOOK_EVERY_S)

    def _waiting(self) -> dict[int, int]:
        """Return the epochs whose pipes have readers that nobody writes to, with descriptors.

        Who gets one must use it or leave it open: closing it would be the epoch's end.
        """
        looked = {each: self._open(self._path(each)) for each in {0, self._served, self._next}}
        return {each: found for each, found in looked.items() if found is not None}

    def _open(self, path: Path) -> int | None:
        """Return a descriptor to write to a pipe; None: nobody reads it."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # ENXIO, or the script has removed it
            return None
        with suppress(OSError):  # this user has used up what pipes may hold
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return descriptor

    def _write_epoch(self, descriptor: int) -> bool:
        """Write an epoch's bytes; return whether its reader was there to the end."""
        reader = _PipeReader(descriptor, self._check_nobody_waits)
        pieces = self._stream.pieces()
        try:
            for piece in pieces:
                reader.write(piece)
            reader.look()
            self._check_nobody_waits()
        except BrokenPipeError:  # whoever read has closed it: done with this epoch
            return False
        finally:
            pieces.close()  # what was fetched ahead
        return True

    def _check_nobody_waits(self) -> None:
        """Raise UsageError where there is another reader than the one that is written to."""
        others = self._waiting()
        if others:
            raise self._shared(max(others))

    def _check_alone(self, epoch: int, descriptor: int) -> None:
        """Raise UsageError where two processes have opened the very pipe that is written to."""
        if count_readers(descriptor, self._readers_below) > 1:
            raise self._shared(epoch)

    def _shared(self, epoch: int) -> UsageError:
        pipe = self._path(epoch).name
        return UsageError(
            f"channel {self.name}: two processes of one host have opened {pipe}, and a pipe has "
            "one reader. Have one of them read it, take --input-mode FastFile, or read the channel "
            "by headrace.ShardDataset, which many may."
        )

    def _path(self, epoch: int) -> Path:
        return self._folder / f"{self.name}_{epoch}"

    def _make(self, epoch: int) -> None:
        with suppress(FileExistsError):  # somebody may be waiting for it already
            os.mkfifo(self._path(epoch), 0o600)


class _PipeReader:
    """Whoever has opened a pipe.

    Args:
        descriptor: Of the pipe; does not block.
        meanwhile: Called often while it waits; may raise.
    """

    def __init__(self, descriptor: int, meanwhile: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._meanwhile = meanwhile
        self._poll = select.poll()

    def write(self, piece: StreamPiece) -> None:
        """Write a piece once it has come; raises BrokenPipeError where nobody reads any more."""
        self.look()
        while not piece.part.done():
            wait([piece.part], _READER_EVERY_S)
            self.look()
            self._meanwhile()
        data = piece.data()
        while data:
            if self._can_write():
                with suppress(BlockingIOError):
                    data = data[os.write(self._descriptor, data) :]
            else:
                self._meanwhile()

    def look(self) -> None:
        """Raise BrokenPipeError where nobody reads any more."""
        self._poll.register(self._descriptor, 0)  # POLLERR is always told
        if self._poll.poll(0):
            raise BrokenPipeError

    def _can_write(self) -> bool:
        """Wait for room in the pipe; raises BrokenPipeError where nobody reads any more."""
        self.look()
        self._poll.register(self._descriptor, select.POLLOUT)
        return bool(self._poll.poll(_READER_EVERY_S * 1000))
