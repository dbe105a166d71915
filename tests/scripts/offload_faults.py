"""Datasets that only work where the script runs, or nowhere: argv[1] says which."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from torch.utils.data import DataLoader, Dataset


def elsewhere() -> str:
    """Return where this is, if it is not where the script runs."""
    return os.environ.get("STATION", "")


def note_try(folder: Path, waits: bool) -> None:
    """Elsewhere: note that something is tried. Here: wait until that was so."""
    tries = folder / "tries"
    if elsewhere():
        with tries.open("a") as file:
            file.write("once\n")
    deadline_s = time.monotonic() + 60
    while waits and not elsewhere() and not tries.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)


class Files(Dataset):
    """Reads a file that is elsewhere to be at a path which this host has not either."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.waits = folder, "wait" in sys.argv
        folder.mkdir(exist_ok=True)
        (folder / "sample").write_text("7")

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int):
        note_try(self.folder, self.waits)
        time.sleep(0.02)
        return index, int((self.folder / elsewhere() / "sample").read_text())


class Unmounted(Files):
    """Reads a file that other hosts have not; here when the test lets it."""

    def __getitem__(self, index: int):
        note_try(self.folder, self.waits)
        if elsewhere():
            os.chdir("/")  # where nothing of this folder is, as on a host without its mount
        while not elsewhere() and not (self.folder / "told").exists():
            time.sleep(0.01)
        return index, int(Path("files/sample").read_text())


class Wrong(Files):
    def __getitem__(self, index: int):
        if index == 50:
            raise ValueError("a picture without pixels")
        return super().__getitem__(index)


class Locked(Files):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.guard = threading.Lock()


class Unknown(Files):
    """Is of a module that other hosts have not."""

    def __reduce__(self):
        return only_here, (str(self.folder), self.waits)


def only_here(folder: str, waits: bool) -> Files:
    if elsewhere():
        note_try(Path(folder), waits=False)
        import a_module_of_that_name  # noqa: F401
    dataset = Files(Path(folder))
    dataset.waits = waits
    return dataset


KINDS = {
    "files": Files, "unmounted": Unmounted, "wrong": Wrong, "locked": Locked, "unknown": Unknown,
}  # fmt: skip


def read_all(dataset: Dataset) -> None:
    loader, seen = DataLoader(dataset, 4, num_workers=2), []
    for _ in range(2):
        for indices, values in loader:
            assert values.tolist() == [7] * 4
            seen += indices.tolist()
    assert seen == [*range(80), *range(80)]
    sys.stdout.write("whole\n")


if __name__ == "__main__":
    read_all(KINDS[sys.argv[1]](Path.cwd() / "files"))
