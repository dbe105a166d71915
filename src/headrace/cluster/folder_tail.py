"""A folder's files as they grow, sent to where a copy of it grows likewise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MOST_BYTES = 8 << 20  # at a time: what is left comes with the next look


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What a file has more than at the last look.

    Attributes:
        path: The file, from the folder on.
        start: Where the new bytes belong.
        content: The new bytes.
    """

    path: str
    start: int
    content: bytes


class FolderTail:
    """Looks at a folder whose files only grow.

    Args:
        folder: It need not exist yet.
        pattern: What files are looked at, such as `**/rank-*`.
    """

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder = folder
        self._pattern = pattern
        self._seen: dict[Path, int] = {}

    def growth(self) -> list[Growth]:
        """Return what is new since the last call, some megabytes at most; the rest comes later."""
        grown: list[Growth] = []
        for path in sorted(self._folder.glob(self._pattern)):
            left = _MOST_BYTES - sum(len(growth.content) for growth in grown)
            with suppress(OSError):  # it went away as it was looked at
                grown += self._growth_of(path, left)
        return grown

    def _growth_of(self, path: Path, most_bytes: int) -> list[Growth]:
        seen = self._seen.get(path, 0)
        if not path.is_file() or (path in self._seen and path.stat().st_size <= seen):
            return []
        with path.open("rb") as file:
            file.seek(seen)
            content = file.read(most_bytes)
        if not content and path in self._seen:
            return []
        self._seen[path] = seen + len(content)
        relative = path.relative_to(self._folder).as_posix()
        return [Growth(path=relative, start=seen, content=content)]


def grow(folder: Path, growths: Sequence[Growth]) -> None:
    """Have a copy of the folder grow likewise; raises OSError where it cannot be written."""
    for growth in growths:
        path = folder / growth.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(growth.start)
            file.write(growth.content)
