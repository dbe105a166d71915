"""The output of a script that runs without torchrun: pseudo-terminal, tee and log.

Libraries ask whether they write to a terminal, and how wide it is, before they draw progress bars
or colours. So where the launcher's own output is a terminal the script gets a pseudo-terminal of
the same size; what is written to it is shown, and logged, as it is.
"""

from __future__ import annotations

import errno
import fcntl
import os
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
from typing import IO, Protocol

from headrace.core import env
from headrace.core.process.parent_death import parent_bound_command
from headrace.core.process.supervision import STOP_SIGNALS, wait_for
from headrace.jobs.cli_args import DirectJob
from headrace.jobs.environment.script_environment import ScriptEnvironment

_SIZE_BYTES = 8  # struct winsize: rows, columns, and both in pixels


@dataclass(frozen=True, slots=True)
class OutputStream:
    """One output stream of a script.

    Attributes:
        shown: Where the launcher shows it.
        source: Where it is read from.
        written: The descriptor that the script gets as its own.
        is_terminal: Whether that is a pseudo-terminal.
    """

    shown: int
    source: IO[bytes]
    written: int
    is_terminal: bool

    def handed_over(self) -> None:
        """The script has it: close it here, so that its end is seen."""
        os.close(self.written)

    def resize(self) -> None:
        """Give it the size of the terminal in which it is shown."""
        if self.is_terminal:
            with suppress(ValueError):  # it has come to its end
                _copy_size(self.shown, self.source.fileno())


def open_stream(shown: IO[bytes]) -> OutputStream:
    """Return a stream for a script whose output is shown in a stream of ours."""
    try:
        terminal = shown.fileno() if os.isatty(shown.fileno()) else None
    except (OSError, ValueError):  # closed, or no file
        terminal = None
    if terminal is not None:
        try:
            reading, writing = _pseudo_terminal(terminal)
        except (OSError, termios.error):  # the host has no more of them: a pipe will do
            terminal = None
    if terminal is None:
        reading, writing = os.pipe()
    return OutputStream(
        -1 if terminal is None else terminal,
        open(reading, "rb"),  # noqa: PTH123 - a descriptor, closed by who reads it
        writing,
        terminal is not None,
    )


def resize_streams(streams: Sequence[OutputStream]) -> None:
    """Give all of them the size of the terminals in which they are shown."""
    for each in streams:
        each.resize()


def _pseudo_terminal(like: int) -> tuple[int, int]:
    """Return both ends of one that changes nothing: whoever shows it has a terminal that does."""
    reading, writing = os.openpty()
    tty.setraw(writing)
    _copy_size(like, writing)
    return reading, writing


def _copy_size(of: int, to: int) -> None:
    try:
        size = fcntl.ioctl(of, termios.TIOCGWINSZ, bytes(_SIZE_BYTES))
        fcntl.ioctl(to, termios.TIOCSWINSZ, size)
    except OSError:  # the terminal has gone
        return


_TEE_READ_BYTES = 64 * 1024
_MAX_UNSHOWN_READS = 64  # reads that may be logged and not shown yet; more wait for the terminal
_POLL_S = 0.1


class RawTerminal(Protocol):
    """Where bytes are shown: a raw file, so that no lock of Python's is held while it waits."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of the bytes; return how many."""
        ...


class Tee:
    """Copies one output stream of a child to the terminal and into a file, byte by byte.

    Args:
        source: The reading end of the child's stream.
        terminal: Where it is shown; where that fails, only the log goes on.
        log: The file, made anew.
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
        """Wait for the stream's end, which a process the child left behind may hold open.

        Then until what came is shown, however long the terminal stands still (a pager, ctrl-S), or
        until a signal that is held back asks to stop.

        Args:
            timeout_s: For the stream's end.
        """
        deadline, shown = time.monotonic() + timeout_s, -1
        while self._reader.is_alive() and time.monotonic() < deadline:
            self._reader.join(_POLL_S)
            if self._unshown.full() and self._shown == shown:  # the terminal stands still
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
        """Return what is there, so that a prompt or a bar appears at once; b"" at the end."""
        try:
            chunk: bytes = self._source.read1(_TEE_READ_BYTES)  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno == errno.EIO:  # how a pseudo-terminal ends
                return b""
            raise
        return chunk

    def _show(self) -> None:
        while chunk := self._unshown.get():
            left = memoryview(chunk)
            while self._terminal is not None and left:
                try:
                    written = self._terminal.write(left)
                except (OSError, ValueError):  # nobody reads it any more, or its disk is full
                    self._terminal = None
                    break
                if written is None:  # somebody made it non-blocking, and it has no room
                    time.sleep(_POLL_S)
                left = left[written or 0 :]
            self._shown += 1
            self._unshown.task_done()
        self._unshown.task_done()


def raw_file(stream: IO[bytes]) -> RawTerminal:
    """Return the file behind a buffered stream, such as `sys.stdout.buffer`."""
    terminal: RawTerminal = getattr(stream, "raw", stream)
    return terminal


def _stop_signal_pending() -> bool:
    """Whether a signal that is held back asks for that."""
    return not STOP_SIGNALS.isdisjoint(signal.sigpending())


def _start_thread(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def script_command(job: DirectJob, script: str, site: ScriptEnvironment) -> list[str]:
    """Return the command line of a script.

    Args:
        job: What the command line asks for.
        script: The script that was found, or a module's name.
        site: What it gets.
    """
    python = env.PYTHON_EXEC.get() or sys.executable
    if site.folder is not None and not job.module:
        script = str(Path(script).absolute())
    module = ["-m"] if job.module else []
    return [python, "-u", *module, script, *site.arguments, *job.arguments]


def run_script(
    command: Sequence[str],
    *,
    site: ScriptEnvironment,
    environment: Mapping[str, str | None],
    log: Path,
    held: frozenset[signal.Signals],
    grace_s: Callable[[], float | None] | None = None,
) -> int:
    """Run a script to its end; return its code, -n for signal n.

    Args:
        command: Its command line.
        site: What it gets.
        environment: Its variables beside those of this process; None removes one.
        log: Where its errors go; its output goes beside.
        held: What `signals_blocked` gave.
        grace_s: As `wait_for` has it.
    """
    streams = open_stream(sys.stdout.buffer), open_stream(sys.stderr.buffer)
    child = subprocess.Popen(
        parent_bound_command(sys.executable, site.placed(command)),
        stdout=streams[0].written,
        stderr=streams[1].written,
        env=env.child_environment(environment),
        cwd=site.folder,
        close_fds=False,  # what the shell opened, as by <(command), is the script's
    )
    for stream in streams:
        stream.handed_over()
    tees = (
        Tee(streams[0].source, raw_file(sys.stdout.buffer), log.with_suffix(".stdout")),
        Tee(streams[1].source, raw_file(sys.stderr.buffer), log),
    )
    returncode = wait_for(
        child, held, own_session=False, resized=lambda: resize_streams(streams), grace_s=grace_s
    )
    for tee in tees:
        tee.close()
    return returncode
