"""Timed reads of files while a batch is made: what Python opens by itself, and `os.read`.

A file that is opened to be read gets a raw file that times its reads below the usual buffer, for as
long as it is open. It behaves as any other, but a line of text takes 0.05 us longer. Files that
were opened while no batch was being made, and those that native code opens, are not timed.
"""

from __future__ import annotations

import builtins
import copyreg
import functools
import io
import os
import pkgutil
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any, NamedTuple

from headrace.core.import_hooks import after_import

_READ_MODES = {"r", "rt", "tr", "rb", "br"}
_OS_READS = ("read", "pread", "readv", "preadv")
_OPEN_ALIASES = (("tarfile", "bltn_open"), ("bz2", "_builtin_open"))
"""Modules that keep `open` by another name."""
_LARGEST_BUFFER = 8 << 20
_Text = tuple[str | None, str | None, str | None]  # encoding, errors, newline
TimedCall = Callable[..., Any]
"""Calls what it is handed, with the rest of its arguments, and times that while a batch is made."""


class FileReads:
    """Times reads while a batch is made; before and after, everything is as it was.

    A script that has replaced `open` keeps its own. Who keeps what stands there meanwhile, or
    compares or pickles it, or pickles the original meanwhile, gets what it would; `is` alone tells
    them apart.

    Args:
        timed: Calls and times.
        is_at_work: Whether this thread makes a batch now; files of others are as ever.

    Attributes:
        opened: Files that were opened to be timed since the last batch began.
    """

    def __init__(self, timed: TimedCall, is_at_work: Callable[[], bool]) -> None:
        self._timed = timed
        self._is_at_work = is_at_work
        self.opened = 0
        self._is_installed = False
        self._places: list[_Replacement] = []
        if isinstance(io.open, BuiltinFunctionType):  # else it is somebody's own
            opened = _StandIn(
                io.open, _timed_open(io.open, _timed_raw_class(timed), self._is_timed_open)
            )
            for module in (builtins, io, sys.modules["_io"]):  # each is where somebody finds it
                self._places.append(_Replacement(module, "open", io.open, opened))
            for name, own_name in _OPEN_ALIASES:
                after_import(name, functools.partial(self._add_open, own_name, opened))
        for name in _OS_READS:
            self._add(os, name)
        after_import("numpy", lambda numpy: self._add(numpy, "fromfile"))

    def begin(self) -> None:
        """A batch begins."""
        self.opened = 0
        self._is_installed = True  # first: a signal may raise an error from here on
        copyreg.dispatch_table.setdefault(BuiltinFunctionType, self._reduced)
        for place in self._places:
            if getattr(place.module, place.name, None) is place.original:
                setattr(place.module, place.name, place.ours)

    def end(self) -> None:
        """It is made, or it failed."""
        if not self._is_installed:
            return
        for place in self._places:
            if getattr(place.module, place.name, None) is place.ours:
                setattr(place.module, place.name, place.original)
        if copyreg.dispatch_table.get(BuiltinFunctionType) == self._reduced:
            copyreg.dispatch_table.pop(BuiltinFunctionType, None)
        self._is_installed = False

    def _is_timed_open(self) -> bool:
        """Whether the file that is opened now is to be timed; it is counted."""
        if not self._is_at_work():
            return False
        self.opened += 1
        return True

    def _add_open(self, name: str, opened: _StandIn, module: ModuleType) -> None:
        if getattr(module, name, None) is opened.original:
            self._places.append(_Replacement(module, name, opened.original, opened))

    def _reduced(self, function: BuiltinFunctionType) -> str | tuple[Any, ...]:
        """Return how to pickle a built-in function, also where another stands in its place."""
        if any(place.original is function for place in self._places):
            return _by_name(function)
        return function.__reduce__()

    def _add(self, module: ModuleType, name: str) -> None:
        original = getattr(module, name, None)
        if not isinstance(original, BuiltinFunctionType):
            return
        timed = functools.partial(self._timed, original)
        self._places.append(_Replacement(module, name, original, _StandIn(original, timed)))


class _Replacement(NamedTuple):
    """Where a function is found, and what stands there while a batch is made."""

    module: ModuleType
    name: str
    original: Any
    ours: Any


class _StandIn:
    """Stands for a built-in function, and is no method either where a class keeps it.

    Args:
        original: The function.
        call: What is called instead.
    """

    def __init__(self, original: Callable[..., Any], call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self.__call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__call(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self.original is getattr(other, "original", other)

    def __hash__(self) -> int:
        return hash(self.original)

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_name(self.original)


def _by_name(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return how to pickle a function so that it is found where Headrace is not installed, too."""
    return pkgutil.resolve_name, (f"{function.__module__}:{function.__name__}",)


def _timed_raw_class(timed: TimedCall) -> type[io.FileIO]:
    class FileIO(io.FileIO):
        """A raw file whose reads are timed."""

        def readinto(self, buffer: Any) -> Any:
            """Read as the original does."""
            return timed(super().readinto, buffer)

        def readall(self) -> Any:
            """Read as the original does."""
            return timed(super().readall)

        def read(self, size: int | None = -1) -> Any:
            """Read as the original does."""
            return timed(super().read, size)

    return FileIO


def _timed_open(original: Any, raw_file: type[io.FileIO], takes_over: Callable[[], bool]) -> Any:
    """Return `open` with timed files where they are to be read and a batch is being made."""

    def open(  # noqa: A001 - it stands for that very function
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,  # noqa: FBT001, FBT002 - likewise
        opener: Any = None,
    ) -> Any:
        text = (encoding, errors, newline)
        if not (_is_to_be_timed(mode, buffering, text) and takes_over()):
            return original(file, mode, buffering, *text, closefd, opener)
        if "b" not in mode:
            encoding = io.text_encoding(encoding, 3)  # warns at the script's line, where asked to
        path = file if hasattr(type(file), "__index__") else os.fspath(file)
        raw = raw_file(path, "r", closefd, opener)
        try:
            return _open_buffered(raw, mode, buffering, (encoding, errors, newline))
        except BaseException:
            raw.close()
            raise

    return open


def _is_to_be_timed(mode: str, buffering: int, text: _Text) -> bool:
    """Whether that asks for a file to be read; what is wrong the original tells best."""
    if mode not in _READ_MODES:
        return False
    if "b" in mode:
        return text == (None, None, None) and buffering != 1
    return buffering < 0 or buffering > 1


def _open_buffered(raw: io.FileIO, mode: str, buffering: int, text: _Text) -> Any:
    """Return a raw file as `open` hands it out."""
    if buffering == 0:
        return raw
    buffer = io.BufferedReader(raw, buffering if buffering > 1 else _buffer_size(raw))
    if "b" in mode:
        return buffer
    encoding, errors, newline = text
    by_line = buffering < 0 and raw.isatty()
    found: Any = io.TextIOWrapper(buffer, encoding, errors, newline, by_line)
    found.mode = mode
    return found


def _buffer_size(raw: Any) -> int:
    """Return how much `open` reads ahead: a block of the file system, or Python's own size."""
    block = int(getattr(raw, "_blksize", 0))
    if sys.version_info >= (3, 14):
        return max(min(block, _LARGEST_BUFFER), io.DEFAULT_BUFFER_SIZE)
    return block if block > 1 else io.DEFAULT_BUFFER_SIZE
