"""Timed reads of files that Python opens while a batch is made, and the batches that are timed.

Reads are timed of files that Python opens while a batch is made, and of `os.read` and its kind. A
file opened for reading gets a raw file that times the reads below the usual buffer, for as long as
it is open. It behaves as any other, but a line of text takes 0.05 us longer.

Timing a file's reads makes opening it slower. So where a loader's batches open so many files that
this would cost more than a small share of making them, only some batches are timed after the first
hundred: the rows of the others have no time of reads.
"""

from __future__ import annotations

import builtins
import copyreg
import functools
import io
import os
import pkgutil
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, ModuleType
from typing import Any, NamedTuple

from headrace.core.import_hooks import after_import
from headrace.observe.probe.timing_rates import TimingBudget, TimingRate

_READ_MODES = {"r", "rt", "tr", "rb", "br"}
_OS_READS = ("read", "pread", "readv", "preadv")
_OPEN_ALIASES = (("tarfile", "bltn_open"), ("bz2", "_builtin_open"))
"""Modules that keep `open` under another name."""
_LARGEST_BUFFER = 8 << 20
_Text = tuple[str | None, str | None, str | None]  # encoding, errors, newline
TimedCall = Callable[..., Any]
"""Calls its first argument with the others, and times that while a batch is made."""


class FileReads:
    """Times file reads during a batch, by functions that replace the originals until its end.

    A script that has replaced `open` itself keeps its own. A replacement compares and pickles as
    the original does, so a script that stores one meanwhile notices no difference except by `is`.
    Files opened by threads that are not at work are not timed.
    """

    def __init__(self, timed: TimedCall, is_at_work: Callable[[], bool]) -> None:
        self._timed = timed
        self._is_at_work = is_at_work
        self.opened = 0
        self._is_installed = False
        self._replaced: list[_Replacement] = []
        if isinstance(io.open, BuiltinFunctionType):  # otherwise a script has replaced it
            stand_in = _StandIn(
                io.open, _timed_open(io.open, _timed_raw_class(timed), self._is_timed_open)
            )
            # Each is a place where code looks it up.
            for module in (builtins, io, sys.modules["_io"]):
                self._replaced.append(_Replacement(module, "open", io.open, stand_in))
            for name, own_name in _OPEN_ALIASES:
                after_import(name, functools.partial(self._add_open, own_name, stand_in))
        for name in _OS_READS:
            self._add(os, name)
        after_import("numpy", lambda numpy: self._add(numpy, "fromfile"))

    def begin(self) -> None:
        """Install the replacements: a batch begins."""
        self.opened = 0
        self._is_installed = True  # set first: a signal may raise an error from here on
        copyreg.dispatch_table.setdefault(BuiltinFunctionType, self._reduced)
        for replacement in self._replaced:
            if getattr(replacement.module, replacement.name, None) is replacement.original:
                setattr(replacement.module, replacement.name, replacement.ours)

    def end(self) -> None:
        """Restore the originals: the batch is made, or it failed."""
        if not self._is_installed:
            return
        for replacement in self._replaced:
            if getattr(replacement.module, replacement.name, None) is replacement.ours:
                setattr(replacement.module, replacement.name, replacement.original)
        if copyreg.dispatch_table.get(BuiltinFunctionType) == self._reduced:
            copyreg.dispatch_table.pop(BuiltinFunctionType, None)
        self._is_installed = False

    def _is_timed_open(self) -> bool:
        """Return whether the file that is being opened is timed, and count it if so."""
        if not self._is_at_work():
            return False
        self.opened += 1
        return True

    def _add_open(self, name: str, stand_in: _StandIn, module: ModuleType) -> None:
        if getattr(module, name, None) is stand_in.original:
            self._replaced.append(_Replacement(module, name, stand_in.original, stand_in))

    def _reduced(self, function: BuiltinFunctionType) -> str | tuple[Any, ...]:
        """Return how to pickle a built-in function, even while it is replaced."""
        if any(replacement.original is function for replacement in self._replaced):
            return _by_name(function)
        return function.__reduce__()

    def _add(self, module: ModuleType, name: str) -> None:
        original = getattr(module, name, None)
        if not isinstance(original, BuiltinFunctionType):
            return
        timed = functools.partial(self._timed, original)
        self._replaced.append(_Replacement(module, name, original, _StandIn(original, timed)))


class _Replacement(NamedTuple):
    """A function's place in a module, the original, and what replaces it while a batch is made."""

    module: ModuleType
    name: str
    original: Any
    ours: Any


class _StandIn:
    """Replacement of a built-in function; like one, it is no method when stored on a class."""

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
    """Return how to pickle a function by name, readable where Headrace is not installed."""
    return pkgutil.resolve_name, (f"{function.__module__}:{function.__name__}",)


def _timed_raw_class(timed: TimedCall) -> type[io.FileIO]:
    class FileIO(io.FileIO):
        """A raw file whose reads are timed."""

        def readinto(self, buffer: Any) -> Any:
            return timed(super().readinto, buffer)

        def readall(self) -> Any:
            return timed(super().readall)

        def read(self, size: int | None = -1) -> Any:
            return timed(super().read, size)

    return FileIO


def _timed_open(original: Any, raw_file: type[io.FileIO], is_timed: Callable[[], bool]) -> Any:
    """Return an `open` whose files are timed if they are opened for reading during a batch."""

    def open(  # noqa: A001 - it replaces that very function
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,  # noqa: FBT001, FBT002 - the signature of `open`
        opener: Any = None,
    ) -> Any:
        text = (encoding, errors, newline)
        if not (_is_to_be_timed(mode, buffering, text) and is_timed()):
            return original(file, mode, buffering, *text, closefd, opener)
        if "b" not in mode:
            encoding = io.text_encoding(encoding, 3)  # warns at the script's line, if enabled
        path = file if hasattr(type(file), "__index__") else os.fspath(file)
        raw = raw_file(path, "r", closefd, opener)
        try:
            return _open_buffered(raw, mode, buffering, (encoding, errors, newline))
        except BaseException:
            raw.close()
            raise

    return open


def _is_to_be_timed(mode: str, buffering: int, text: _Text) -> bool:
    """Return whether these arguments open a file for reading; the original reports wrong ones."""
    if mode not in _READ_MODES:
        return False
    if "b" in mode:
        return text == (None, None, None) and buffering != 1
    return buffering < 0 or buffering > 1


def _open_buffered(raw: io.FileIO, mode: str, buffering: int, text: _Text) -> Any:
    """Return a raw file wrapped as `open` would return it."""
    if buffering == 0:
        return raw
    buffer = io.BufferedReader(raw, buffering if buffering > 1 else _buffer_size(raw))
    if "b" in mode:
        return buffer
    encoding, errors, newline = text
    by_line = buffering < 0 and raw.isatty()
    text_file: Any = io.TextIOWrapper(buffer, encoding, errors, newline, by_line)
    text_file.mode = mode
    return text_file


def _buffer_size(raw: Any) -> int:
    """Return the buffer size that `open` uses: a file system block, or Python's default."""
    block = int(getattr(raw, "_blksize", 0))
    if sys.version_info >= (3, 14):
        return max(min(block, _LARGEST_BUFFER), io.DEFAULT_BUFFER_SIZE)
    return block if block > 1 else io.DEFAULT_BUFFER_SIZE


_FILE_TIMING_BUDGET = TimingBudget(
    at_first=100, one_in=1, early_share=0.0005, share=0.0005, deep_share=0.002
)
_OPEN_NS = 5_000
"""What timing adds to opening and reading a file in workers that decode images, where the
processor's caches hold little of the probe's code."""


class FileTimingRates:
    """How often the files of each loader's batches are timed, by what that costs."""

    def __init__(self) -> None:
        self._rates: dict[int, TimingRate] = defaultdict(partial(TimingRate, _FILE_TIMING_BUDGET))

    def is_due(self, loader: int, *, deep: bool) -> bool:
        """Return whether to time the batch of a loader that begins."""
        return self._rates[loader].is_due(on=True, deep=deep)

    def weigh(self, loader: int, opened: int, made_ns: int) -> None:
        """Adapt the rate to a timed batch: the files that it opened, and the time of making it."""
        cost_ns = min(opened * _OPEN_NS, 0.9 * made_ns)
        self._rates[loader].weigh(cost_ns / max(made_ns - cost_ns, 1))

    def forget(self) -> None:
        """Start again, in a forked child."""
        self._rates.clear()
