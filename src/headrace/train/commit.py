"""The file that makes a checkpoint one: what belongs to it, written last."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from headrace.core.errors import CheckpointError

COMMIT_FILE = "commit.json"
_FORMAT_VERSION = 1
_STEP_FOLDER = re.compile(r"step-(\d{12})")
_PLAIN_NAME = re.compile(r"[\w.-]*\w[\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """One file of a checkpoint.

    Attributes:
        name: Its name in the save's folder.
        size_bytes: Its size.
        crc32c: CRC-32C (Castagnoli) of its bytes.
    """

    name: str
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A whole checkpoint.

    Attributes:
        step: The step it was saved at.
        save: Name of the folder with its files, below the step's. Each save has its own, so what
            an attempt left behind, or one that was fenced still writes, is never part of it.
        world_size: How many ranks saved it.
        saved_s: When, in seconds since 1970 (UTC).
        files: All its files.
        loader: The loader's state, if one was saved: one entry for all ranks where theirs were
            equal, else one a rank.
        extra: What the script added.
    """

    step: int
    save: str
    world_size: int
    saved_s: float
    files: tuple[SavedFile, ...]
    loader: tuple[Any, ...] | None = None
    extra: Any = None

    def to_json(self) -> bytes:
        """Return the commit file's bytes."""
        return json.dumps({"version": _FORMAT_VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, url: str) -> Commit:
        """Return the commit in a file's bytes.

        Raises:
            CheckpointError: They are none, or of a later format.
        """
        try:
            told = json.loads(data)
            version = told.pop("version")
            if version != _FORMAT_VERSION:
                raise CheckpointError(
                    f"{url} has format {version}; this Headrace reads {_FORMAT_VERSION}. Install "
                    "the version that wrote it, or a newer one."
                )
            files = tuple(SavedFile(**file) for file in told.pop("files"))
            loader = told.pop("loader")
            commit = cls(files=files, loader=None if loader is None else tuple(loader), **told)
            _check_names([commit.save, *(file.name for file in files)])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"{url} is no commit of a checkpoint: {error}. Delete the checkpoint's folder to "
                "go on from the one before it."
            ) from error
        return commit


def step_folder(step: int) -> str:
    """Return the name of a step's folder."""
    return f"step-{step:012d}"


def step_of(path: str) -> int | None:
    """Return the step to whose folder an object's path belongs; None where to none."""
    match = _STEP_FOLDER.fullmatch(path.partition("/")[0])
    return int(match[1]) if match else None


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if not _PLAIN_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no file's name")
