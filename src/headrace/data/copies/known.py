"""Which content the objects of a URL have, as far as they were ever fetched."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from headrace.core.hashes import sha256
from headrace.data.copies.folders import CacheFolders
from headrace.data.copies.listing import version_of
from headrace.data.storage import ObjectInfo, safe_url


class KnownContents:
    """A file to which any process adds lines; one that a killed process left half is passed over.

    Args:
        folders: The cache's.
        url: The URL below which the objects lie; its secrets are left out.
        is_read: Whether what it tells is needed; else it is added to alone.
    """

    def __init__(self, folders: CacheFolders, url: str, *, is_read: bool = True) -> None:
        state = sha256()
        state.update(safe_url(url).rstrip("/").encode())
        self._file: Path = folders.folder / "known" / state.hexdigest()[:32]
        self._contents = self._read() if is_read else {}
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self._file, flags, 0o644)

    def get(self, info: ObjectInfo) -> str | None:
        """Return the content of an object; None: it was never fetched."""
        return self._contents.get((info.path, version_of(info), info.size_bytes))

    def add(self, contents: Sequence[tuple[ObjectInfo, str]]) -> None:
        """Note the contents of objects that are on disk; raises OSError."""
        lines = []
        for info, content in contents:
            key = (info.path, version_of(info), info.size_bytes)
            self._contents[key] = content
            # Its own newline comes first, so that half a line of another spoils no whole one.
            lines.append(f"\n{json.dumps([*key, content])}")
        os.write(self._descriptor, "".join(lines).encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _read(self) -> dict[tuple[str, str, int], str]:
        contents = {}
        try:
            lines = self._file.read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        for line in lines:
            try:
                path, version, size_bytes, content = json.loads(line)
            except ValueError:
                continue
            contents[path, version, size_bytes] = content
        return contents
