"""A folder's files as they grow, sent to where a copy of it grows likewise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_MOST_BYTES = 1 << 20  # of one file at a time: what is left comes with the next look


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
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, int] = {}

    def growth(self) -> list[Growth]:
        """Return what is new since the last call; a big file's comes in pieces."""
        grown = []
        for path in sorted(self._folder.rglob("*")):
            seen = self._seen.get(path, 0)
            if not path.is_file() or (path in self._seen and path.stat().st_size <= seen):
                continue
            with path.open("rb") as file:
                file.seek(seen)
                content = file.read(_MOST_BYTES)
            self._seen[path] = seen + len(content)
            relative = path.relative_to(self._folder).as_posix()
            grown.append(Growth(path=relative, start=seen, content=content))
        return grown


def grow(folder: Path, growths: Sequence[Growth]) -> None:
    """Have a copy of the folder grow likewise; raises OSError where it cannot be written."""
    for growth in growths:
        path = folder / growth.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(growth.start)
            file.write(growth.content)
