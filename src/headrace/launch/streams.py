"""The output of a script that is run directly: a pipe, or a terminal where there is one.

Libraries ask whether they write to a terminal, and how wide it is, before they draw progress bars
or colours. So where the launcher's own output is a terminal the script gets a pseudo-terminal, of
the same size; what is written to it is shown, and logged, as it is.
"""

from __future__ import annotations

import fcntl
import os
import termios
import tty
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

_SIZE_BYTES = 8  # struct winsize: rows, columns, and both in pixels


@dataclass(frozen=True, slots=True)
class Stream:
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


def open_stream(shown: IO[bytes]) -> Stream:
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
    return Stream(
        -1 if terminal is None else terminal,
        open(reading, "rb"),  # noqa: PTH123 - a descriptor, closed by who reads it
        writing,
        terminal is not None,
    )


def resize(streams: Sequence[Stream]) -> None:
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
