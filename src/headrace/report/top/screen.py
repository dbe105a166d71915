"""The loop of the view: read, draw, wait for a key; the terminal is restored at the end."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console
from rich.live import Live

from headrace.report.top.frame import render_frame
from headrace.report.top.run_watcher import RunWatcher
from headrace.report.top.state import TopState

_TICK_S = 0.25
"""How often the terminal's size is checked."""
_QUIT_KEY, _PAUSE_KEY = "q", "p"
_SPECIAL = re.compile(rb"\x1b(\[[0-9;]*[ -/]*[@-~]|O.)")
"""Escape sequences of arrow keys and the like, whose letters are no keys."""
_NICENESS = 5
"""The view gives way to the workers that it watches."""


def print_frame(watch: RunWatcher, console: Console) -> None:
    """Print one frame, as long as it needs to be; raises RecordsError."""
    console.print(render_frame(watch.look(wait=True), console))


def show_frames(watch: RunWatcher, console: Console, interval_s: float) -> TopState:
    """Show the run, redrawn at every interval, until the user leaves; return the last state.

    If the records cannot be read any more, the terminal is restored, and RecordsError raised.
    """
    with suppress(OSError):
        os.nice(_NICENESS)
    state = watch.look()
    with (
        _exit_on_sigterm(),
        _key_reader() as pressed,
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        paused, looked_s, drawn = False, time.monotonic(), None
        while True:
            if not paused and time.monotonic() >= looked_s + interval_s:
                looked_s = time.monotonic()
                state = watch.look()
            shown = (state, paused, console.size)
            if shown != drawn:
                frame = render_frame(state, console, height=console.height, paused=paused)
                live.update(frame, refresh=True)
                drawn = shown
            keys = pressed(_TICK_S)
            if _QUIT_KEY in keys:
                break
            paused ^= keys.count(_PAUSE_KEY) % 2 == 1
    return state


@contextmanager
def _key_reader() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for keys and returns those pressed, without enter or echo.

    If standard input is no terminal, there are none, and ctrl-C ends the view.
    """
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield _no_keys
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSADRAIN)
        changed = termios.tcgetattr(descriptor)
        changed[6][termios.VSUSP] = os.fpathconf(descriptor, "PC_VDISABLE").to_bytes(1, "little")
        termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)
        yield lambda seconds: _read_keys(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_keys(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _read_keys(descriptor: int, seconds: float) -> str:
    readable, _, _ = select.select([descriptor], [], [], seconds)
    if not readable:
        return ""
    try:
        pressed = os.read(descriptor, 64)
    except OSError:  # the terminal is gone
        return _QUIT_KEY
    return _SPECIAL.sub(b"", pressed).decode(errors="replace") if pressed else _QUIT_KEY


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Leave the view in good order on SIGTERM, too."""
    before = signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
