"""The manifest of a host's synced files, written after the files, and their checksums.

A restarted job reads only files in manifests, so it sees a checkpoint of several files whole or not
at all. Manifests are numbered; of two writers of one number, the store accepts one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from headrace.core.errors import CheckpointError, UsageError
from headrace.core.lazy import blake2b
from headrace.data.storage.urls import check_path

_PIECE_BYTES = 4 * 1024 * 1024
_SIZE_BYTES = 16


def new_checksum() -> hashlib.blake2b:
    """Return the state of a new checksum."""
    return hashlib.blake2b(digest_size=_SIZE_BYTES)


def file_checksum(path: Path) -> str:
    """Return a file's checksum in hexadecimal digits; raises OSError."""
    digest = new_checksum()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedFile:
    """One synced file of a host."""

    name: str  # its path relative to the synced folder, with "/" between folders
    size_bytes: int
    checksum: str  # BLAKE2b of its bytes, 16 bytes long, in hexadecimal digits
    mtime_ns: int
    stored_as: str  # the object that holds its bytes, relative to the URL; "" for a link
    link: str = ""  # the target of a link, relative to its own folder; "": it is a file


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncManifest:
    """All files of one host at one moment."""

    host: str
    generation: int  # 1 for the host's first manifest, increased by one for each
    owner: str  # a unique name of the process that wrote it
    saved_s: float  # when it was written, in seconds since 1970 (UTC)
    files: Mapping[str, SyncedFile]  # by name

    def to_json(self) -> bytes:
        """Return the manifest as an object's bytes."""
        fields = {
            "version": _FORMAT_VERSION, "host": self.host, "generation": self.generation,
            "owner": self.owner, "saved_s": self.saved_s,
            "files": [asdict(self.files[name]) for name in sorted(self.files)],
        }  # fmt: skip
        return json.dumps({**fields, "checksum": _checksum(fields)}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, url: str) -> SyncManifest:
        """Return the manifest in an object's bytes.

        Raises CheckpointError (they are no manifest, damaged, or of a later format).
        """
        try:
            fields = json.loads(data)
            checksum = fields.pop("checksum")
            if fields["version"] != _FORMAT_VERSION:
                raise CheckpointError(
                    f"{url} has format {fields['version']}; this Headrace reads {_FORMAT_VERSION}. "
                    "Install the version that wrote it, or a newer one."
                )
            if checksum != _checksum(fields):
                raise CheckpointError(f"{url} is damaged: its checksum differs.")
            files = {file["name"]: SyncedFile(**file) for file in fields["files"]}
            for file in files.values():
                _check_file(file)
            return cls(
                host=str(fields["host"]), generation=int(fields["generation"]),
                owner=str(fields["owner"]), saved_s=float(fields["saved_s"]), files=files,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{url} is no manifest of a kept folder: {error}.") from error


def is_outside_folder(name: str, link: str) -> bool:
    """Whether a link of this name leads out of the synced folder."""
    if PurePosixPath(link).is_absolute():
        return True
    depth = len(PurePosixPath(name).parts) - 1
    for part in PurePosixPath(link).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


def _check_file(file: SyncedFile) -> None:
    check_path(file.name)
    if file.link:
        if is_outside_folder(file.name, file.link):
            raise UsageError(f"the link {file.name} leads out of its folder")
    else:
        check_path(file.stored_as)


def _checksum(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), _SIZE_BYTES).hex()
