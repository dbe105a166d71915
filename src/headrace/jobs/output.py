"""The output of a job's processes: logs followed on the terminal, and a script's own terminal.

Libraries draw progress bars and colours only on a terminal, and ask for its width. So where the
launcher's own output is a terminal, a script that runs without torchrun gets a pseudo-terminal of
the same size, whose output is shown and logged unchanged.
"""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import re
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import IO, BinaryIO, Protocol

from headrace.core import env
from headrace.core.process.subreaper import KILL_SIGNAL, subreaper_command
from headrace.core.process.supervision import STOP_SIGNALS, wait_for
from headrace.jobs.environment.script_environment import ScriptEnvironment

_POLL_S = 0.1
# \r ends the lines of progress bars; a \r at the end may be half of a \r\n.
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r(?=[^\n])|\n)")


class LogFollower:
    """A thread that shows log files line by line, with a prefix that names their origin.

    It reads all files every 0.1 s; lines of different files never mix.
    """

    def __init__(self) -> None:
        self._files: list[_FollowedFile] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow logs", daemon=True)
        self._thread.start()

    def follow(self, path: Path, prefix: str, terminal: BinaryIO) -> None:
        """Show a file from its first byte on, as soon as it exists."""
        with self._lock:
            self._files.append(_FollowedFile(path, prefix.encode(), terminal))

    def finish_files(self) -> None:
        """Show the rest of the files followed so far, and forget them."""
        with self._lock:
            for file in self._files:
                file.show(to_the_end=True)
            self._files.clear()

    def close(self) -> None:
        """Show the rest of all files, and stop."""
        self._closing.set()
        self._thread.join()
        self.finish_files()

    def _run(self) -> None:
        while not self._closing.wait(_POLL_S):
            with self._lock:
                for file in self._files:
                    file.show()


class _FollowedFile:
    def __init__(self, path: Path, prefix: bytes, terminal: BinaryIO) -> None:
        self._path = path
        self._prefix = prefix
        self._terminal: BinaryIO | None = terminal
        self._file: BinaryIO | None = None
        self._partial_line = b""  # the beginning of a line that has not ended

    def show(self, *, to_the_end: bool = False) -> None:
        try:
            if self._file is None:
                self._file = self._path.open("rb")
            text = self._partial_line + self._file.read()
        except OSError:  # torchrun creates it when it starts the rank; or its disk has a fault now
            return
        if to_the_end:
            self._file.close()
            text += b"\n" if text and self._prefix and text[-1:] != b"\n" else b""
        if self._prefix:
            lines = _LINE.findall(text)
            self._partial_line = text[sum(map(len, lines)) :]
            text = b"".join(self._prefix + line for line in lines)
        else:
            self._partial_line = b""
        self._write(text)

    def _write(self, text: bytes) -> None:
        if not text or self._terminal is None:
            return
        try:
            self._terminal.write(text)
            self._terminal.flush()
        except (OSError, ValueError):  # the reader is gone, or its disk full: see the log
            self._terminal = None


_MAX_QUEUED_PIECES = 4096  # pieces of output that a blocked terminal has not taken yet
_CLOSE_S = 5.0


class HostOutput:
    """The output of hosts, shown in order; what the terminal does not take is only in the logs."""

    def __init__(self) -> None:
        self._terminals: dict[str, BinaryIO] = {
            "stdout": sys.stdout.buffer,
            "stderr": sys.stderr.buffer,
        }
        self._pieces: queue.Queue[tuple[str, bytes] | None] = queue.Queue(_MAX_QUEUED_PIECES)
        self._has_dropped = False
        self._thread = threading.Thread(target=self._run, name="show output", daemon=True)
        self._thread.start()

    def show(self, source: str, text: bytes) -> None:
        """Show a piece of output after those before it."""
        try:
            self._pieces.put_nowait((source, text))
            if self._has_dropped:
                self._has_dropped = False
                self._pieces.put_nowait(("stderr", b"headrace: some output is in the logs alone\n"))
        except queue.Full:
            self._has_dropped = True

    def close(self) -> None:
        """Show the remaining output, within a time limit."""
        try:
            self._pieces.put(None, timeout=_CLOSE_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            source, text = piece
            terminal = self._terminals.get(source)
            if terminal is None:
                continue
            try:
                terminal.write(text)
                terminal.flush()
            except (OSError, ValueError):  # the reader is gone: the logs have it
                del self._terminals[source]


_SIZE_BYTES = 8  # struct winsize: rows, columns, and both in pixels


@dataclass(frozen=True, slots=True)
class OutputStream:
    """One output stream of a script."""

    shown: int  # the launcher's terminal descriptor; -1: no terminal
    source: IO[bytes]  # the read end
    written: int  # the write end, which the script gets as its own descriptor
    is_terminal: bool  # it is a pseudo-terminal

    def resize(self) -> None:
        """Give the stream the size of the terminal in which it is shown."""
        if self.is_terminal:
            with suppress(ValueError):  # the stream is closed
                _copy_size(self.shown, self.source.fileno())


def open_stream(shown: IO[bytes]) -> OutputStream:
    """Return a stream for a script whose output is shown in one of our streams."""
    try:
        terminal = shown.fileno() if os.isatty(shown.fileno()) else None
    except (OSError, ValueError):  # closed, or no file
        terminal = None
    if terminal is not None:
        try:
            read_fd, write_fd = _pseudo_terminal(terminal)
        except (OSError, termios.error):  # no pseudo-terminals left: use a pipe
            terminal = None
    if terminal is None:
        read_fd, write_fd = os.pipe()
    return OutputStream(
        -1 if terminal is None else terminal,
        open(read_fd, "rb"),  # noqa: PTH123 - a descriptor, closed by its reader
        write_fd,
        terminal is not None,
    )


def _pseudo_terminal(like: int) -> tuple[int, int]:
    """Return the descriptors of a raw pseudo-terminal: the terminal that shows it converts."""
    read_fd, write_fd = os.openpty()
    tty.setraw(write_fd)
    _copy_size(like, write_fd)
    return read_fd, write_fd


def _copy_size(of: int, to: int) -> None:
    try:
        size = fcntl.ioctl(of, termios.TIOCGWINSZ, bytes(_SIZE_BYTES))
        fcntl.ioctl(to, termios.TIOCSWINSZ, size)
    except OSError:  # the terminal is closed
        return


_TEE_READ_BYTES = 64 * 1024
_MAX_UNSHOWN_READS = 64  # reads that may be logged but not shown; more wait for the terminal


class RawTerminal(Protocol):
    """A raw file for output, so that no Python lock is held while a write blocks."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of the bytes; return how many."""
        ...


class Tee:
    """A copy of one output stream of a child process to the terminal and into a file.

    `source` is the read end of the stream. After an error of the terminal only the log, which is
    truncated first, continues.
    """

    def __init__(self, source: IO[bytes], terminal: RawTerminal, log: Path) -> None:
        self._source = source
        self._terminal: RawTerminal | None = terminal
        self._log = log.open("wb", buffering=0)
        self._unshown: Queue[bytes] = Queue(_MAX_UNSHOWN_READS)
        self._shown = 0  # reads
        self._closing = False
        self._reader = _start_thread(self._read, f"read {log.name}")
        _start_thread(self._show, f"show {log.name}")

    def close(self, timeout_s: float = 2.0) -> None:
        """Wait `timeout_s` for the end of the stream, which leftover processes may hold open.

        Then wait until everything is shown, even where the terminal blocks (a pager, ctrl-S), or
        until a blocked stop signal is pending.
        """
        deadline, shown = time.monotonic() + timeout_s, -1
        while self._reader.is_alive() and time.monotonic() < deadline:
            self._reader.join(_POLL_S)
            if self._unshown.full() and self._shown == shown:  # the terminal blocks
                if _stop_signal_pending():
                    break
                deadline = time.monotonic() + timeout_s
            shown = self._shown
        self._closing = True
        all_shown = _start_thread(self._unshown.join, "all is shown")
        while all_shown.is_alive() and not _stop_signal_pending():
            all_shown.join(_POLL_S)

    def _read(self) -> None:
        with self._source, self._log:
            while chunk := self._next():
                with suppress(OSError):  # a full disk costs the log, never the run
                    self._log.write(chunk)
                if not self._closing:
                    self._unshown.put(chunk)
        self._unshown.put(b"")

    def _next(self) -> bytes:
        """Return the bytes available, so that a prompt or a bar appears at once; b"" at the end."""
        try:
            chunk: bytes = self._source.read1(_TEE_READ_BYTES)  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno == errno.EIO:  # the end of a pseudo-terminal
                return b""
            raise
        return chunk

    def _show(self) -> None:
        while chunk := self._unshown.get():
            left = memoryview(chunk)
            while self._terminal is not None and left:
                try:
                    written = self._terminal.write(left)
                except (OSError, ValueError):  # the reader is gone, or its disk is full
                    self._terminal = None
                    break
                if written is None:  # the terminal is non-blocking and has no room
                    time.sleep(_POLL_S)
                left = left[written or 0 :]
            self._shown += 1
            self._unshown.task_done()
        self._unshown.task_done()


def raw_file(stream: IO[bytes]) -> RawTerminal:
    """Return the raw file of a buffered stream, such as `sys.stdout.buffer`."""
    terminal: RawTerminal = getattr(stream, "raw", stream)
    return terminal


def _stop_signal_pending() -> bool:
    """Whether a blocked stop signal is pending."""
    return not STOP_SIGNALS.isdisjoint(signal.sigpending())


def _start_thread(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def run_script(
    command: Sequence[str],
    *,
    script_env: ScriptEnvironment,
    environment: Mapping[str, str | None],
    log: Path,
    blocked: frozenset[signal.Signals],
    grace_s: Callable[[], float | None] | None = None,
    killing: Callable[[], object] = lambda: None,
) -> int:
    """Run a script to its end; return its return code, -n for signal n.

    The variables are added to those of this process; None removes one. `log` is that of stderr;
    that of stdout gets the suffix .stdout. For the blocked signals see `signals_blocked`, for
    `grace_s` and `killing` see `wait_for`.
    """
    streams = open_stream(sys.stdout.buffer), open_stream(sys.stderr.buffer)
    child = subprocess.Popen(
        subreaper_command(sys.executable, script_env.with_mounts(command)),
        stdout=streams[0].written,
        stderr=streams[1].written,
        env=env.child_environment(environment),
        cwd=script_env.folder,
        close_fds=False,  # descriptors that the shell opened, as by <(command), are the script's
    )
    for stream in streams:  # so that its end is noticed
        os.close(stream.written)
    tees = (
        Tee(streams[0].source, raw_file(sys.stdout.buffer), log.with_suffix(".stdout")),
        Tee(streams[1].source, raw_file(sys.stderr.buffer), log),
    )

    def resize() -> None:
        for stream in streams:
            stream.resize()

    returncode = wait_for(
        child, blocked, own_session=False, killed_by=KILL_SIGNAL, killing=killing, resized=resize,
        grace_s=grace_s,
    )  # fmt: skip
    for tee in tees:
        tee.close()
    return returncode
