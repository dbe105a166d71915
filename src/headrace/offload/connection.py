"""The auxiliary hosts of a rank: the file that names them, and the connection to the server of one.

The file is rewritten as hosts come and go. Also status lines about hosts, and which failures
exclude a host from more batches.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.core.errors import LaunchError
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.workers.messages import Answer
from headrace.offload.frames import (
    CODE_BYTES,
    HEADER_BYTES,
    BodyCode,
    FrameCodes,
    FrameHeader,
    FrameKind,
    SessionKeys,
    check_body,
)
from headrace.offload.protocol import (
    PARTITIONS_KEY,
    AuthenticationError,
    authenticate_to_server,
)
from headrace.offload.socket_transfer import configure_socket, set_user_timeout

_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryHost:
    """The address of an offload server, and its host's name for messages."""

    name: str
    address: str
    port: int


class HostsFileWatcher:
    """A hosts file that is read again when it has changed, checked once a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed_ns = 0
        self._next_poll_s = 0.0

    def news(self, now_s: float) -> HostsFile | None:
        """Return the file's content if it has changed, else None."""
        if now_s < self._next_poll_s:
            return None
        self._next_poll_s = now_s + _POLL_S
        with suppress(OSError, LaunchError):
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._changed_ns:
                content = HostsFile.read(self._path)
                self._changed_ns = changed_ns
                return content
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsFile:
    """The content of a hosts file."""

    key: str  # by which servers and ranks authenticate, in hexadecimal digits
    folder: str  # of the job on the rank's host; servers work in their copies of it
    cores: int  # of all hosts, including those whose server is not up yet
    # Of an iterable dataset, over all ranks: fixed for the job, whichever hosts come and go.
    partitions: int = 0
    coming: int = 0  # number of servers that are starting up
    hosts: tuple[AuxiliaryHost, ...] = ()  # servers that are up

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        fields = asdict(self)
        fields[PARTITIONS_KEY] = fields.pop("partitions")
        return json.dumps(fields).encode()

    @classmethod
    def read(cls, path: Path) -> HostsFile:
        """Return the content of a file; raises LaunchError where it cannot be read."""
        try:
            fields = json.loads(path.read_bytes())
            hosts = tuple(AuxiliaryHost(**each) for each in fields.pop("hosts"))
            return cls(partitions=fields.pop(PARTITIONS_KEY, 0), **fields, hosts=hosts)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LaunchError(f"{path} is not a file of auxiliary hosts: {error}.") from error


_CONNECT_S = 5.0
_RECONNECT_S = 2.0  # between attempts to connect
SILENT_S = 3.0  # a server sends two heartbeats a second
_MAX_SILENT_S = 60.0
_MAX_READ_BYTES = 32 << 20  # at a time, so that other connections are served


def silence_limit_s(again_s: float) -> float:
    """Return how long a host may be silent before its tasks go to others, in seconds.

    Others need `again_s` to repeat what it has done. Waiting that long first costs at most twice
    the time of knowing that the host will not return.
    """
    return min(max(SILENT_S, again_s), _MAX_SILENT_S)


def silence_line(silent_s: float, again_s: float) -> str:
    """Return the status line about a silent host that is given up; "" while it is waited for."""
    longest_s = silence_limit_s(again_s)
    if silent_s <= longest_s:
        return ""
    return f"has been silent for {longest_s:.0f} s; others make what it had"


def lost_line(line: str, batches_again: int) -> str:
    """Return the status line about a lost host, with what others have to go through again."""
    if not batches_again:
        return line
    return f"{line}; of an iterable dataset they first go through {batches_again} batches again"


@dataclass(slots=True)
class IncomingFrame:
    """A frame that is being received."""

    head: FrameHeader
    body: memoryview
    filled: int = 0  # bytes of the body received
    began_s: float = field(default_factory=time.monotonic)  # when its header was received
    code: BodyCode | None = None  # of the bytes received; None: it has no body
    sent_code: bytearray = field(default_factory=bytearray)  # what is received after the body


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """A connection to a server, both sides authenticated."""

    socket: socket.socket
    keys: SessionKeys


@dataclass(slots=True)
class ServerConnection:
    """A connection to an offload server, and what is known of it; reconnects when lost."""

    host: AuxiliaryHost
    connection: socket.socket | None = None  # while not connected
    refusal: str = ""  # why the last attempt to authenticate failed
    heard_s: float = 0.0  # when something was received last
    loaded: int = 0  # number of the loader spec that the server has loaded, 0 for none
    refused: int = 0  # number of the loader spec for which the server is excluded
    proven: int = 0  # number of the loader spec of its last batch, 0 for none
    accepted: int = 0  # how many tasks the server accepts
    cores: int = 0  # that work on them
    wanted: int = -1  # the number of wanted batches sent last
    failures: int = 0  # batches of the loader spec that failed there and were made locally
    was_lost: bool = False  # a status line said that it is lost
    is_recording: bool = True  # workers record until a frame says otherwise
    was_missed: bool = False  # it was late for an iteration, or could not be reached
    _next_try_s: float = 0.0
    _is_trying: bool = False
    _unsent: deque[memoryview] = field(default_factory=deque)
    _head: bytearray = field(default_factory=bytearray)
    _incoming: IncomingFrame | None = None
    _sent_codes: FrameCodes | None = None  # while connected
    _received_codes: FrameCodes | None = None

    def connect(
        self, key: bytes, then: Callable[[ServerConnection, OpenConnection | None], None]
    ) -> None:
        """Start to connect, if it is time to; `then` gets the result in another thread."""
        now_s = time.monotonic()
        if self.connection is not None or self._is_trying or now_s < self._next_try_s:
            return
        self._is_trying = True
        self._next_try_s = now_s + _RECONNECT_S

        def attempt() -> None:
            connection, self.refusal = None, ""
            try:
                connection = _open_connection(self.host, key)
            except AuthenticationError as error:
                self.refusal = str(error)
            except Exception:  # noqa: BLE001, S110 - the next attempt follows in any case
                pass
            then(self, connection)

        threading.Thread(target=attempt, name="connect", daemon=True).start()

    def connected(self, opened: OpenConnection | None) -> None:
        """Take the result of an attempt to connect."""
        self._is_trying = False
        self.was_missed = self.was_missed or opened is None
        self.connection = None if opened is None else opened.socket
        if opened is not None:
            self._sent_codes = FrameCodes(opened.keys.to_server)
            self._received_codes = FrameCodes(opened.keys.to_proxy)
        self.heard_s = time.monotonic()
        self.loaded, self.accepted, self.wanted = 0, 0, -1
        self.is_recording = True
        self._unsent.clear()
        self._head.clear()
        self._incoming = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self.connection is not None

    def is_coming(self, number: int) -> bool:
        """Whether the server is likely still loading a loader spec."""
        is_ready = self.loaded == number and self.accepted > 0
        return not (self.was_missed or is_ready or self.refused == number)

    def current_task_limit(self, *, is_tried: bool) -> int:
        """Return how many tasks the server may have now.

        One that `is_tried` gets one until it has made a batch, so that little is lost if it cannot.
        The partitions of an iterable dataset have to be assigned at once.
        """
        return min(self.accepted, 1) if is_tried and not self.proven else self.accepted

    def lost(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
            self.was_missed = True

    def send(self, head: FrameHeader, body: bytes = b"") -> None:
        """Send without blocking, the rest by `pump`; raises OSError where the server is gone."""
        assert self._sent_codes is not None
        head = head._replace(body_bytes=len(body))
        self._unsent.append(memoryview(self._sent_codes.seal(head.pack(), body)))
        self.pump()

    def set_user_timeout(self) -> None:
        """Raise the kernel's send timeout, so that `silence_limit_s` alone decides."""
        assert self.connection is not None
        set_user_timeout(self.connection, _MAX_SILENT_S)

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def pump(self) -> None:
        """Send unsent data without blocking; raises OSError where the server is gone."""
        assert self.connection is not None
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                sent = self.connection.send(self._unsent[0])
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                else:
                    self._unsent.popleft()

    @property
    def incoming_assignment(self) -> int | None:
        """The number of the assignment whose batch is being received; None if none is."""
        is_batch = self._incoming is not None and self._incoming.head.kind is FrameKind.BATCH
        return self._incoming.head.assignment if self._incoming is not None and is_batch else None

    def divert(self) -> None:
        """Discard the batch that is being received: its slot is needed for another."""
        if self._incoming is not None and self.incoming_assignment is not None:
            self._incoming.body = memoryview(bytearray(len(self._incoming.body)))

    def frames(self, place: Callable[[FrameHeader], memoryview]) -> Iterator[IncomingFrame]:
        """Yield the frames that have arrived.

        `place` returns the memory for the body of a frame, by its header. Raises OSError (the
        server is gone), ValueError (what arrived is not the next frame that the server has sent).
        """
        assert self.connection is not None
        remaining = _MAX_READ_BYTES
        with contextlib.suppress(BlockingIOError):
            while remaining > 0:
                if self._incoming is None:
                    self._read_head(place)
                frame = self._incoming
                if frame is None:
                    continue
                remaining -= self._read_body(frame)
                if frame.code is None or len(frame.sent_code) == CODE_BYTES:
                    self._incoming = None
                    if frame.code is not None:
                        check_body(frame.sent_code, frame.code)
                    yield frame

    def _read_head(self, place: Callable[[FrameHeader], memoryview]) -> None:
        assert self._received_codes is not None
        self._receive_into(self._head, HEADER_BYTES + CODE_BYTES)
        if len(self._head) == HEADER_BYTES + CODE_BYTES:
            head = FrameHeader.unpack(self._received_codes.check_header(self._head))
            self._head.clear()
            code = self._received_codes.body() if head.body_bytes else None
            self._incoming = IncomingFrame(head, place(head), code=code)

    def _read_body(self, frame: IncomingFrame) -> int:
        """Receive some of a frame's body, or of its code; return the number of bytes."""
        assert self.connection is not None
        if frame.code is None:
            return 0
        if frame.filled == len(frame.body):
            return self._receive_into(frame.sent_code, CODE_BYTES)
        count = self.connection.recv_into(frame.body[frame.filled :])
        self._note_received(count)
        frame.code.update(frame.body[frame.filled : frame.filled + count])
        frame.filled += count
        return count

    def _receive_into(self, content: bytearray, size: int) -> int:
        """Receive what is missing of `size` bytes; return the number of bytes."""
        assert self.connection is not None
        piece = self.connection.recv(size - len(content))
        self._note_received(len(piece))
        content += piece
        return len(piece)

    def _note_received(self, count: int) -> None:
        if not count:
            raise ConnectionResetError(f"{self.host.name} has hung up")
        self.heard_s = time.monotonic()


class ConnectionAttempts:
    """A queue of finished attempts to connect, which run in threads."""

    def __init__(self) -> None:
        self._ended: queue.SimpleQueue[tuple[ServerConnection, OpenConnection | None]] = (
            queue.SimpleQueue()
        )
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return a descriptor that is readable once an attempt has ended."""
        return self._wakeup

    def note(self, server: ServerConnection, connection: OpenConnection | None) -> None:
        """Add the result of an attempt, from any thread."""
        self._ended.put((server, connection))
        os.eventfd_write(self._wakeup, 1)

    def ended(self) -> Iterator[tuple[ServerConnection, OpenConnection | None]]:
        """Yield the results since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._ended.get_nowait()


def _open_connection(host: AuxiliaryHost, key: bytes) -> OpenConnection:
    connection = socket.create_connection((host.address, host.port), timeout=_CONNECT_S)
    try:
        configure_socket(connection)
        keys = authenticate_to_server(connection, key, _CONNECT_S)
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return OpenConnection(connection, keys)


_PATH_ERRORS = ("FileNotFoundError", "NotADirectoryError", "No such file or directory")
_IMPORT_ERRORS = ("ModuleNotFoundError", "ImportError")
_MAX_CHARACTERS = 300  # characters of an exception's text


def refused_line(host: str, failure: BatchFailure) -> str:
    """Return the line about a host that cannot load the dataset."""
    return (
        f"auxiliary host {host} cannot load the dataset, and is not asked: "
        f"{_shorten(failure.summary)}.{_remedy(failure.summary)}"
    )


def failed_line(host: str, summary: str, *, is_last: bool) -> str:
    """Return the line about a batch that failed on a host, maybe its last, and was made here."""
    then = "It is asked no more." if is_last else "It was made here."
    return f"a batch failed on auxiliary host {host}: {_shorten(summary)}. {then}{_remedy(summary)}"


def _shorten(summary: str) -> str:
    line = " ".join(summary.split()).rstrip(".")
    return line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS]}..."


def _remedy(summary: str) -> str:
    if any(each in summary for each in _PATH_ERRORS):
        return (
            " The dataset reads paths that this host has and that one has not: mount them there at "
            "the same place, or read from object storage (headrace data pack), which keeps a cache "
            "on each host."
        )
    if any(each in summary for each in _IMPORT_ERRORS):
        return " Install it on that host: name it in a requirements.txt beside the script."
    return ""


_MAX_FAILURES = 3
_MISSING_PATH = re.compile(
    r"(?:No such file or directory|Not a directory): (['\"])(?P<path>.+?)\1"
    r"|name = '(?P<named>.+?)', errno = 2\b"  # HDF5's wording
)


def is_excluded_at_first_batch(
    server: ServerConnection, frame: IncomingFrame, print_line: Callable[[str], None]
) -> bool:
    """Whether a host is excluded because its first batch failed for a path that exists here.

    Other failures may be the sample's: they count once the batch was made locally.
    """
    head = frame.head
    if head.a != Answer.FAILED or server.loaded in {server.proven, server.refused}:
        return False
    summary = missing_path(BatchFailure.from_bytes(bytes(frame.body[head.c :])))
    if summary is None:
        return False
    print_line(failed_line(server.host.name, summary, is_last=True))
    return True


def is_excluded_after_failure(
    server: ServerConnection, number: int, summary: str, print_line: Callable[[str], None]
) -> bool:
    """Note a batch that failed on a host and was made locally; whether the host is excluded."""
    if server.refused == number:  # excluded already
        return False
    server.failures += 1
    is_last = server.failures >= _MAX_FAILURES
    if server.failures == 1 or is_last:
        print_line(failed_line(server.host.name, summary, is_last=is_last))
    return is_last


def missing_path(failure: BatchFailure) -> str | None:
    """Return the line of a failure about a path that is missing there and exists here, or None.

    The path may be in the exception, or in one from which it was raised.
    """
    for line in (failure.summary, *failure.traceback.splitlines()):
        for match in _MISSING_PATH.finditer(line):
            if os.path.exists(match["path"] or match["named"]):  # noqa: PTH110 - never raises
                is_first = line is failure.summary
                return line if is_first else f"{failure.summary} ({line.strip()})"
    return None
