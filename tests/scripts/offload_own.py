"""What a script defines and sets itself: classes, their state, library settings, errors."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

import headrace

SCALE = 1


class Batch:
    """Counts how many there have been, in this process."""

    seen = 0

    def __init__(self, samples: list) -> None:
        self.values = torch.stack(samples)

    def scaled(self) -> torch.Tensor:
        Batch.seen += 1
        return self.values * SCALE


class BadSampleError(ValueError):
    pass


class Numbers(Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 21:
            raise BadSampleError("twenty-one")
        return torch.tensor([index / 3, float(os.environ["OF_THE_SCRIPT"])])


class Trainer:
    """Holds its loader, and is held by it."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.loader = DataLoader(
            range(30), 3, num_workers=1, persistent_workers=True, collate_fn=self.collate,
            sampler=RandomSampler(range(30), generator=self.generator),
        )  # fmt: skip

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name != "generator"}

    def collate(self, samples: list) -> list:
        return samples


def numbers_come_as_they_would() -> None:
    batches, errors = [], []
    iterator = iter(DataLoader(Numbers(), 4, num_workers=2, collate_fn=Batch))
    while True:
        try:
            batches.append(next(iterator).scaled())
        except StopIteration:
            break
        except BadSampleError as error:
            errors.append(error)
    assert [str(error) for error in errors] == ["twenty-one"]
    assert Batch.seen == len(batches) == 9, (Batch.seen, len(batches))
    assert all(batch.dtype == torch.float64 for batch in batches)
    assert torch.cat(batches)[:, 1].unique().tolist() == [7 * SCALE]


class Finds(Dataset):
    """Tells what is found where a sample is made."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple:
        time.sleep(0.01)
        variables = os.environ.get("CHANGED"), os.environ.get("REMOVED")
        maker = os.environ.get("STATION", "here")
        return maker, hash("a text"), variables, Path("content").read_text()


def all_find_the_same(kind: type, folder: Path) -> None:
    """Have batches made here and elsewhere, and again after variables and folder have changed."""
    loader = kind(Finds(), 4, num_workers=1, collate_fn=list)
    os.environ["CHANGED"] = "at first"
    os.environ["REMOVED"] = "there"
    (hashed, *found) = what_is_found(loader)
    assert found == [("at first", "there"), "of the job"], found
    os.environ["CHANGED"] = "later"
    del os.environ["REMOVED"]
    os.chdir(folder)
    assert what_is_found(loader) == (hashed, ("later", None), "of another folder")


def what_is_found(loader) -> tuple:
    """Return what is found alike here and elsewhere, by epochs until both have made some."""
    makers, found = set(), set()
    while makers != {"here", "one"}:
        for maker, *rest in (sample for batch in loader for sample in batch):
            makers.add(maker)
            found.add(tuple(rest))
    (same,) = found
    return same


if __name__ == "__main__":
    if len(sys.argv) > 1:
        own = sys.argv[1] == "headrace"
        all_find_the_same(headrace.DataLoader if own else DataLoader, Path(sys.argv[2]))
        sys.exit()
    torch.set_default_dtype(torch.float64)
    os.environ["OF_THE_SCRIPT"] = "7"
    SCALE = 2
    numbers_come_as_they_would()
    trainer = Trainer()
    orders = [[index for batch in trainer.loader for index in batch] for _ in range(3)]
    again = torch.Generator().manual_seed(3)
    assert orders == [list(RandomSampler(range(30), generator=again)) for _ in range(3)]
    sys.stdout.write("whole\n")
