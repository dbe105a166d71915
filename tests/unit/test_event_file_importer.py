"""Names of what a script writes for TensorBoard in several folders: one series each."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from headrace.decide.experiments.event_file_importer import EventFileImporter
from headrace.decide.experiments.spool import SpoolWriter, now_ms, read_spool


def write(spool: Path, folder: Path, value: float, attempt: int = 1) -> None:
    """Write a scalar `loss` to a folder, as a rank's script does, and note the file."""
    writer = SummaryWriter(str(folder))
    writer.add_scalar("loss", value, 0)
    writer.close()
    (file,) = folder.glob("events.out.*")
    noted = SpoolWriter(spool)
    noted.add({
        "kind": "event_file", "at_ms": now_ms(), "path": str(file), "rank": 0, "attempt": attempt,
        "restart": 0,
    })  # fmt: skip
    noted.close()


def series(spool: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for entries, _ in read_spool(spool, {}):
        for entry in entries:
            for name, value in entry.get("values", {}).items():
                found[name].append(value)
    return dict(found)


@pytest.mark.parametrize("read", ["at once", "as they come", "by another process each time"])
@pytest.mark.parametrize(
    "names",
    [
        {"events/main": "loss", "events/val": "val/loss"},
        {
            "logs/fold_0/version_0": "loss",
            **{f"logs/fold_{n}/version_0": f"fold_{n}/version_0/loss" for n in range(1, 5)},
        },
        {
            "lr0.1/train": "loss", "lr0.1/val": "val/loss", "lr0.01/train": "lr0.01/train/loss",
            "lr0.01/val": "lr0.01/val/loss",
        },
        {"a/x/m": "loss", "b/x/m": "b/x/m/loss", "b/y/m": "y/m/loss", "c/y/m": "c/y/m/loss"},
        {"logs": "loss", "logs/0": "0/loss", "logs/1": "1/loss"},
    ],
)  # fmt: skip
def test_each_folder_has_series_of_its_own_whenever_it_is_read(
    tmp_path: Path, names: dict[str, str], read: str
):
    spool = tmp_path / "spool"
    importer = EventFileImporter(spool)
    for number, folder in enumerate(names):
        write(spool, tmp_path / folder, number)
        if read != "at once":
            importer.copy()
        if read == "by another process each time":
            importer = EventFileImporter(spool)
    importer.copy(is_last=True)
    assert series(spool) == {name: [number] for number, name in enumerate(names.values())}


def test_series_go_on_with_the_next_attempt_and_hyperparameters_are_of_the_folder_around_theirs(
    tmp_path: Path,
):
    spool = tmp_path / "spool"
    for attempt in (1, 2):
        for number, name in enumerate(("main", "val", "main/1712345678.25")):
            folder = tmp_path / f"events-{attempt}" / name
            write(spool, folder, 10 * attempt + number, attempt)
        EventFileImporter(spool).copy(is_last=True)
    assert series(spool) == {"loss": [10, 12, 20, 22], "val/loss": [11, 21]}
