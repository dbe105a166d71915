"""The checkpoints below a URL: catalog, checksummed transfer, temporary folders.

The commit file names all files of a checkpoint and is written last. A temporary folder is removed
even after its process was killed, by the next process that needs one.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections import defaultdict
from functools import reduce
from pathlib import Path

import google_crc32c

from headrace.core.errors import CheckpointError, HeadraceError, NotFoundError
from headrace.data.storage import Store, pieces_of
from headrace.data.storage.repeated_reads import read_sound
from headrace.data.storage.store import split_span
from headrace.train.checkpoint_commit import (
    COMMIT_FILE,
    Commit,
    SavedFile,
    step_folder,
    step_of,
)


class CheckpointCatalog:
    """The checkpoints below a store's URL, a `local` folder, too. One rank writes; any may read."""

    def __init__(self, store: Store, local: Path | None) -> None:
        self._store = store
        self._local = local

    def newest(self) -> Commit | None:
        """Return the newest complete checkpoint, or None.

        Complete: it has a commit file, and every file named in it exists in its size. Checksums
        are compared when the files are read.
        """
        folders = self._folders()
        commits = (self._commit_in(step, folders[step]) for step in sorted(folders, reverse=True))
        return next((commit for commit in commits if commit is not None), None)

    def add(self, commit: Commit) -> None:
        """Write a commit file; CheckpointError: a file does not exist, as this rank sees it."""
        folder = f"{step_folder(commit.step)}/{commit.save}"
        there = {info.path: info.size_bytes for info in self._store.list(folder)}
        for file in commit.files:
            if there.get(f"{folder}/{file.name}") != file.size_bytes:
                raise CheckpointError(
                    f"{self._store.url}/{folder}/{file.name} was written by its rank and is not "
                    "there for rank 0. Use a folder that all hosts share, or a bucket."
                )
        self._store.put(f"{step_folder(commit.step)}/{COMMIT_FILE}", commit.to_json())

    def prune(self, current: Commit, keep: int) -> None:
        """Delete all but the `keep` newest checkpoints, and files of unfinished saves, or warn."""
        try:
            folders = self._folders()
            whole = [step for step in folders if COMMIT_FILE in folders[step]]
            remaining = {*sorted(whole)[-keep:], current.step}
            for step in (folders.keys() | self._folders_on_disk()) - remaining:
                self._delete_step(step, folders.get(step, {}))
            self._delete_other_saves(current, folders.get(current.step, {}))
        except (HeadraceError, OSError) as error:
            warnings.warn(f"Old checkpoints could not be deleted: {error}", stacklevel=2)

    def _folders(self) -> dict[int, dict[str, int]]:
        """Return for each step's folder its files' sizes, by path in the folder."""
        folders: dict[int, dict[str, int]] = defaultdict(dict)
        for info in self._store.list():
            step = step_of(info.path)
            if step is not None:
                folders[step][info.path.partition("/")[2]] = info.size_bytes
        return folders

    def _folders_on_disk(self) -> set[int]:
        # Empty ones too: an interrupted deletion leaves them, and no listing shows them.
        if self._local is None:
            return set()
        steps = {step_of(folder.name) for folder in self._local.iterdir()}
        return {step for step in steps if step is not None}

    def _commit_in(self, step: int, files: dict[str, int]) -> Commit | None:
        if COMMIT_FILE not in files:
            return None
        path = f"{step_folder(step)}/{COMMIT_FILE}"
        try:
            commit = read_sound(
                lambda: Commit.from_json(bytes(self._store.get(path)), f"{self._store.url}/{path}"),
                CheckpointError,
            )
        except NotFoundError:  # deleted since it was listed
            return None
        is_whole = all(
            files.get(f"{commit.save}/{file.name}") == file.size_bytes for file in commit.files
        )
        return commit if is_whole else None

    def _delete_step(self, step: int, files: dict[str, int]) -> None:
        # The commit first: from then on the folder is no checkpoint, even if this is interrupted.
        self._store.delete(f"{step_folder(step)}/{COMMIT_FILE}")
        for path in files:
            self._store.delete(f"{step_folder(step)}/{path}")
        if self._local is not None:
            shutil.rmtree(self._local / step_folder(step), ignore_errors=True)

    def _delete_other_saves(self, current: Commit, files: dict[str, int]) -> None:
        folder = step_folder(current.step)
        others = {path.partition("/")[0] for path in files} - {COMMIT_FILE, current.save}
        for path in files:
            if path.partition("/")[0] in others:
                self._store.delete(f"{folder}/{path}")
        if self._local is not None:
            for other in others:
                shutil.rmtree(self._local / folder / other, ignore_errors=True)


_PIECE_BYTES = 32 * 2**20


def rank_files(folder: Path, rank: int) -> list[Path]:
    """Return the files that a rank wrote into `folder`, and delete empty ones.

    torch names a rank's files __<rank>_<number>.distcp; rank 0 also writes .metadata. A rank whose
    tensors were all written by others leaves an empty file.
    """
    found = sorted(folder.glob(f"__{rank}_*"))
    for file in found:
        if file.stat().st_size == 0:
            file.unlink()
    nonempty = [file for file in found if file.exists()]
    return [*nonempty, folder / ".metadata"] if rank == 0 else nonempty


def describe_file(file: Path) -> SavedFile:
    """Return a local file's name, size and checksum."""
    crc32c = reduce(google_crc32c.extend, pieces_of(file), 0)
    return SavedFile(name=file.name, size_bytes=file.stat().st_size, crc32c=crc32c)


def fetch_file(saved: SavedFile, store: Store, folder: str, destination: Path | None) -> None:
    """Read and verify a file, and write it to a destination, if any; raises CheckpointError."""
    path = f"{folder}/{saved.name}"
    target = Path(os.devnull) if destination is None else destination / saved.name
    try:
        if store.head(path).size_bytes != saved.size_bytes:
            what = f"it has not the {saved.size_bytes} bytes it was saved with"
            raise _damaged_error(store, path, what)
        read_sound(lambda: _copy_file(saved, store, path, target), CheckpointError)
    except NotFoundError as error:
        raise _damaged_error(store, path, "it is missing") from error


def _copy_file(saved: SavedFile, store: Store, path: str, target: Path) -> None:
    """Copy a file from the store; CheckpointError: its checksum differs."""
    crc32c = 0
    with target.open("wb") as copy:
        for start, length in split_span(0, saved.size_bytes, _PIECE_BYTES):
            piece = bytes(store.get_range(path, start, length))
            crc32c = google_crc32c.extend(crc32c, piece)
            copy.write(piece)
    if crc32c != saved.crc32c:
        raise _damaged_error(store, path, "its checksum differs from the one it was saved with")


def _damaged_error(store: Store, path: str, what: str) -> CheckpointError:
    step = path.partition("/")[0]
    return CheckpointError(
        f"The checkpoint {store.url}/{step} is damaged: {path.partition('/')[2]}: {what}. Delete "
        f"the folder {step} to go on from the checkpoint before it."
    )
