"""The stack of a thread as another one sees it: codes and lines, while both go on."""

from __future__ import annotations

import gc
import sys
from itertools import accumulate, repeat
from pathlib import Path
from types import CodeType, FrameType

from headrace.observe.probe.relayed_calls import plain_code

_PROBE_FOLDER = f"{Path(__file__).parent}/"
_MAX_FRAMES = 48
_MAX_TEXTS = 256  # each some 2 kB with its stack
StackKey = tuple[int | None, ...]
"""The id of each code, then each line, innermost frame first."""


class ThreadStack:
    """The stack of a thread: codes and lines, innermost frame first.

    Code objects are distinguished by id, because hashing one hashes all its content each time.
    They are kept alive so that their ids stay unique.

    Args:
        frame: The innermost frame.
    """

    __slots__ = ("codes", "stack")

    def __init__(self, frame: FrameType) -> None:
        frames = _frames_from(frame)
        self.codes: list[CodeType] = [each.f_code for each in frames]
        self.stack: StackKey = (*map(id, self.codes), *[each.f_lineno for each in frames])

    def text(self) -> str:
        """Return the lines as recorded, without those of the probe's hooks."""
        lines = self.stack[len(self.codes) :]
        all_lines = list(zip(reversed(self.codes), reversed(lines), strict=True))
        script_lines = [
            pair
            for pair in all_lines
            if not pair[0].co_filename.startswith(_PROBE_FOLDER) and plain_code(pair[0]) is pair[0]
        ]
        return "\n".join(
            f"{code.co_filename}:{line or 0}:{code.co_qualname}"  # None: between two lines
            for code, line in script_lines or all_lines
        )


class StackTexts:
    """The texts of the stacks seen lately: most come again each second, and new ones for hours."""

    def __init__(self) -> None:
        self._known: dict[StackKey, tuple[ThreadStack, str]] = {}

    def of(self, lines: ThreadStack) -> str:
        """Return the text of a stack."""
        known = self._known.get(lines.stack)
        if known is None:
            if len(self._known) >= _MAX_TEXTS:
                self._known.clear()
            known = self._known[lines.stack] = (lines, lines.text())
        return known[1]


def _frames_from(innermost: FrameType) -> list[FrameType]:
    """Return the frames of a stack, innermost first.

    `f_back` makes a frame's object, and before Python 3.12 that may start a garbage collection. If
    a finalizer then lets the sampled thread go on, `f_back` returns whatever is in the place where
    that thread's frame was: any object, or none at all. So nothing is collected meanwhile, and the
    interpreter lock, which `extend` and `getattr` never give up, stays with this thread.
    """
    frames: list[FrameType | None] = []
    collects = sys.version_info < (3, 12) and gc.isenabled()
    if collects:
        gc.disable()
    try:
        frames.extend(accumulate(repeat("f_back", _MAX_FRAMES - 1), getattr, initial=innermost))
    except AttributeError:  # of None, which is around the outermost frame
        pass
    finally:
        if collects:
            gc.enable()
    return [frame for frame in frames if frame is not None]
