"""The commit file of a checkpoint, which names all its files, and the folders of steps."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.core.errors import CheckpointError
from headrace.core.json_checksum import CHECKSUM, fields_checksum, take_checksum

COMMIT_FILE = "commit.json"
_FORMAT_VERSION = 1
_STEP_FOLDER = re.compile(r"step-([0-9]{12}|[1-9][0-9]{12,})")  # as `step_folder` names it
_PLAIN_NAME = re.compile(r"[\w.-]*\w[\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """One file of a checkpoint."""

    name: str  # in the save's folder
    size_bytes: int
    crc32c: int  # CRC-32C (Castagnoli) of its bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A complete checkpoint."""

    step: int
    save: str
    """Name of the folder with its files, below the step's. Each save has its own, so files of an
    earlier attempt, or of one that is still writing, are never part of it."""
    world_size: int  # ranks that saved it
    saved_s: float  # since 1970 (UTC)
    files: tuple[SavedFile, ...]
    loader: tuple[Any, ...] | None = None
    """The loader's state, if one was saved: one entry for all ranks where theirs were equal, else
    one a rank."""
    extra: Any = None  # the script's

    def to_json(self) -> bytes:
        """Return the commit file's bytes."""
        values = {"loader": _with_text_keys(self.loader), "extra": _with_text_keys(self.extra)}
        fields = asdict(replace(self, loader=None, extra=None)) | values
        fields = {"version": _FORMAT_VERSION, **fields}
        return json.dumps({**fields, CHECKSUM: fields_checksum(fields)}, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, url: str) -> Commit:
        """Return the commit that bytes hold; CheckpointError: none, or of a later format."""
        try:
            entries = json.loads(data)
            version = entries["version"]
            if version != _FORMAT_VERSION:
                raise CheckpointError(
                    f"{url} has format {version}; this Headrace reads {_FORMAT_VERSION}. Install "
                    "the version that wrote it, or a newer one."
                )
            take_checksum(entries)
            del entries["version"]
            files = tuple(SavedFile(**file) for file in entries.pop("files"))
            loader = _with_own_keys(entries.pop("loader"))
            extra = _with_own_keys(entries.pop("extra", None))
            loaders = None if loader is None else tuple(loader)
            commit = cls(files=files, loader=loaders, extra=extra, **entries)
            for name in (commit.save, *(file.name for file in files)):
                if not _PLAIN_NAME.fullmatch(name):
                    raise ValueError(f"{name!r} is no file's name")  # noqa: TRY301
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"{url} is no commit of a checkpoint: {error}. Delete the checkpoint's folder to "
                "go on from the one before it."
            ) from error
        return commit


def json_copy(value: Any) -> Any:
    """Return a value as it is read back from a commit: dicts keep their keys, tuples are lists.

    Raises TypeError, ValueError, RecursionError (it is not made of what JSON has, or has no end).
    """
    return _with_own_keys(json.loads(json.dumps(_with_text_keys(value))))


_PAIRS = "headrace-pairs"


def _with_text_keys(value: Any) -> Any:
    """Return a value with dicts that have other keys than texts as lists of pairs.

    JSON would make texts of them: a scheduler's {30: 1} would come back as {"30": 1}, in which no
    epoch is found.
    """
    if isinstance(value, dict):
        if _PAIRS not in value and all(isinstance(key, str) for key in value):
            return {key: _with_text_keys(each) for key, each in value.items()}
        if odd := [key for key in value if not isinstance(key, str | int | float | None)]:
            raise TypeError(f"a dict has the key {odd[0]!r}, a {type(odd[0]).__name__}")
        return {_PAIRS: [[key, _with_text_keys(each)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        return [_with_text_keys(each) for each in value]
    return value


def _with_own_keys(value: Any) -> Any:
    """Return the value that `_with_text_keys` was given."""
    if isinstance(value, dict):
        if value.keys() == {_PAIRS}:
            return {key: _with_own_keys(each) for key, each in value[_PAIRS]}
        return {key: _with_own_keys(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_own_keys(each) for each in value]
    return value


def step_folder(step: int) -> str:
    """Return the name of a step's folder."""
    return f"step-{step:012d}"


def step_of(path: str) -> int | None:
    """Return the step whose folder contains an object's path, or None."""
    match = _STEP_FOLDER.fullmatch(path.partition("/")[0])
    return int(match[1]) if match else None
