"""The named pipes of a channel, one an epoch, and the sidecar that serves them while a job runs.

They are `train_0`, `train_1` and so on, as in SageMaker. A reader of `train_0` gets the channel's
bytes up to their end, or closes it before; then `train_1` is for the next epoch
(your-algorithms-training-algo-running-container.html in docs.aws.amazon.com). Opening `train_0`
again, as a restarted script does, starts again. A pipe has one reader; two would each get some of
the bytes, so a second one is an error.

The sidecar lists the channels, and answers; on `SERVE` it makes the pipes, answers again, and
writes to them until its input ends. Where fetching fails it reports the error; the pipes stay open
then, as their end would look like the epoch's. It forks nothing: the object-store client does not
survive a fork.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psutil

from headrace.core.errors import HeadraceError, StorageError, UsageError
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.data.channels.listing import ChannelListing, check_unchanged, list_channel
from headrace.data.channels.sidecar_client import SERVE, ChannelsRequest
from headrace.data.storage import ObjectInfo, Part, StorageConfig, declare_leaf, open_store

PIECE_BYTES = 2**23
_AHEAD_BYTES = 2**26
_AHEAD_PIECES = 64  # of 100 kB each, at 30 ms latency: 200 MB/s
_Span = tuple[ObjectInfo, int, int]


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Some bytes of an object that are being fetched."""

    url: str  # the object's, without secrets
    info: ObjectInfo  # as it was listed
    length: int  # in bytes
    part: Future[Part]

    def data(self) -> memoryview:
        """Return the bytes; raises StorageError, also where the object has changed."""
        part = self.part.result()
        check_unchanged(self.url, self.info, part.info)
        return memoryview(part.data)


class ChannelStream:
    """The objects of a listing, concatenated."""

    def __init__(self, listing: ChannelListing, config: StorageConfig) -> None:
        self._store = open_store(listing.base, config=config, client="direct")
        self._listing = listing

    def pieces(self) -> Generator[StreamPiece]:
        """Yield an epoch's bytes in order, fetching ahead."""
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
            for piece in ahead:  # the reader has left
                piece.part.cancel()

    def _spans(self) -> Iterator[_Span]:
        for info in self._listing.objects:
            for start in range(0, info.size_bytes, PIECE_BYTES):
                yield info, start, min(PIECE_BYTES, info.size_bytes - start)

    def _begun(self, info: ObjectInfo, start: int, length: int) -> StreamPiece:
        part = self._store.submit_part(info.path, start, length)
        return StreamPiece(f"{self._store.url}/{info.path}", info, length, part)


def count_readers(descriptor: int, below_pid: int) -> int:
    """Return the number of descendants of a process that have opened a pipe of this process.

    A process and its descendants count once: they inherited the pipe.
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


_LOOK_EVERY_S = 0.02  # whether a pipe was opened: no interruptible call waits for that
_READER_EVERY_S = 0.1  # whether the reader still exists
_PIPE_BYTES = 2**20  # the most that an unprivileged process may request, <man 7 pipe>


class EpochPipes:
    """The pipes of one channel; their reader is a descendant of the process `readers_below`."""

    def __init__(self, name: str, folder: Path, stream: ChannelStream, readers_below: int) -> None:
        self.name = name
        self._folder = folder
        self._stream = stream
        self._readers_below = readers_below
        self._served = self._next = 0
        self._make(0)

    def serve(self) -> NoReturn:
        """Write epochs to the readers of their pipes, as long as this process lives.

        StorageError: fetching failed; the reader does not see an end of the pipe. UsageError: a
        pipe has two readers.
        """
        while True:
            epoch, descriptor = self._opened()
            self._path(epoch).unlink(missing_ok=True)
            self._make(epoch)  # a new pipe: a later reader gets none of this one's bytes
            self._make(epoch + 1)
            self._check_alone(epoch, descriptor)
            if self._write_epoch(descriptor):
                self._check_alone(epoch, descriptor)
            os.close(descriptor)  # not after a failure, which would look like the epoch's end
            if self._served > 0:
                self._path(self._served).unlink(missing_ok=True)
            self._served, self._next = epoch, epoch + 1

    def _opened(self) -> tuple[int, int]:
        """Wait until a pipe is opened; return its epoch and a descriptor to write to."""
        while not (opened := self._waiting()):
            time.sleep(_LOOK_EVERY_S)
        if len(opened) > 1 or (self._served and self._served in opened):
            raise self._shared(max(opened))
        return opened.popitem()

    def _waiting(self) -> dict[int, int]:
        """Return the epochs whose pipes have readers but no writer, with descriptors.

        The caller must use a descriptor or leave it open: closing it would end the epoch.
        """
        descriptors = {each: self._open(self._path(each)) for each in {0, self._served, self._next}}
        return {each: found for each, found in descriptors.items() if found is not None}

    def _open(self, path: Path) -> int | None:
        """Return a descriptor to write to a pipe; None where nobody reads it."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # ENXIO, or the script has removed it
            return None
        with suppress(OSError):  # this user's limit of pipe memory is reached
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return descriptor

    def _write_epoch(self, descriptor: int) -> bool:
        """Write an epoch's bytes; return whether its reader stayed to the end."""
        reader = _PipeReader(descriptor, self._check_nobody_waits)
        pieces = self._stream.pieces()
        try:
            for piece in pieces:
                reader.write(piece)
            reader.look()
            self._check_nobody_waits()
        except BrokenPipeError:  # the reader has closed it: the epoch is over
            return False
        finally:
            pieces.close()  # cancels fetches ahead
        return True

    def _check_nobody_waits(self) -> None:
        """Raise UsageError where another pipe has a waiting reader."""
        others = self._waiting()
        if others:
            raise self._shared(max(others))

    def _check_alone(self, epoch: int, descriptor: int) -> None:
        """Raise UsageError where two processes have opened the pipe being written."""
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
        with suppress(FileExistsError):  # a reader may be waiting for it already
            os.mkfifo(self._path(epoch), 0o600)


class _PipeReader:
    """The reader of a pipe; `meanwhile` is called every 0.1 s during waits, and may raise."""

    def __init__(self, descriptor: int, meanwhile: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._meanwhile = meanwhile
        self._poll = select.poll()

    def write(self, piece: StreamPiece) -> None:
        """Write a piece once it is fetched; raises BrokenPipeError where the reader has gone."""
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
        """Raise BrokenPipeError where the reader has gone."""
        self._poll.register(self._descriptor, 0)  # POLLERR is always reported
        if self._poll.poll(0):
            raise BrokenPipeError

    def _can_write(self) -> bool:
        """Wait for room in the pipe; raises BrokenPipeError where the reader has gone."""
        self.look()
        self._poll.register(self._descriptor, select.POLLOUT)
        return bool(self._poll.poll(_READER_EVERY_S * 1000))


_MAX_REQUESTS = 128


def main(parent: SidecarParent) -> None:
    """List the channels, answer, and write to each one's pipes in a thread of its own."""
    declare_leaf()
    request = ChannelsRequest.from_fields(parent.request)
    config = StorageConfig(in_flight=_MAX_REQUESTS)
    with parent.heartbeats():
        listings = [list_channel(channel, config) for channel in request.channels]
    for channel, listing in zip(request.channels, listings, strict=True):
        listing.print_outside_folder(channel.name)
    parent.send({})
    if parent.read() != SERVE:
        return
    try:
        made = [
            EpochPipes(
                channel.name, Path(channel.folder), ChannelStream(listing, config), parent.pid
            )
            for channel, listing in zip(request.channels, listings, strict=True)
        ]
    except OSError as error:
        raise _as_headrace_error(error, "its pipes cannot be made") from error
    parent.send({})
    for pipes in made:
        threading.Thread(target=_write, args=(pipes, parent), daemon=True).start()
    parent.wait()


def _write(pipes: EpochPipes, parent: SidecarParent) -> None:
    try:
        pipes.serve()
    except Exception as error:  # noqa: BLE001  (a thread's end would leave the script waiting)
        parent.send_error(_as_headrace_error(error, f"channel {pipes.name} cannot be written"))


def _as_headrace_error(error: Exception, what: str) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    return StorageError(f"{what}: {type(error).__name__}: {error}.")


if __name__ == "__main__":
    run_sidecar(main)
