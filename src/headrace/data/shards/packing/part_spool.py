"""Parts kept on the local disk until all are there: millions of rows need not stay in memory."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import NoSpaceError, StorageError
from headrace.data.shards.packing.part import Part


class PartSpool:
    """Parts in order.

    Args:
        folder: A folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def add(self, part: Part) -> None:
        """Keep a part behind the ones before it."""
        with local_disk(self._folder):
            self._file(self._count).write_bytes(part.to_bytes())
        self._count += 1

    def parts(self) -> Iterator[Part]:
        """Yield all parts."""
        for number in range(self._count):
            file = self._file(number)
            yield Part.from_bytes(file.read_bytes(), str(file))

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:06d}.arrow"


@contextmanager
def local_disk(path: Path) -> Iterator[None]:
    """Raise a StorageError that names `path` where the temporary folder cannot be written."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        kind = NoSpaceError if error.errno in {errno.ENOSPC, errno.EDQUOT} else StorageError
        raise kind(
            f"{path} cannot be written ({error.strerror or error}). The index is put together "
            "there; set TMPDIR to a folder with room."
        ) from None
