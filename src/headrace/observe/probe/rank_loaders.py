"""The numbers of a rank's loaders, in a file that all processes share which are that rank in turn.

A script may train in one process after the other, one a stage or a fold, and each constructs its
loaders anew. In the records all of them are of one rank. So a later process gives a loader the
number of an earlier one's if it constructs it at the same place with the same settings, and else a
number that none has had.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Container, Hashable, Sequence
from pathlib import Path

from headrace.core.file_lock import locked_file

_LOCK_WAIT_S = 10.0  # for another process to add a line, which takes it microseconds
_ANY = "-"  # in place of a construction that is not known


class RankLoaders:
    """The file of a rank's loaders: a line each, with its number and a hash of its construction.

    Args:
        path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_bytes = 0  # of the file, up to the end of a line
        self._last = -1
        self._numbers: defaultdict[str, list[int]] = defaultdict(list)  # by that hash

    def new(self, construction: Hashable | None, own: Container[int], least: int) -> int:
        """Return the number of a loader that a process constructs; raises OSError.

        Args:
            construction: Where and how, by plain values: equal in all processes that do the same.
                None: not known.
            own: The numbers that this process has given already.
            least: The least number that it has not.
        """
        key = _ANY if construction is None else _hash_of(construction)
        with locked_file(self.path, _LOCK_WAIT_S, 0o600) as descriptor:
            self._read(descriptor)
            known: Sequence[int] = () if construction is None else self._numbers[key]
            number = next((each for each in known if each not in own), None)
            if number is None:
                number = max(self._last + 1, least)
                os.pwrite(descriptor, f"{number} {key}\n".encode(), self._read_bytes)
                self._read(descriptor)
        return number

    def _read(self, descriptor: int) -> None:
        """Read the lines that are new; of one that was cut off, as its writer died, none."""
        size = os.fstat(descriptor).st_size - self._read_bytes
        content = os.pread(descriptor, size, self._read_bytes) if size > 0 else b""
        whole, end, _ = content.rpartition(b"\n")
        self._read_bytes += len(whole) + len(end)
        for line in whole.decode(errors="replace").splitlines():
            number, _, key = line.partition(" ")
            if number.isdecimal():
                self._last = max(self._last, int(number))
                self._numbers[key].append(int(number))


def _hash_of(construction: Hashable) -> str:
    """Return a hash that is the same in all processes."""
    return hashlib.blake2b(repr(construction).encode(errors="replace"), digest_size=8).hexdigest()
