"""The checkpoints of one URL: which are whole, which count, which go."""

from __future__ import annotations

import shutil
import warnings
from collections import defaultdict
from pathlib import Path

from headrace.core.errors import CheckpointError, HeadraceError, NotFoundError
from headrace.data.storage import Store
from headrace.train.commit import COMMIT_FILE, Commit, step_folder, step_of


class Catalog:
    """The checkpoints below a store's URL. One rank writes to it; any may read.

    Args:
        store: Where they lie.
        local: The same folder on disk, where it is one.
    """

    def __init__(self, store: Store, local: Path | None) -> None:
        self._store = store
        self._local = local

    def newest(self) -> Commit | None:
        """Return the newest checkpoint that is whole, None without one.

        Whole: it has a commit file, and every file named in it is there in its size. Checksums
        are compared when the files are read.
        """
        folders = self._folders()
        for step in sorted(folders, reverse=True):
            commit = self._commit_in(step, folders[step])
            if commit is not None:
                return commit
        return None

    def add(self, commit: Commit) -> None:
        """Make a checkpoint count, once all its files are there.

        Raises:
            CheckpointError: A file is not there, as this rank sees it.
        """
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
        """Delete all but the `keep` newest checkpoints, and what unfinished saves left behind.

        What cannot be deleted is told in one warning: the checkpoint that was just saved stands.
        """
        try:
            folders = self._folders()
            whole = [step for step in folders if COMMIT_FILE in folders[step]]
            kept = {*sorted(whole)[-keep:], current.step}
            for step in (folders.keys() | self._folders_on_disk()) - kept:
                self._delete_step(step, folders.get(step, {}))
            self._delete_other_saves(current, folders.get(current.step, {}))
        except (HeadraceError, OSError) as error:
            warnings.warn(f"Old checkpoints could not be deleted: {error}", stacklevel=2)

    def _folders(self) -> dict[int, dict[str, int]]:
        """Return of each step's folder its files and their sizes, by path in the folder."""
        folders: dict[int, dict[str, int]] = defaultdict(dict)
        for info in self._store.list():
            step = step_of(info.path)
            if step is not None:
                folders[step][info.path.partition("/")[2]] = info.size_bytes
        return folders

    def _folders_on_disk(self) -> set[int]:
        # Empty ones too: a deletion that was cut short leaves them, and no listing shows them.
        if self._local is None:
            return set()
        steps = {step_of(folder.name) for folder in self._local.iterdir()}
        return {step for step in steps if step is not None}

    def _commit_in(self, step: int, files: dict[str, int]) -> Commit | None:
        if COMMIT_FILE not in files:
            return None
        path = f"{step_folder(step)}/{COMMIT_FILE}"
        try:
            data = bytes(self._store.get(path))
        except NotFoundError:  # deleted since it was listed
            return None
        commit = Commit.from_json(data, f"{self._store.url}/{path}")
        for file in commit.files:
            if files.get(f"{commit.save}/{file.name}") != file.size_bytes:
                return None
        return commit

    def _delete_step(self, step: int, files: dict[str, int]) -> None:
        # The commit first: from then on the folder is no checkpoint, whatever ends this.
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
