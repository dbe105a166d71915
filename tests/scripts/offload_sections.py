"""Map-style datasets on auxiliary hosts, a section after another; prints a line for each.

The datasets need no torch, so that processes which make their samples start without it. Several
sections share one loader, whose dataset changes between its epochs. The last one fails everywhere.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, RandomSampler

import headrace

SCALE = 1
OTHER_FOLDER = Path(sys.argv[1])


def server() -> str:
    """Return the name of the auxiliary host that this is; empty where the script runs."""
    return os.environ.get("SERVER", "")


def wait_for(mark: Path) -> None:
    deadline_s = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)


def note_attempt(folder: Path) -> None:
    """Note an attempt on an auxiliary host; where the script runs, wait for the first."""
    if server():
        with (folder / "attempts").open("a") as file:
            file.write("once\n")
    else:
        wait_for(folder / "attempts")


class Files:
    """Reads a file whose path on auxiliary hosts is one that nobody has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "sample").write_text("7")

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> tuple[int, int]:
        note_attempt(self.folder)
        time.sleep(0.01)
        return index, int((self.folder / server() / "sample").read_text())


class Unmounted(Files):
    """Reads a file that auxiliary hosts lack; where the script runs, once the test allows it."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        note_attempt(self.folder)
        if server():
            os.chdir("/")  # where nothing of this folder is, as on a host without its mount
        else:
            wait_for(self.folder / "reported")
        return index, int(Path(self.folder.name, "sample").read_text())


class Wrong(Files):
    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == 50:
            raise ValueError("a picture without pixels")
        return super().__getitem__(index)


class Locked(Files):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.guard = threading.Lock()

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, 7


class Unknown(Files):
    """Belongs to a module that auxiliary hosts lack."""

    def __reduce__(self):
        return only_here, (str(self.folder),)


def only_here(folder: str) -> Files:
    if server():
        note_attempt(Path(folder))
        import a_module_of_that_name  # noqa: F401
    return Files(Path(folder))


class Growing:
    """Adds what the script has set since."""

    add = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[int, str]:
        time.sleep(0.01)
        return index + self.add, server() or "here"


class SlowOnAuxiliary:
    """Is slow on auxiliary hosts; where the script runs, it waits until these are at work."""

    add = 0

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        mark = Path(f"others-{self.add}")
        if server():
            mark.touch()
            time.sleep(0.15)
        wait_for(mark)
        return index + self.add


class Hanging:
    """Hangs on auxiliary hosts, as with a network drive that is gone there."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        mark = Path("others-hang")
        if server():
            mark.touch()
            time.sleep(1000)
        wait_for(mark)
        time.sleep(0.005)
        return index


class HostState:
    """Returns what is found where a sample is made."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[str, str, str, str]:
        time.sleep(0.01)
        variables = os.environ.get("CHANGED"), os.environ.get("REMOVED")
        maker = server() or "here"
        return maker, str(hash("a text")), repr(variables), Path("content").read_text()


class Current:
    """The dataset of the shared loader: the one that a section has set."""

    def __init__(self) -> None:
        self.dataset: object = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int):
        return self.dataset[index]


CURRENT = Current()
SHARED = DataLoader(CURRENT, batch_size=2, num_workers=2)


def read_files(dataset: Files, loader: DataLoader | None = None) -> list[list[int]]:
    """Return the samples of two epochs."""
    loader = loader or DataLoader(dataset, 2, num_workers=2)
    epochs = []
    for _ in range(2):
        batches = [(indices.tolist(), values.tolist()) for indices, values in loader]
        assert all(value == 7 for _, values in batches for value in values)
        epochs.append([index for indices, _ in batches for index in indices])
    return epochs


def epochs_left() -> dict:
    """Leave every second epoch, and change the dataset before each."""
    CURRENT.dataset = dataset = Growing()
    makers, turns = set(), []
    for turn in range(6):
        dataset.add, seen = 1000 * turn, []
        for indices, made_by in SHARED:
            seen += indices.tolist()
            makers.update(made_by)
            if turn % 2 and len(seen) == 10:
                break
        turns.append(seen)
    return {"turns": turns, "makers": sorted(makers)}


def slow_epochs_left() -> list[list[int]]:
    """Leave epochs while an auxiliary host makes batches of them."""
    CURRENT.dataset = dataset = SlowOnAuxiliary()
    turns = []
    for turn in range(4):
        dataset.add, seen = 1000 * turn, []
        for batch in SHARED:
            seen += batch.tolist()
            if turn < 3 and len(seen) == 4:
                break
        turns.append(seen)
    return turns


def hanging() -> list[list[int]]:
    CURRENT.dataset = Hanging()
    return [[index for batch in SHARED for index in batch.tolist()] for _ in range(2)]


def environment(loader) -> list:
    """Return what samples find, here and on servers, before and after the script changes it."""
    CURRENT.dataset, before = HostState(), Path.cwd()
    os.environ |= {"CHANGED": "at first", "REMOVED": "there"}
    found = [all_that_is_found(loader)]
    os.environ["CHANGED"] = "later"
    del os.environ["REMOVED"]
    os.chdir(OTHER_FOLDER)
    found.append(all_that_is_found(loader))
    os.chdir(before)
    return found


def all_that_is_found(loader) -> list[list[str]]:
    """Return the different things that are found, by epochs until both sides have made some."""
    makers, found = set(), set()
    while makers != {"here", "one"}:
        for batch in loader:
            for maker, *rest in zip(*batch, strict=True):
                makers.add(maker)
                found.add(tuple(rest))
    return sorted(map(list, found))


class Batch:
    """Counts its own uses, in this process."""

    used = 0

    def __init__(self, samples: list) -> None:
        self.values = torch.stack(samples)

    def scaled(self) -> torch.Tensor:
        Batch.used += 1
        return self.values * SCALE


class BadSampleError(ValueError):
    pass


class Numbers:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 21:
            raise BadSampleError("twenty-one")
        return torch.tensor([index / 3, float(os.environ["OF_THE_SCRIPT"])])


def own_classes() -> dict:
    """Return what comes of a script's own classes, settings and errors."""
    global SCALE  # noqa: PLW0603 - as scripts do
    SCALE = 2
    os.environ["OF_THE_SCRIPT"] = "7"
    torch.set_default_dtype(torch.float64)
    batches, errors = [], []
    iterator = iter(DataLoader(Numbers(), 4, num_workers=2, collate_fn=Batch))
    while True:
        try:
            batches.append(next(iterator).scaled())
        except StopIteration:
            break
        except BadSampleError as error:
            errors.append(str(error))
    torch.set_default_dtype(torch.float32)
    return {
        "errors": errors,
        "used": [Batch.used, len(batches)],
        "dtypes": sorted({str(batch.dtype) for batch in batches}),
        "values": torch.cat(batches)[:, 1].unique().tolist(),
    }


class Trainer:
    """Holds its loader, and is held by it."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.loader = DataLoader(
            range(30),
            3,
            num_workers=1,
            persistent_workers=True,
            collate_fn=self.collate,
            sampler=RandomSampler(range(30), generator=self.generator),
        )

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name != "generator"}

    def collate(self, samples: list) -> list:
        return samples


def train() -> None:
    trainer = Trainer()
    orders = [[index for batch in trainer.loader for index in batch] for _ in range(3)]
    again = torch.Generator().manual_seed(3)
    assert orders == [list(RandomSampler(range(30), generator=again)) for _ in range(3)]


def look_once() -> None:
    next(iter(DataLoader(range(20), 2, num_workers=1)))


def leave() -> None:
    loader = DataLoader(range(20), 2, num_workers=1, persistent_workers=True)
    for _ in loader:
        break


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def let_go() -> dict[str, list[int]]:
    """Return how many files are open before and after loaders are made and let go of."""
    found = {}
    for way in (look_once, leave, train):
        before = open_files()
        way()
        found[way.__name__] = [before, open_files()]
    return found


SECTIONS: dict[str, Callable[[], object]] = {
    "files": lambda: read_files(Files(Path.cwd() / "files")),
    "unmounted": lambda: read_files(Unmounted(Path.cwd() / "unmounted")),
    "unknown": lambda: read_files(Unknown(Path.cwd() / "unknown")),
    "locked": lambda: read_files(Locked(Path.cwd() / "locked")),
    "epochs left": epochs_left,
    "slow epochs left": slow_epochs_left,
    "hanging": hanging,
    "environment, torch": lambda: environment(SHARED),
    "environment, headrace": lambda: environment(headrace.DataLoader(CURRENT, 4, num_workers=1)),
    "own classes": own_classes,
    "let go": let_go,
}


if __name__ == "__main__":
    for name, section in SECTIONS.items():
        try:
            result = section()
        except Exception:  # noqa: BLE001 - the other sections are other tests'
            sys.stderr.write(f"section {name} failed: {traceback.format_exc()}")
        else:
            sys.stdout.write(json.dumps({"section": name, "result": result}) + "\n")
    CURRENT.dataset = Wrong(Path.cwd() / "files")
    read_files(CURRENT.dataset, SHARED)
