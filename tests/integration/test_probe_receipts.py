"""What taking batches from torch's workers costs a rank is told apart from waiting for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.records.reading import open_records
from jobs import run

SCRIPT = """
import gc, sys, time, weakref
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        time.sleep(0.1)
        return torch.zeros(1000), index

net = torch.nn.Linear(1000, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batches = DataLoader(Slow(), batch_size=4, num_workers=int(sys.argv[1]), persistent_workers="keep" in sys.argv)
for _ in range(2):
    for x, _ in batches:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
gc.disable()
iterator = iter(DataLoader(Slow(), batch_size=4, num_workers=1))
next(iterator)
known = weakref.ref(iterator)
del iterator
assert known() is None, "an iterator that nobody has any more still has its workers"
"""  # noqa: E501 - a script


def fetches(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    (folder / "train.py").write_text(SCRIPT)
    ended = run(folder, "--run-dir", "r", "train.py", *arguments)
    assert ended.returncode == 0, ended.stderr
    rows = open_records(folder / "r").table("fetches").to_pylist()
    found = [row for row in rows if row["loader"] == 0 and not row["ended"]]
    assert [(row["epoch"], row["batch"]) for row in found] == [
        (epoch, batch) for epoch in range(2) for batch in range(5)
    ]
    return found


@pytest.mark.parametrize("arguments", [("1",), ("1", "keep")])
def test_each_batch_is_taken_once_and_waiting_for_it_does_not_count(
    tmp_path: Path, arguments: tuple[str, ...]
):
    found = fetches(tmp_path, *arguments)
    assert all(0 < row["receive_ns"] <= row["wait_ns"] for row in found)
    assert all(0 < row["receive_cpu_ns"] <= row["receive_ns"] for row in found)
    received, waited = (sum(row[name] for row in found) for name in ("receive_ns", "wait_ns"))
    assert waited > 10 * 4 * 100e6 * 0.3  # so long its sleeps take, while the rank has a core
    assert received < waited / 2


def test_without_workers_nothing_is_taken(tmp_path: Path):
    found = fetches(tmp_path, "0")
    assert {(row["receive_ns"], row["receive_cpu_ns"]) for row in found} == {(-1, -1)}
