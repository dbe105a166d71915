"""Where the data of a job's channels are on this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from headrace.core.errors import UsageError


def find_channels(sources: Mapping[str, str]) -> dict[str, Path]:
    """Return where each channel's data are, as absolute paths.

    Args:
        sources: URLs or paths, by the channels' names.

    Raises:
        UsageError: There is nothing, or nothing that may be read.
    """
    return {name: _local(name, source) for name, source in sources.items()}


def _local(name: str, source: str) -> Path:
    path = Path(source.removeprefix("file://")).expanduser().absolute()
    said = f"--channel {name}={source}"
    if not path.exists():
        raise UsageError(f"{said}: there is no {path}. Name a folder, a file, or a URL.")
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise UsageError(f"{said}: {path} may not be read. Run `chmod -R +rX {path}`.")
    if path.is_dir() and not any(path.iterdir()):
        raise UsageError(f"{said}: the folder {path} is empty. Name one that holds data.")
    return path
